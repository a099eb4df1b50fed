"use strict";
// The page of a report: reads the data beside it, draws a view when it is first opened, and links the views to each other.
const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const bytes = (count) => {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (count >= size) return (count / size).toFixed(count >= 10 * size ? 0 : 1) + " " + unit;
  return count + " B";
};
const short = (path) => path.split("/").slice(-2).join("/");

const views = {
  overview: ["Overview", drawOverview], source: ["Source", drawSource], graphs: ["Graphs", drawGraphs],
  kernels: ["Kernels", drawKernels], memory: ["Memory", drawMemory], guards: ["Guards", drawGuards], time: ["Time", drawTime],
};
const drawn = new Set();

function show(name) {
  for (const key of Object.keys(views)) {
    const chosen = key === name;
    by("view-" + key).hidden = !chosen;
    by("tab-" + key).setAttribute("aria-selected", chosen);
    by("tab-" + key).tabIndex = chosen ? 0 : -1;
  }
  if (!drawn.has(name)) { drawn.add(name); views[name][1](by("view-" + name)); }
}

function start() {
  by("title").textContent = data.title;
  for (const [name, value] of Object.entries(data.summary)) {
    const text = name === "seconds" ? value.toFixed(2) : name === "bytes saved" ? bytes(value) : String(value);
    by("summary").append(make("div", {}, make("dt", {}, name === "seconds" ? "seconds to compile" : name), make("dd", {}, text)));
  }
  for (const [name, [title]] of Object.entries(views)) {
    by("tabs").append(make("button", { id: "tab-" + name, role: "tab", "aria-controls": "view-" + name, type: "button", onclick: () => show(name) }, title));
  }
  by("tabs").addEventListener("keydown", (event) => {
    const names = Object.keys(views), at = names.findIndex((name) => by("tab-" + name) === document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined || at < 0) return;
    const next = names[(at + step + names.length) % names.length];
    show(next); by("tab-" + next).focus();
  });
  show("overview");
}

function place(file, line) {
  return file === null ? null : make("button", { class: "link", type: "button", onclick: () => goToLine(file, line) }, `${short(file)}:${line}`);
}

function drawOverview(view) {
  view.append(make("h2", {}, "What to change"));
  view.append(make("ul", {}, ...(data.advice.length ? data.advice : ["nothing"]).map((text) => make("li", {}, text))));
  view.append(make("h2", {}, "Graphs"));
  const rows = data.graphs.map((graph, number) => make("tr", {},
    make("td", {}, make("button", { class: "link", type: "button", onclick: () => openGraph(number, 0) }, `${number + 1}: ${graph.function}`)),
    make("td", {}, String(graph.ops.length)), make("td", {}, String(graph.kernels.length)), make("td", {}, String(graph.library_calls.length)),
    make("td", {}, bytes(graph.saved_bytes))));
  const heads = ["graph", "operators", "kernels", "library calls", "saved for backward"].map((text) => make("th", {}, text));
  view.append(make("table", {}, make("tr", {}, ...heads), ...rows));
  view.append(make("h2", {}, "Breaks"));
  if (!data.breaks.length) view.append(make("p", { class: "quiet" }, "none"));
  for (const each of data.breaks)
    view.append(make("p", {}, make("b", {}, each.code + " "), each.reason + " ", place(each.file, each.line), make("br"), make("span", { class: "quiet" }, each.hint)));
  view.append(make("h2", {}, "Recompiles"));
  if (!data.recompiles.length) view.append(make("p", { class: "quiet" }, "none"));
  for (const each of data.recompiles) view.append(make("p", {}, `${each.function}: ${each.reason}`));
}

const lineAt = new Map();

