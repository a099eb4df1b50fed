"use strict";
// The page of a report: reads the data beside it, draws a view when it is first opened, and links the views to each
// other. Here are the frame, the overview and the source; graphs, kernels and figures are in files of their own.
const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
const link = (text, onclick, attributes = {}) => make("button", { class: "link", type: "button", onclick, ...attributes }, text);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// A colour of the page with a part of another in it.
const mixed = (one, other, part) => {
  const numbers = (name) => { const text = color(name).slice(1), step = text.length / 3; return [0, 1, 2].map((at) => parseInt(text.slice(at * step, (at + 1) * step).repeat(3 - step), 16)); };
  const [a, b] = [numbers(one), numbers(other)];
  return `rgb(${a.map((each, at) => Math.round(each * (1 - part) + b[at] * part)).join(",")})`;
};
const bytes = (count) => {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (count >= size) return (count / size).toFixed(count >= 10 * size ? 0 : 1) + " " + unit;
  return Math.round(count) + " B";
};
const duration = (nanoseconds) => {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6]])
    if (nanoseconds >= size) return (nanoseconds / size).toFixed(nanoseconds >= 100 * size ? 0 : 2) + " " + unit;
  return (nanoseconds / 1e3).toFixed(1) + " µs";
};
const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const short = (path) => path.split("/").slice(-2).join("/");
const sentence = (text) => /^[a-z]+[ ,]/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text; // code stays
// Versions of one function break at the same place: once is enough.
const distinct = (breaks) => [...new Map(breaks.map((each) => [`${each.file}:${each.line}:${each.reason}`, each])).values()];
const none = () => make("p", { class: "quiet" }, "none");

const views = {
  overview: ["Overview", drawOverview], source: ["Source", drawSource], graphs: ["Graphs", drawGraphs],
  kernels: ["Kernels", drawKernels], memory: ["Memory", drawMemory], guards: ["Guards", drawGuards], time: ["Time", drawTime],
};
const drawn = new Set();

// The view that the address names, `#graphs`: a link to it opens there, and the way back leads through the views.
const named = () => { const name = location.hash.slice(1); return Object.hasOwn(views, name) ? name : null; };

