// Graphs: one stage at a time, laid out by dagre in bands of the program's own order and drawn by cytoscape.
let drawing = null, turns = 0, matches = [], matchAt = -1;
const positions = new Map();
const stageOf = () => data.graphs[by("graph").value].stages[by("stage").value];
const LEGEND = [["--one", "in a kernel"], ["--three", "library call"], ["--two", "saved for the backward"], ["--four", "recomputed"]];

function drawGraphs() {
  data.graphs.forEach((graph, number) => by("graph").append(make("option", { value: number }, `${number + 1}: ${graph.function}`)));
  by("graph").addEventListener("change", () => { fillStages(0); drawStage(); });
  by("stage").addEventListener("change", () => drawStage());
  const zoom = (factor) => drawing && drawing.zoom({ level: drawing.zoom() * factor, renderedPosition: { x: drawing.width() / 2, y: drawing.height() / 2 } });
  by("fit").addEventListener("click", () => drawing && drawing.fit(undefined, 20));
  by("closer").addEventListener("click", () => zoom(1.3));
  by("farther").addEventListener("click", () => zoom(1 / 1.3));
  by("canvas").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] }[event.key];
    if (!drawing || !(step || "+-0".includes(event.key))) return;
    event.preventDefault();
    drawing.stop(true, true); // a move still under way would undo this one
    if (step) drawing.panBy({ x: step[0], y: step[1] });
    else if (event.key === "0") drawing.fit(undefined, 20);
    else zoom(event.key === "+" ? 1.3 : 1 / 1.3);
  });
  by("find").addEventListener("input", find);
  by("find").addEventListener("keydown", (event) => { if (event.key === "Enter" && matches.length) choose(matches[(matchAt = (matchAt + 1) % matches.length)].id); });
  by("legend").append(...LEGEND.map(([name, text]) => make("span", {}, make("i", { style: `border-color:var(${name})` }), text)));
  if (data.graphs.length) { fillStages(0); drawStage(); }
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

async function findIn(graph, text) {
  await openGraph(graph, 0);
  by("find").value = text; find();
  if (matches.length) choose(matches[(matchAt = 0)].id);
}

// Bands: runs of nodes in the program's order, cut where the fewest edges pass. Each is laid out by itself, so that time
// grows with the number of bands only, and what runs first stands on top.
function bands(nodes, edges) {
  const at = new Map(nodes.map((node, number) => [node.id, number])), passing = new Array(nodes.length + 1).fill(0);
  for (const [from, to] of edges) { passing[at.get(from) + 1]++; passing[at.get(to) + 1]--; }
  for (let place = 1; place < passing.length; place++) passing[place] += passing[place - 1];
  const found = [];
  for (let start = 0; start < nodes.length;) {
    let end = nodes.length;
    if (end - start > 150) {
      end = start + 50;
      for (let place = end; place <= start + 130; place++) if (passing[place] < passing[end] || (passing[place] === passing[end] && place <= start + 90)) end = place;
    }
    found.push(nodes.slice(start, end));
    start = end;
  }
  return found;
}