function drawSource(view) {
  for (const [file, text] of Object.entries(data.files)) {
    view.append(make("h2", {}, file));
    const box = make("div", { class: "source code" });
    const marked = new Set([...data.graphs.flatMap((graph) => graph.lines[file] || []), ...data.breaks.filter((each) => each.file === file).map((each) => each.line)]);
    const near = (number) => { for (let at = number - 8; at <= number + 4; at++) if (marked.has(at)) return true; return false; };
    let hidden = null;
    text.lines.forEach((line, offset) => {
      const number = text.first + offset;
      const inside = data.graphs.findIndex((graph) => (graph.lines[file] || []).includes(number));
      const broken = data.breaks.filter((each) => each.file === file && each.line === number);
      const row = make("div", { class: (inside >= 0 ? `in${inside % 4} ` : "") + (broken.length ? "broken" : ""), title: inside >= 0 ? `graph ${inside + 1}` : null },
        make("span", { class: "number" }, String(number)), make("span", {}, line || " "));
      if (near(number)) { hidden = null; box.append(row); }
      else {
        if (hidden === null) { hidden = make("details", { class: "gap" }, make("summary", {}, `from line ${number}`)); box.append(hidden); }
        hidden.append(row);
      }
      lineAt.set(file + ":" + number, row);
      for (const each of broken)
        box.append(make("div", { class: "broken" }, make("span", { class: "number" }), make("span", { class: "why" }, `${each.code}: ${each.reason}. ${each.hint}.`)));
    });
    view.append(box);
  }
}

function goToLine(file, line) {
  show("source");
  document.querySelectorAll(".source .here").forEach((row) => row.classList.remove("here"));
  const row = lineAt.get(file + ":" + line);
  if (row) { row.closest("details")?.setAttribute("open", ""); row.classList.add("here"); row.scrollIntoView({ block: "center" }); }
}

// The drawn graph: positions come from dagre, in a worker where the browser allows it, and are kept per stage.
let drawing = null, positions = new Map(), matches = [], matchAt = -1;
const stageOf = () => data.graphs[by("graph").value].stages[by("stage").value];

function drawGraphs() {
  data.graphs.forEach((graph, number) => by("graph").append(make("option", { value: number }, `${number + 1}: ${graph.function}`)));
  by("graph").addEventListener("change", () => { fillStages(0); drawStage(); });
  by("stage").addEventListener("change", () => drawStage());
  by("fit").addEventListener("click", () => drawing && drawing.fit(undefined, 20));
  by("find").addEventListener("input", find);
  by("find").addEventListener("keydown", (event) => { if (event.key === "Enter" && matches.length) choose(matches[(matchAt = (matchAt + 1) % matches.length)].id); });
  fillStages(0);
  if (data.graphs.length) drawStage();
}

function fillStages(chosen) {
  by("stage").replaceChildren(...data.graphs[by("graph").value || 0].stages.map((stage, number) =>
    make("option", { value: number, selected: number === chosen }, `${stage.name} (${stage.nodes.length} nodes)`)));
}

function openGraph(graph, stage) {
  show("graphs");
  by("graph").value = graph; fillStages(stage); by("stage").value = stage;
  return drawStage();
}

function layOut(stage) {
  // Long edges are drawn, but the layout is spared them: each would cost it a stand-in in every row it passes. Inputs
  // are put beside their first reader.
  const leaves = inputs(stage), depth = new Map(stage.nodes.map((node) => [node.id, 0]));
  for (const [from, to] of stage.edges) depth.set(to, Math.max(depth.get(to), depth.get(from) + (from in leaves ? 0 : 1)));
  const inside = stage.nodes.filter((node) => !(node.id in leaves) && node.op !== "output");
  const input = {
    nodes: inside.map((node) => [node.id, 24 + 7.2 * Math.max(node.label.length, node.shape.length * 0.8), 40]),
    edges: stage.edges.filter(([from, to]) => !(from in leaves) && to !== "output" && depth.get(to) - depth.get(from) <= 6),
  };
  const work = function (input) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ nodesep: 18, ranksep: 34, ranker: "tight-tree" });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const [id, width, height] of input.nodes) graph.setNode(id, { width, height });
    for (const [from, to] of input.edges) graph.setEdge(from, to);
    dagre.layout(graph, { disableOptimalOrderHeuristic: input.nodes.length > 200 });
    return input.nodes.map(([id, width]) => [id, graph.node(id).x, graph.node(id).y, width]);
  };
  return new Promise((resolve) => {
    const done = (placed) => resolve(withLeaves(stage, placed));
    const here = () => setTimeout(() => done(work(input)), 20);
    try {
      const text = by("dagre").textContent + `;onmessage = (event) => postMessage((${work})(event.data));`;
      const worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
      worker.onmessage = (event) => { worker.terminate(); done(event.data); };
      worker.onerror = (event) => { event.preventDefault(); here(); };
      worker.postMessage(input);
    } catch { here(); }
  });
}

