// Kernels with their code, memory over a step, guards, and where time went. Loaded last: it starts the page.
let texts = null;

// The kernel form, the loops, the LLVM IR and the assembly of a kernel: kept compressed in the page until somebody asks.
async function codeOf(number) {
  texts ??= (async () => {
    const packed = Uint8Array.from(atob(by("codes").textContent), (letter) => letter.charCodeAt(0));
    return JSON.parse(await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).text());
  })();
  return (await texts)[number];
}

function codeBox(step) {
  if (step.kind !== "kernel") return make("pre", { tabindex: 0 }, step.text);
  const text = make("pre", { tabindex: 0, class: "text" }, "…"), names = ["Kernel", "Loops", "LLVM", step.target.startsWith("sm_") ? "PTX" : "Assembly"];
  const choose = async (number) => { buttons.forEach((button, at) => button.setAttribute("aria-selected", at === number)); text.textContent = (await codeOf(step.code))[number]; };
  const buttons = names.map((name, number) => make("button", { type: "button", role: "tab", onclick: () => choose(number) }, name));
  choose(0);
  return make("div", {}, make("div", { class: "codes", role: "tablist", "aria-label": "Code" }, ...buttons), text);
}

// What is known of a step: lines, values, why its neighbours are not in it, code.
function stepBody(graph, number, programName, step) {
  const at = graph.stages.findIndex((each) => each.kind !== "captured" && each.kind !== "program" && programName.startsWith(each.kind)), stage = graph.stages[at];
  const members = new Set(step.members), lines = new Map();
  for (const node of stage ? stage.nodes : []) if (members.has(node.id) && node.file !== undefined) lines.set(`${node.file}:${node.line}`, [node.file, node.line]);
  const apart = new Map(); // reason → the values it is given for
  for (const [first, second, reason] of graph.apart)
    for (const [mine, other] of [[first, second], [second, first]])
      if (mine.some((name) => members.has(name)) && !other.some((name) => members.has(name))) apart.set(reason, [...(apart.get(reason) || []), other.join(", ")]);
  return make("div", {},
    step.time === undefined ? null : make("p", {}, `${duration(step.time)} a call` + (step.kind === "kernel" && step.time ? `, ${(step.bytes / step.time).toPrecision(3)} GB/s over ${bytes(step.bytes)} of buffers` : "")),
    ...listed("On the GPU", (step.grids || []).map((line) => make("li", {}, line))),
    ...listed("Lines", [...lines.values()].map(([file, line]) => quoted(file, line))),
    ...listed("Computes", at < 0 ? [] : [make("li", {}, ...step.members.flatMap((name, place) => [place ? ", " : "", link(name, () => goToNode(number, at, name))]))]),
    ...listed("Neighbours are not in it because", [...apart].map(([reason, others]) => make("li", {}, reason + ": ", make("code", {}, [...new Set(others)].slice(0, 4).join("; "))))),
    make("h3", {}, "Code"), codeBox(step));
}

const stepBoxes = new Map();

function drawKernels(view) {
  const wanted = make("input", { type: "search", placeholder: "name, value…", oninput: () => filter() }), count = make("span", { role: "status", class: "quiet" });
  view.append(make("div", { class: "bar" }, make("label", {}, "Find ", wanted), count));
  const filter = () => {
    const text = wanted.value.trim().toLowerCase();
    let shown = 0;
    for (const [box, words] of stepBoxes.values()) { box.hidden = Boolean(text) && !words.includes(text); shown += !box.hidden; }
    count.textContent = text ? `${shown} found` : "";
  };
  data.graphs.forEach((graph, number) => {
    for (const program of graph.programs) {
      const kernels = program.steps.filter((step) => step.kind === "kernel").length, total = program.steps.reduce((sum, step) => sum + (step.time ?? 0), 0);
      view.append(make("h2", {}, `Graph ${number + 1}, ${program.name}`), make("p", { class: "quiet" },
        `${many(kernels, "kernel")} and ${many(program.steps.length - kernels, "library call")}, in this order` + (program.calls ? `; ${duration(total)} a call, on average over ${program.calls}` : "")));
      const slowest = Math.max(1, ...program.steps.map((step) => step.time ?? 0));
      program.steps.forEach((step, at) => view.append(stepBox(graph, number, program, step, at, slowest)));
    }
    drawApart(view, graph, number);
  });
  if (!stepBoxes.size) view.append(make("p", { class: "quiet" }, "Nothing was compiled to kernels."));
}