function layOut(stage) {
  // Inputs are put beside their first reader. Long edges are drawn, but the layout is spared them: each would cost it a
  // stand-in in every row it passes.
  const leaves = inputs(stage), depth = new Map(stage.nodes.map((node) => [node.id, 0]));
  for (const [from, to] of stage.edges) depth.set(to, Math.max(depth.get(to), depth.get(from) + (leaves.has(from) ? 0 : 1)));
  const inside = stage.nodes.filter((node) => !leaves.has(node.id) && node.op !== "output"), kept = new Set(inside.map((node) => node.id));
  const edges = stage.edges.filter(([from, to]) => kept.has(from) && kept.has(to));
  const input = {
    bands: bands(inside, edges).map((band) => band.map((node) => [node.id, 24 + 7.2 * Math.max(node.label.length, brief(node.shape ?? "").length * 0.8)])),
    edges: edges.filter(([from, to]) => depth.get(to) - depth.get(from) <= 8),
  };
  const work = function (input) {
    // What hangs together is laid out by dagre; pieces that do not, as the updates of many parameters, stand in rows.
    const lay = (nodes, edges) => {
      const graph = new dagre.graphlib.Graph();
      graph.setGraph({ nodesep: 18, ranksep: 30, ranker: "tight-tree" });
      graph.setDefaultEdgeLabel(() => ({}));
      for (const [id, width] of nodes) graph.setNode(id, { width, height: 38 });
      for (const [from, to] of edges) graph.setEdge(from, to);
      dagre.layout(graph, { disableOptimalOrderHeuristic: input.bands.length > 2 });
      return graph;
    };
    const laid = input.bands.map((band) => {
      const parent = new Map(band.map(([id]) => [id, id])), root = (id) => { while (parent.get(id) !== id) id = parent.get(id); return id; };
      const edges = input.edges.filter(([from, to]) => parent.has(from) && parent.has(to)), pieces = new Map(), where = new Map();
      for (const [from, to] of edges) parent.set(root(from), root(to));
      for (const node of band) { const key = root(node[0]); if (!pieces.has(key)) pieces.set(key, []); pieces.get(key).push(node); }
      let x = 0, y = 0, row = 0, width = 0;
      for (const [key, nodes] of pieces) {
        const graph = lay(nodes, edges.filter(([from]) => root(from) === key)), size = graph.graph();
        if (x > 0 && x + size.width > 1500) { x = 0; y += row + 30; row = 0; }
        for (const [id] of nodes) where.set(id, [x + graph.node(id).x, y + graph.node(id).y]);
        x += size.width + 18; row = Math.max(row, size.height); width = Math.max(width, x);
      }
      return { band, where, width, height: y + row + 44 };
    });
    // Columns, read like those of a newspaper, so that all of it fits a screen.
    const tall = laid.reduce((sum, each) => sum + each.height, 0), wide = laid.reduce((sum, each) => sum + each.width, 0) / Math.max(1, laid.length);
    const columns = laid.length > 3 ? Math.max(1, Math.round(Math.sqrt(1.4 * tall / (wide + 300)))) : 1;
    const placed = new Map();
    let top = 0, left = 0, right = 0, column = new Map();
    for (const { band, where, width, height } of laid) {
      if (top > 0 && columns > 1 && top + height / 2 > tall / columns) { top = 0; left = right + 260; column = new Map(); }
      let above = 0, below = 0, count = 0; // so that what flows from band to band flows straight down
      for (const [from, to] of input.edges) if (where.has(to) && column.has(from)) { above += column.get(from); below += where.get(to)[0]; count++; }
      const shift = Math.min(left + 400, Math.max(left, count ? (above - below) / count : left));
      for (const [id, size] of band) { const [x, y] = where.get(id); placed.set(id, [x + shift, top + y, size]); column.set(id, x + shift); }
      right = Math.max(right, shift + width);
      top += height;
    }
    return [...placed].map(([id, [x, y, width]]) => [id, x, y, width]);
  };
  return new Promise((resolve) => {
    const done = (placed) => resolve(withLeaves(stage, placed));
    const here = () => setTimeout(() => { if (!window.dagre) new Function(by("dagre").textContent + ";window.dagre = dagre;")(); done(work(input)); }, 20);
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
  const used = new Map(), bottom = Math.max(0, ...placed.map(([, , y]) => y)) + 70, last = placed.length ? placed[placed.length - 1][1] : 0;
  for (const [from, to] of stage.edges) {
    if (!inputs(stage).has(from) || where.has(from) || !where.has(to)) continue;
    const reader = where.get(to), count = used.get(to) || 0, width = 16 + 5.4 * Math.min(from.length, 30);
    used.set(to, count + 1);
    where.set(from, { x: reader.x - reader.width / 2 - width / 2 - 10, y: reader.y - 24 - 18 * count, width });
  }
  stage.nodes.forEach((node) => { if (!where.has(node.id)) where.set(node.id, { x: last, y: bottom, width: 60 }); });
  return where;
}

function inputs(stage) {
  return stage.inputs ??= new Set(stage.nodes.filter((node) => node.op === "placeholder").map((node) => node.id));
}

const graphStyle = () => [
  { selector: "node", style: { label: "data(text)", "text-wrap": "wrap", "text-valign": "center", "font-size": 11, "font-family": "system-ui, sans-serif", shape: "round-rectangle", width: "data(width)", height: 36, color: color("--text"), "background-color": color("--soft"), "border-width": 1, "border-color": color("--line") } },
  { selector: ".placeholder, .output", style: { height: 16, "font-size": 9, color: color("--quiet"), "background-opacity": 0.25, "border-style": "dashed" } },
  ...[["kernel", "--one"], ["library", "--three"], ["recomputed", "--four"], ["saved", "--two"]].map(([kind, name]) => (
    { selector: "." + kind, style: { "border-color": color(name), "border-width": 2, "background-color": mixed("--panel", name, 0.16) } })),
  { selector: "edge", style: { width: 1.2, "line-color": color("--edge"), "target-arrow-color": color("--edge"), "target-arrow-shape": "triangle", "arrow-scale": 0.7, "curve-style": "straight" } },
  { selector: "edge.long", style: { opacity: 0.22 } },
  { selector: ".match", style: { "background-color": color("--two"), "background-opacity": 0.35 } },
  { selector: "node:selected", style: { "background-color": color("--mark"), "background-opacity": 0.6 } },
  { selector: "edge.near", style: { opacity: 1, width: 2, "line-color": color("--mark"), "target-arrow-color": color("--mark") } },
];

function recolorGraph() {
  if (drawing) drawing.style(graphStyle());
}

async function drawStage() {
  const stage = stageOf();
  fillNodes(stage); find();
  if (drawing) { drawing.destroy(); drawing = null; }
  by("canvas").textContent = "laying out…";
  const turn = ++turns;
  if (!positions.has(stage)) positions.set(stage, layOut(stage)); // a promise: who asks twice waits for one layout
  const where = await positions.get(stage);
  if (turn !== turns) return; // somebody has asked for another since
  by("canvas").textContent = "";
  const far = (from, to) => Math.hypot(where.get(from).x - where.get(to).x, where.get(from).y - where.get(to).y) > 700;
  drawing = cytoscape({
    container: by("canvas"), minZoom: 0.02, maxZoom: 3, textureOnViewport: stage.nodes.length > 400, hideEdgesOnViewport: stage.nodes.length > 1500, layout: { name: "preset" }, style: graphStyle(),
    elements: [
      ...stage.nodes.map((node) => ({ data: { id: node.id, text: inputs(stage).has(node.id) ? brief(node.id) : node.label + (node.shape ? "\n" + brief(node.shape) : ""), width: where.get(node.id).width }, position: where.get(node.id), classes: kindOf(node) })),
      ...stage.edges.map(([source, target]) => ({ data: { source, target }, classes: far(source, target) ? "long" : "" })),
    ],
  });
  drawing.on("tap", "node", (event) => select(event.target.id()));
  const top = drawing.nodes().filter((node) => !inputs(stage).has(node.id())).min((node) => node.position("y")).ele;
  if (drawing.zoom() < 0.7 && top) { drawing.zoom(0.8); drawing.center(top); drawing.panBy({ x: 0, y: 70 - by("canvas").clientHeight / 2 }); }
  mark();
}

const brief = (name) => name.length > 30 ? "…" + name.slice(-29) : name;

function kindOf(node) {
  const step = stepOf(node);
  return [node.op, node.saved ? "saved" : "", node.recomputed ? "recomputed" : "", step ? step.kind : ""].join(" ");
}

function stepOf(node) {
  if (!node.step) return null;
  const program = data.graphs[by("graph").value || 0].programs.find((each) => each.name === node.step[0]);
  return program ? program.steps[node.step[1]] : null;
}

function fillNodes(stage) {
  const item = (node) => make("li", {}, make("button", { type: "button", onclick: () => choose(node.id) }, node.op === "step" ? `${node.id}: ${node.label}` : node.id), " ", make("span", { class: "quiet" }, node.shape ?? ""));
  stage.items = stage.nodes.map((node) => [node, item(node)]);
  const computed = stage.items.filter(([node]) => node.op !== "placeholder"), given = stage.items.filter(([node]) => node.op === "placeholder");
  by("nodes").replaceChildren(...computed.map(([, each]) => each), make("li", {}, make("h3", {}, many(given.length, "input"))), ...given.map(([, each]) => each));
}

function find() {
  const stage = stageOf(), wanted = by("find").value.trim().toLowerCase();
  const words = (node) => [node.id, node.label, node.shape ?? "", node.file === undefined ? "" : `${data.files[node.file].path}:${node.line}`].join(" ").toLowerCase();
  const hit = (node) => { const text = words(node), at = text.indexOf(wanted); return at >= 0 && !(/:\d+$/.test(wanted) && /\d/.test(text[at + wanted.length] ?? "")); };
  matches = wanted ? stage.nodes.filter(hit) : [];
  matchAt = -1;
  by("matches").textContent = wanted ? `${matches.length} found` : "";
  const found = new Set(matches);
  for (const [node, item] of stage.items ?? []) item.hidden = Boolean(wanted) && !found.has(node);
  mark();
}

function mark() {
  if (!drawing) return;
  drawing.nodes().removeClass("match");
  for (const node of matches) drawing.getElementById(node.id).addClass("match");
}

function select(id) {
  describe(id);
  if (!drawing) return;
  drawing.edges().removeClass("near");
  drawing.nodes().unselect();
  drawing.getElementById(id).select().connectedEdges().addClass("near");
}

function choose(id) {
  select(id);
  if (drawing) drawing.animate({ center: { eles: drawing.getElementById(id) }, zoom: Math.max(drawing.zoom(), 0.8) }, { duration: 150 });
}

async function goToNode(graph, stage, id) {
  if (Number(by("graph").value) !== Number(graph) || Number(by("stage").value) !== stage || by("view-graphs").hidden) await openGraph(graph, stage);
  choose(id);
}

const listed = (title, items) => items.length ? [make("h3", {}, title), make("ul", { class: "list" }, ...items)] : [];

// Everything that is known of a node, with ways on from it.
function describe(id) {
  const number = by("graph").value, graph = data.graphs[number], at = Number(by("stage").value), stage = stageOf();
  const node = stage.nodes.find((each) => each.id === id), step = stepOf(node), near = (names) => [...new Set(names)].slice(0, 30).map((name) => make("li", {}, link(name, () => choose(name))));
  const partners = node.origin === undefined ? [] : graph.stages.flatMap((other, place) => other.nodes.filter((each) => each.origin === node.origin && each !== node).map((each) => [place, other.name, each]));
  const row = (head, ...parts) => make("tr", {}, make("th", {}, head), make("td", {}, ...parts));
  const drawnStep = step && node.op !== "step" ? graph.stages.findIndex((each) => each.name === node.step[0]) : -1;
  by("node").replaceChildren(
    make("h3", {}, node.op === "step" ? `${node.id}: ${node.label}` : node.id),
    make("table", {},
      node.op === "step" ? row("kind", step.kind === "kernel" ? (step.why ? `kernel: it ${step.why}` : "kernel") : `library call: it ${step.why}`) : row("operator", node.label),
      row("value", node.shape || "–"),
      node.saved ? row("saved", "for the backward") : null,
      node.recomputed ? row("saved", "no: recomputed here") : null,
      node.file === undefined ? null : row("line", place(node.file, node.line), make("code", { class: "quote" }, (lineText(node.file, node.line) ?? "").trim())),
      step && node.op !== "step" ? row("computed by", link(`${node.step[0]}: ${step.name}`, () => goToStep(number, node.step)), drawnStep < 0 ? null : make("br"), drawnStep < 0 ? null : link("show it in the drawing", () => goToNode(number, drawnStep, `step ${node.step[1] + 1}`))) : null,
    ),
    ...(node.op === "step" ? [stepBody(graph, Number(number), node.step[0], step)] : []),
    ...listed("The same in other stages", partners.slice(0, 30).map(([place, name, each]) => make("li", {}, link(`${name}: ${each.id}`, () => goToNode(number, place, each.id))))),
    ...listed("Not in one kernel with", graph.apart.filter(([first, second]) => node.op !== "step" && (first.includes(id) || second.includes(id))).slice(0, 12).map(([first, second, reason]) =>
      make("li", {}, make("code", {}, (first.includes(id) ? second : first).join(", ")), ": " + reason))),
    ...listed("Reads", near(stage.edges.filter(([, to]) => to === id).map(([from]) => from))),
    ...listed("Read by", near(stage.edges.filter(([from]) => from === id).map(([, to]) => to))),
  );
  by("node").parentElement.scrollTop = 0;
}