function withLeaves(stage, placed) {
  const where = new Map(placed.map(([id, x, y, width]) => [id, { x, y, width }]));
  const used = new Map(), bottom = Math.max(0, ...placed.map(([, , y]) => y)) + 70;
  for (const [from, to] of stage.edges) {
    if (!(from in inputs(stage)) || where.has(from) || !where.has(to)) continue;
    const reader = where.get(to), count = used.get(to) || 0, width = 16 + 5.4 * Math.min(from.length, 30);
    used.set(to, count + 1);
    where.set(from, { x: reader.x - reader.width / 2 - width / 2 - 10, y: reader.y - 24 - 18 * count, width });
  }
  stage.nodes.forEach((node) => { if (!where.has(node.id)) where.set(node.id, { x: 0, y: bottom, width: 60 }); });
  return where;
}

function inputs(stage) {
  stage.inputs ??= Object.fromEntries(stage.nodes.filter((node) => node.op === "placeholder").map((node) => [node.id, true]));
  return stage.inputs;
}

async function drawStage() {
  const stage = stageOf();
  fillNodes(stage); find();
  if (drawing) { drawing.destroy(); drawing = null; }
  by("canvas").textContent = "laying out…";
  if (!positions.has(stage)) positions.set(stage, await layOut(stage));
  if (stage !== stageOf()) return;
  by("canvas").textContent = "";
  const where = positions.get(stage);
  drawing = cytoscape({
    container: by("canvas"), minZoom: 0.02, maxZoom: 3, wheelSensitivity: 0.3, textureOnViewport: stage.nodes.length > 400, layout: { name: "preset" },
    elements: [
      ...stage.nodes.map((node) => ({ data: { id: node.id, text: node.id in inputs(stage) ? brief(node.id) : node.label + (node.shape ? "\n" + node.shape : ""), width: where.get(node.id).width }, position: where.get(node.id), classes: kindOf(node) })),
      ...stage.edges.map(([source, target]) => ({ data: { source, target } })),
    ],
    style: [
      { selector: "node", style: { label: "data(text)", "text-wrap": "wrap", "text-valign": "center", "font-size": 11, shape: "round-rectangle", width: "data(width)", height: 36, color: color("--text"), "background-color": color("--soft"), "border-width": 1, "border-color": color("--line") } },
      { selector: ".placeholder, .output", style: { height: 16, "font-size": 9, "background-opacity": 0.25, "border-style": "dashed" } },
      { selector: ".kernel", style: { "border-color": color("--one"), "border-width": 2 } },
      { selector: ".library", style: { "border-color": color("--three"), "border-width": 2 } },
      { selector: ".saved", style: { "border-color": color("--two"), "border-width": 3 } },
      { selector: ".match", style: { "background-color": color("--two"), "background-opacity": 0.35 } },
      { selector: ":selected", style: { "background-color": color("--mark"), "background-opacity": 0.6 } },
      { selector: "edge", style: { width: 1, "line-color": color("--line"), "target-arrow-color": color("--line"), "target-arrow-shape": "triangle", "arrow-scale": 0.7, "curve-style": "bezier" } },
    ],
  });
  drawing.on("tap", "node", (event) => describe(event.target.id()));
  const top = drawing.nodes().min((node) => node.position("y")).ele;
  if (drawing.zoom() < 0.7 && top) { drawing.zoom(0.8); drawing.center(top); drawing.panBy({ x: 0, y: 60 - by("canvas").clientHeight / 2 }); }
  mark();
}

const brief = (name) => name.length > 30 ? "…" + name.slice(-29) : name;