function stepBox(graph, number, program, step, at, slowest) {
  const about = step.kind === "kernel" ? step.members.join(", ") + (step.why ? `: it ${step.why}` : "") : `library call: it ${step.why}`;
  const spent = step.time === undefined ? null : make("span", { class: "spent" }, duration(step.time), make("span", { class: "track" }, make("i", { class: step.kind === "kernel" ? "" : "other", style: `width:${100 * step.time / slowest}%` })));
  const box = make("details", { class: `step ${step.kind}` }, make("summary", {}, make("span", { class: "number" }, String(at + 1)), make("span", { class: "name" }, step.name), make("span", { class: "about" }, about), spent));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(stepBody(graph, number, program.name, step)); });
  stepBoxes.set(program.name + ":" + at, [box, `${step.name} ${about}`.toLowerCase()]);
  return box;
}

// Groups that share values and no kernel, by the reason.
function drawApart(view, graph, number) {
  if (!graph.apart.length) return;
  const reasons = new Map();
  for (const [first, second, reason] of graph.apart) reasons.set(reason, [...(reasons.get(reason) || []), [first, second]]);
  view.append(make("h2", {}, `Graph ${number + 1}: kept apart, and why`));
  for (const [reason, pairs] of [...reasons].sort((a, b) => b[1].length - a[1].length)) {
    const box = make("details", {}, make("summary", {}, reason, make("span", { class: "quiet" }, ` (${many(pairs.length, "pair")})`)));
    box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(make("ul", {}, ...pairs.slice(0, 200).map(([first, second]) => make("li", {}, make("code", {}, first.join(", ")), " and ", make("code", {}, second.join(", ")))))); });
    view.append(box);
  }
}

function goToStep(graph, [program, at]) {
  show("kernels");
  document.querySelectorAll("details.here").forEach((box) => box.classList.remove("here"));
  const [box] = stepBoxes.get(program + ":" + at);
  if (box.children.length === 1) box.append(stepBody(data.graphs[graph], Number(graph), program, data.graphs[graph].programs.find((each) => each.name === program).steps[at]));
  box.hidden = false; box.open = true; box.classList.add("here"); box.scrollIntoView({ block: "start" });
}

const table = (heads, rows) => make("div", { class: "scroll" }, make("table", {}, make("tr", {}, ...heads.map((text) => make("th", { class: text === "bytes" ? "amount" : null }, text))), ...rows));
// The first rows, and the rest on demand.
function shortTable(heads, rows, limit = 12) {
  const box = make("div", {}, table(heads, rows.slice(0, limit)));
  if (rows.length > limit) box.append(make("details", { class: "plain" }, make("summary", { class: "quiet" }, `and ${rows.length - limit} more`), table(heads, rows.slice(limit))));
  return box;
}

function drawMemory(view) {
  view.replaceChildren();
  if (!data.graphs.some((graph) => graph.memory.ours.length)) view.append(make("p", { class: "quiet" }, "Nothing was compiled to kernels."));
  data.graphs.forEach((graph, number) => {
    if (!graph.memory.ours.length) return;
    const { ours, eager, saved, turn, recomputed } = graph.memory, high = most(ours), theirs = most(eager);
    view.append(make("h2", {}, `Graph ${number + 1}: ${graph.function}`));
    const tile = (text, value) => make("div", {}, make("b", {}, value), make("span", {}, text));
    view.append(make("div", { class: "tiles" }, tile("smelt at its peak", bytes(high)), eager.length ? tile("eager at its peak", bytes(theirs)) : null, theirs ? tile("of eager's", (100 * high / theirs).toFixed(0) + " %") : null,
      turn ? tile("saved for the backward", bytes(graph.saved_bytes)) : null, turn ? tile("values recomputed in the backward", String(recomputed.length)) : null));
    view.append(plot(graph.memory, `Bytes alive over the step: smelt at most ${bytes(high)}, eager ${bytes(theirs)}`));
    view.append(make("p", { class: "quiet" }, "Memory that the step allocates, from its beginning to its end: inputs and parameters are not in it. Eager's curve is that of the same operators run one by one."));
    if (graph.saved.length) view.append(make("h3", {}, "Saved for the backward"), shortTable(["value", "bytes", "why"], [...graph.saved].sort((a, b) => a.input - b.input || b.bytes - a.bytes).map((each) =>
      make("tr", {}, make("td", {}, make("code", {}, each.name)), make("td", { class: "amount" }, bytes(each.bytes)), make("td", {}, each.input ? "an input, alive anyhow" : each.why)))));
    if (recomputed.length) view.append(make("h3", {}, "Recomputed in the backward instead"), shortTable(["value", "bytes"], recomputed.map((each) => make("tr", {}, make("td", {}, make("code", {}, each.name)), make("td", { class: "amount" }, bytes(each.bytes))))));
  });
}