function show(name) {
  if ((named() ?? "overview") !== name) location.hash = name;
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
  for (const [name, [title]] of Object.entries(views))
    by("tabs").append(make("a", { id: "tab-" + name, href: "#" + name, role: "tab", "aria-controls": "view-" + name, onclick: (event) => { if (!event.ctrlKey && !event.metaKey && !event.shiftKey) show(name); } }, title));
  window.addEventListener("hashchange", () => show(named() ?? "overview"));
  by("tabs").addEventListener("keydown", (event) => {
    const names = Object.keys(views), at = names.findIndex((name) => by("tab-" + name) === document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    const name = names[(next + names.length) % names.length];
    show(name); by("tab-" + name).focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { recolorGraph(); if (drawn.has("memory")) drawMemory(by("view-memory")); });
  show(named() ?? "overview");
}

// A link to a line of the program; null if it is not known.
function place(file, line) {
  return file === undefined || file === null ? null : link(`${short(data.files[file].path)}:${line}`, () => goToLine(file, line));
}
const lineText = (file, line) => data.files[file].lines[line - data.files[file].first];
// The same with what stands there.
const quoted = (file, line) => make("li", {}, place(file, line), make("code", { class: "quote" }, (lineText(file, line) ?? "").trim()));

// One advice: what to change, then each reason with links to the lines it is for.
function advised({ hint, causes }) {
  const reasons = new Map();
  for (const each of causes) reasons.set(each.reason, [...(reasons.get(each.reason) || []), each]);
  const rows = [...reasons].map(([reason, places]) => make("div", {}, make("span", { class: "quiet" }, reason),
    make("ul", {}, ...places.map((each) => make("li", {}, place(each.file, each.line), each.code ? make("code", { class: "quote" }, each.code) : null)))));
  return make("li", {}, make("b", {}, sentence(hint)), ...rows);
}

const most = (points) => points.reduce((high, [, size]) => Math.max(high, size), 0);
function meter(rows) {
  const high = Math.max(1, ...rows.map(([, size]) => size));
  return make("div", { class: "meter" }, ...rows.flatMap(([name, size, kind]) => [make("span", { class: "quiet" }, name),
    make("span", { class: "track" }, make("i", { class: kind, style: `width:${100 * size / high}%` })), make("span", {}, bytes(size))]));
}

function drawOverview(view) {
  view.append(make("h2", {}, "What to change"));
  view.append(data.advice.length ? make("ol", {}, ...data.advice.map(advised)) : make("p", { class: "quiet" }, "Nothing: no break, no recompile, and little is saved for the backward."));
  view.append(make("h2", {}, "Graphs and their stages"));
  if (!data.graphs.length) view.append(none());
  data.graphs.forEach((graph, number) => view.append(card(graph, number)));
  view.append(make("h2", {}, "Graph breaks"));
  if (!data.breaks.length) view.append(none());
  for (const each of distinct(data.breaks))
    view.append(make("p", {}, make("b", { class: "warn" }, each.code + " "), each.reason + " ", place(each.file, each.line)));
  if (data.left.length) view.append(make("h2", {}, "Not captured"), make("ul", {}, ...[...new Set(data.left)].map((text) => make("li", {}, text))));
  view.append(make("h2", {}, "Recompiles"), recompiles());
}

// One graph: its stages in order, each a way into the drawing, and what it takes at its peak.
function card(graph, number) {
  const flow = make("div", { class: "flow" });
  graph.stages.forEach((stage, at) => {
    const program = graph.programs.find((each) => each.name === stage.name), count = stage.nodes.filter((node) => node.op !== "placeholder" && node.op !== "output").length;
    const kernels = program ? program.steps.filter((step) => step.kind === "kernel").length : 0;
    const words = program ? `${many(kernels, "kernel")} · ${many(count - kernels, "library call")}` : "operators";
    if (at) flow.append(make("span", { class: "to", "aria-hidden": "true" }, "→"));
    flow.append(make("button", { type: "button", onclick: () => openGraph(number, at) }, make("small", {}, stage.name), make("b", {}, String(count)), make("small", {}, words)));
  });
  const rows = graph.memory.ours.length ? [["smelt at its peak", most(graph.memory.ours), ""]] : [];
  if (graph.memory.eager.length) rows.push(["eager at its peak", most(graph.memory.eager), "other"]);
  if (graph.saved_bytes) rows.push(["saved for backward", graph.saved_bytes, ""]);
  const first = Object.keys(graph.lines)[0];
  return make("div", { class: "card" }, make("h3", {}, `${number + 1}: ${graph.function}`, first ? place(Number(first), graph.lines[first][0]) : null), flow, rows.length ? meter(rows) : null);
}

function recompiles() {
  if (!data.recompiles.length) return none();
  const heads = ["function", "version", "because", "what to change"].map((text) => make("th", {}, text));
  return make("div", { class: "scroll" }, make("table", {}, make("tr", {}, ...heads), ...data.recompiles.map((each) => make("tr", {},
    make("td", {}, make("code", {}, each.function), " ", place(each.file, each.line)), make("td", {}, String(each.version)), make("td", {}, each.reason), make("td", {}, each.hint)))));
}

const opened = []; // per file: a function that draws it and yields its rows by number

function drawSource(view) {
  const inside = new Map(); // "file:line" → graphs that compute it
  data.graphs.forEach((graph, number) => { for (const [file, lines] of Object.entries(graph.lines)) for (const line of lines) { const key = file + ":" + line; inside.set(key, [...(inside.get(key) || []), number]); } });
  view.append(make("nav", { class: "files", "aria-label": "Files" }, ...data.files.map((file, number) => link(short(file.path), () => opened[number]().box.scrollIntoView()))));
  data.files.forEach((file, number) => {
    const box = make("details", { class: "plain" }, make("summary", {}, make("b", {}, short(file.path)), " ", make("span", { class: "quiet" }, file.path)));
    let rows = null;
    opened.push(() => {
      if (rows === null) { const made = sourceRows(file, number, inside); rows = made.rows; box.append(made.text); }
      box.open = true;
      return { box, rows };
    });
    box.addEventListener("toggle", () => { if (box.open) opened[number](); });
    view.append(box);
    if (!file.library || number === 0) opened[number]();
  });
}

// The lines of a file, those far from anything captured folded away.
function sourceRows(file, number, inside) {
  const rows = new Map(), text = make("div", { class: "source code" }), breaks = distinct(data.breaks).filter((each) => each.file === number);
  const marked = new Set(breaks.map((each) => each.line));
  file.lines.forEach((line, at) => { if (inside.has(number + ":" + (file.first + at))) marked.add(file.first + at); });
  const near = (at) => { for (let other = at - 6; other <= at + 4; other++) if (marked.has(other)) return true; return false; };
  let folded = null, count = 0;
  file.lines.forEach((line, at) => {
    const here = file.first + at, graphs = inside.get(number + ":" + here) || [], broken = breaks.filter((each) => each.line === here);
    const chips = graphs.slice(0, 3).map((graph) => make("button", { class: "chip", type: "button", onclick: () => findIn(graph, `${short(file.path)}:${here}`) }, `graph ${graph + 1}`));
    const row = make("div", { class: (graphs.length ? `in${graphs[0] % 4} ` : "") + (broken.length ? "broken" : "") },
      make("span", { class: "number" }, String(here)), make("span", {}, line || " "), make("span", {}, ...chips));
    rows.set(here, row);
    if (near(here)) { folded = null; text.append(row); }
    else {
      if (folded === null) { count = 0; folded = make("details", { class: "gap" }, make("summary", {}, "")); text.append(folded); }
      folded.append(row);
      folded.firstChild.textContent = many(++count, "line");
    }
    for (const each of broken)
      text.append(make("div", { class: "broken" }, make("span", { class: "number" }), make("span", { class: "why" }, `${each.code}: ${each.reason}. ${sentence(each.hint)}.`)));
  });
  return { rows, text };
}

function goToLine(file, line) {
  show("source");
  document.querySelectorAll(".source .here").forEach((row) => row.classList.remove("here"));
  const row = opened[file]().rows.get(line);
  if (row) { row.closest("details.gap")?.setAttribute("open", ""); row.classList.add("here"); row.scrollIntoView({ block: "center" }); }
}