function kindOf(node) {
  const step = stepOf(node);
  return [node.op, node.saved ? "saved" : "", step ? step.kind : ""].join(" ");
}

function stepOf(node) {
  if (!node.step) return null;
  const program = data.graphs[by("graph").value || 0].programs.find((each) => each.name === node.step[0]);
  return program ? program.steps[node.step[1]] : null;
}

function fillNodes(stage) {
  by("nodes").replaceChildren(...stage.nodes.map((node) => make("li", {}, make("button", { type: "button", onclick: () => choose(node.id) }, node.id), " ", make("span", { class: "quiet" }, node.shape))));
}

function find() {
  const wanted = by("find").value.trim().toLowerCase(), stage = stageOf();
  matchAt = -1;
  matches = wanted ? stage.nodes.filter((node) => `${node.id} ${node.label} ${node.shape} ${node.file || ""}:${node.line || ""}`.toLowerCase().includes(wanted)) : [];
  by("matches").textContent = wanted ? `${matches.length} found` : "";
  by("nodes").querySelectorAll("li").forEach((item, number) => { item.hidden = Boolean(wanted) && !matches.includes(stage.nodes[number]); });
  mark();
}

function mark() {
  if (!drawing) return;
  drawing.nodes().removeClass("match");
  for (const node of matches) drawing.getElementById(node.id).addClass("match");
}

function choose(id) {
  describe(id);
  if (!drawing) return;
  drawing.nodes().unselect();
  const node = drawing.getElementById(id).select();
  drawing.animate({ center: { eles: node }, zoom: Math.max(drawing.zoom(), 0.8) }, { duration: 150 });
}

function describe(id) {
  const graph = data.graphs[by("graph").value], number = Number(by("stage").value), node = stageOf().nodes.find((each) => each.id === id), step = stepOf(node);
  const partners = graph.stages.flatMap((stage, at) => at === number ? [] : stage.nodes.filter((each) => node.origin !== null && each.origin === node.origin).map((each) => [at, stage.name, each]));
  by("node").replaceChildren(
    make("h3", {}, node.id),
    make("table", {},
      make("tr", {}, make("th", {}, "operator"), make("td", {}, node.label)),
      make("tr", {}, make("th", {}, "value"), make("td", {}, node.shape || "–", node.saved ? " (saved for the backward)" : "")),
      make("tr", {}, make("th", {}, "line"), make("td", {}, place(node.file, node.line) || "–")),
      make("tr", {}, make("th", {}, "computed by"), make("td", {}, step ? make("button", { class: "link", type: "button", onclick: () => goToStep(node.step) }, `${node.step[0]}: ${step.name}`) : "–")),
    ),
    make("h3", {}, "In other stages"),
    make("ul", { class: "list" }, ...(partners.length ? partners.map(([at, name, each]) => make("li", {}, make("button", { type: "button", onclick: async () => { await openGraph(by("graph").value, at); choose(each.id); } }, `${name}: ${each.id}`))) : [make("li", { class: "quiet" }, "none")])),
  );
}

const stepBoxes = new Map();

function drawKernels(view) {
  data.graphs.forEach((graph, number) => {
    for (const program of graph.programs) {
      view.append(make("h2", {}, `Graph ${number + 1}, ${program.name}`));
      const stage = graph.stages.find((each) => program.name.startsWith(each.name));
      program.steps.forEach((step, at) => {
        const lines = new Map();
        for (const node of stage ? stage.nodes : []) if (step.members.includes(node.id) && node.file) lines.set(`${node.file}:${node.line}`, [node.file, node.line]);
        const box = make("details", {}, make("summary", {}, `${at + 1}. ${step.name} `, make("span", { class: "quiet" }, step.kind === "kernel" ? step.members.join(", ") : `library call: it ${step.why}`)),
          make("p", {}, "lines: ", ...[...lines.values()].flatMap(([file, line]) => [place(file, line), " "])), make("pre", {}, step.code));
        stepBoxes.set(program.name + ":" + at, box);
        view.append(box);
      });
    }
    if (graph.apart.length) {
      view.append(make("h2", {}, `Graph ${number + 1}: kept apart, and why`));
      view.append(make("ul", {}, ...graph.apart.map((each) => make("li", {}, make("code", {}, each.first.join(", ")), " and ", make("code", {}, each.second.join(", ")), ": " + each.reason))));
    }
  });
}