function plot({ ours, eager, saved, turn }, words) {
  const box = make("div", { role: "img", "aria-label": words }), ends = [...new Set([...ours, ...eager, ...saved].map(([x]) => x))].sort((a, b) => a - b);
  const series = (points) => { let at = 0, now = null; return ends.map((x) => { while (at < points.length && points[at][0] <= x) now = points[at++][1]; return now; }); };
  const value = (plot, size) => size === null ? "–" : bytes(size), names = turn ? ["forward begins", "backward begins", "end"] : ["begin", "end"];
  const width = () => Math.max(280, Math.min(1180, by("view-memory").clientWidth - 50)), steps = uPlot.paths.stepped({ align: 1 });
  const lines = [{ label: "smelt", stroke: color("--one"), width: 2, fill: color("--one") + "22", value, paths: steps }];
  const curves = [series(ours)];
  if (saved.length) { lines.push({ label: "of it saved for the backward", stroke: color("--three"), width: 1.5, fill: color("--three") + "33", value, paths: steps }); curves.push(series(saved)); }
  if (eager.length) { lines.push({ label: "eager", stroke: color("--two"), width: 2, value, paths: steps }); curves.push(series(eager)); }
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
  const chart = new uPlot({
    width: width(), height: 340, padding: [12, 50, 0, 30], scales: { x: { time: false }, y: { range: (plot, low, high) => [0, Math.max(1, high * 1.05)] } }, cursor: { points: { size: 7 } },
    axes: [{ ...axis, splits: () => names.map((name, at) => at), values: (plot, marks) => marks.map((x) => names[x]) }, { ...axis, size: 72, values: (plot, marks) => marks.map(bytes) }],
    series: [{ label: "place", value: (plot, x) => x === null ? "–" : turn ? `${Math.round(100 * (x < 1 ? x : x - 1))} % of the ${x < 1 ? "forward" : "backward"}` : `${Math.round(100 * x)} %` }, ...lines],
  }, [ends, ...curves], box);
  window.addEventListener("resize", () => chart.setSize({ width: width(), height: 340 }));
  return box;
}

// Guards on arguments first; those on parts of one object, as a model has many, unfold.
function drawGuards(view) {
  const line = (text) => make("li", {}, ...text.split("`").map((part, at) => at % 2 ? make("code", {}, part) : part));
  data.graphs.forEach((graph, number) => {
    view.append(make("h2", {}, `Graph ${number + 1}: ${graph.function} is reused while`));
    const parts = new Map(), list = make("ul");
    for (const text of graph.guards) { const owner = /^`([\w]+)[.[]/.exec(text)?.[1] ?? ""; parts.set(owner, [...(parts.get(owner) || []), text]); }
    const process = (parts.get("") ?? []).filter((text) => !text.includes("`") && !text.startsWith("modules"));
    parts.set("", (parts.get("") ?? []).filter((text) => !process.includes(text)));
    if (process.length) parts.set(" ", [process.join("; ")]);
    for (const [owner, items] of parts)
      if (owner.trim() === "" || items.length <= 8) list.append(...items.map(line));
      else {
        const tensors = items.filter((text) => / of shape /.test(text)).length;
        list.append(make("li", {}, make("details", { class: "plain" }, make("summary", {}, make("code", {}, owner), ` must keep ${many(tensors, "tensor")} and ${many(items.length - tensors, "other value")} as they are`), make("ul", {}, ...items.map(line)))));
      }
    view.append(list);
  });
  view.append(make("h2", {}, "Recompiles"), recompiles());
}

function bars(rows, format) {
  const high = Math.max(...rows.map(([, amount]) => amount), 1e-9), total = rows.reduce((sum, [, amount]) => sum + amount, 0) || 1;
  return make("div", { class: "scroll" }, make("table", {}, ...rows.map(([name, amount, kind]) => make("tr", {}, make("td", {}, name), make("td", { class: "amount" }, format(amount)), make("td", { class: "amount quiet" }, (100 * amount / total).toFixed(1) + " %"),
    make("td", {}, make("div", { class: "track", style: "width:min(360px,40vw)" }, make("i", { class: kind ?? "", style: `width:${Math.max(0.5, 100 * amount / high)}%` })))))));
}

// What lazy tensors ran, and when: a row a run, with its part of the time from the first to the end of the last.
function lazyRuns() {
  const end = Math.max(...data.lazy.map((run) => run.at + run.milliseconds)), part = (time) => `${(100 * time / end).toFixed(2)}%`;
  const heads = ["run", "when", "what needed it", "line", "operators", "kernels", "how", "took"].map((text) => make("th", {}, text));
  return make("div", { class: "scroll" }, make("table", { class: "runs" }, make("tr", {}, ...heads), ...data.lazy.map((run) => make("tr", {},
    make("td", {}, String(run.number)), make("td", {}, make("span", { class: "track" }, make("i", { class: run.how === "cached" ? "" : "other", style: `margin-left:${part(run.at)};width:${part(run.milliseconds)}` }))),
    make("td", {}, run.reason), make("td", {}, make("code", {}, short(run.line))), make("td", {}, String(run.operators)), make("td", {}, run.kernels ? String(run.kernels) : "–"), make("td", {}, run.how), make("td", {}, duration(run.milliseconds * 1e6))))));
}

function drawTime(view) {
  if (data.lazy.length) view.append(make("h2", {}, "Runs of lazy tensors"), make("p", { class: "quiet" }, `${many(data.lazy.length, "run")} of what was recorded. Compiled: its program was waited for; cached: it was there; meanwhile: operator by operator, while it is compiled; eager: operator by operator.`), lazyRuns());
  view.append(make("h2", {}, "Where compile time went"), make("p", { class: "quiet" }, `${data.summary.seconds.toFixed(2)} s in all; what a stage contains is counted there and not in the stage. Watching takes time too: without a report it is less.`));
  view.append(bars([...data.times].sort((a, b) => b[1] - a[1]).map(([stage, seconds]) => [stage, seconds * 1e9]), duration));
  const timed = data.graphs.flatMap((graph, number) => graph.programs.filter((program) => program.calls).map((program) => [number, program]));
  if (!timed.length) { view.append(make("h2", {}, "Where running time went"), make("p", { class: "quiet" }, "Not measured: smelt.record(…, profile=True) or smelt report --profile times every kernel and library call.")); return; }
  for (const [number, program] of timed) {
    const steps = program.steps.map((step, at) => [step, at]).sort((a, b) => b[0].time - a[0].time), total = steps.reduce((sum, [step]) => sum + step.time, 0);
    view.append(make("h2", {}, `Where running time went: ${program.name}`), make("p", { class: "quiet" }, `${duration(total)} a call in kernels and library calls, ${duration(program.between)} in between; averages over ${many(program.calls, "call")}.`));
    const rest = steps.slice(20).reduce((sum, [step]) => sum + step.time, 0);
    view.append(bars([...steps.slice(0, 20).map(([step, at]) => [link(`${at + 1}. ${step.name}`, () => goToStep(number, [program.name, at])), step.time, step.kind === "kernel" ? "" : "other"]), ...(steps.length > 20 ? [[`${steps.length - 20} more`, rest]] : [])], duration));
  }
}

start();