function goToStep([program, at]) {
  show("kernels");
  document.querySelectorAll("details.here").forEach((box) => box.classList.remove("here"));
  const box = stepBoxes.get(program + ":" + at);
  box.open = true; box.classList.add("here"); box.scrollIntoView({ block: "center" });
}

function drawMemory(view) {
  const graphs = data.graphs.filter((graph) => graph.memory.length);
  if (!graphs.length) view.append(make("p", { class: "quiet" }, "Nothing was compiled to kernels."));
  data.graphs.forEach((graph, number) => {
    if (!graph.memory.length) return;
    view.append(make("h2", {}, `Graph ${number + 1}: ${graph.function}`));
    const box = make("div"), ends = [...new Set([...graph.memory, ...graph["eager memory"]].map(([x]) => x))].sort((a, b) => a - b);
    view.append(box);
    const series = (points) => { let at = 0, now = null; return ends.map((x) => { while (at < points.length && points[at][0] <= x) now = points[at++][1]; return now; }); };
    const most = (points) => points.reduce((high, [, size]) => Math.max(high, size), 0);
    new uPlot({
      width: Math.min(1100, window.innerWidth - 70), height: 320, scales: { x: { time: false } },
      axes: [{ stroke: color("--quiet"), grid: { stroke: color("--line") }, values: (plot, marks) => marks.map((x) => x === 0 ? "forward" : x === 1 ? "backward" : x === 2 ? "end" : "") },
             { stroke: color("--quiet"), grid: { stroke: color("--line") }, size: 80, values: (plot, marks) => marks.map(bytes) }],
      series: [{ label: "place in the step" }, { label: "smelt", stroke: color("--one"), width: 2, fill: color("--one") + "22", value: (plot, value) => value === null ? "–" : bytes(value) },
               { label: "operator by operator, as eager", stroke: color("--two"), width: 2, value: (plot, value) => value === null ? "–" : bytes(value) }],
    }, [ends, series(graph.memory), series(graph["eager memory"])], box);
    view.append(make("p", {}, `At most ${bytes(most(graph.memory))} alive beside inputs and parameters, ${bytes(most(graph["eager memory"]))} operator by operator.`));
    view.append(make("h3", {}, "Saved for the backward"));
    const rows = graph.saved.map((each) => make("tr", {}, make("td", {}, make("code", {}, each.name)), make("td", {}, bytes(each.bytes)), make("td", {}, each.input ? "an input" : each.why)));
    view.append(make("table", {}, make("tr", {}, ...["value", "bytes", "why"].map((text) => make("th", {}, text))), ...rows));
  });
}

function drawGuards(view) {
  data.graphs.forEach((graph, number) => {
    view.append(make("h2", {}, `Graph ${number + 1}: ${graph.function} is used again while`));
    view.append(make("ul", {}, ...graph.guards.map((text) => make("li", {}, text))));
  });
  view.append(make("h2", {}, "Recompiles"));
  view.append(data.recompiles.length ? make("ul", {}, ...data.recompiles.map((each) => make("li", {}, `${each.function}: ${each.reason}`))) : make("p", { class: "quiet" }, "none"));
}

function drawTime(view) {
  const most = Math.max(...data.times.map(([, seconds]) => seconds), 1e-9);
  view.append(make("h2", {}, "Where compile time went"));
  view.append(make("table", {}, ...[...data.times].sort((a, b) => b[1] - a[1]).map(([stage, seconds]) => make("tr", {}, make("td", {}, stage), make("td", {}, (seconds * 1e3).toFixed(1) + " ms"),
    make("td", {}, make("div", { class: "track" }, make("i", { style: `width:${Math.max(1, 100 * seconds / most)}%` })))))));
}

start();
