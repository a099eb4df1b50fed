"use strict";
// Runs the scripts of a report on a few objects that stand for a page: node without_browser.js DATA HASH SCRIPT...
// Prints which view is shown at the start, after a click on a tab, and after following a link.
const fs = require("fs");
const [data, hash, ...scripts] = process.argv.slice(2);
const ids = {}, heard = {};

class Element {
  constructor() { Object.assign(this, { attributes: {}, children: [], listeners: {}, style: {}, hidden: false, text: null }); this.classList = { add() {}, remove() {} }; }
  setAttribute(name, value) { this.attributes[name] = value; if (name === "id") ids[value] = this; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  append(...children) { this.children.push(...children); }
  replaceChildren() { this.children = []; }
  get firstChild() { return this.children[0]; }
  get textContent() { return this.text ?? this.children.map((child) => child.textContent ?? child).join(" "); }
  set textContent(text) { this.text = text; }
}

let address = hash;
globalThis.document = { getElementById: (id) => (ids[id] ??= new Element()), createElement: () => new Element(), querySelectorAll: () => [], documentElement: {} };
globalThis.window = { addEventListener: (name, listener) => { heard[name] = listener; } };
globalThis.location = { get hash() { return address; }, set hash(name) { address = "#" + name; setTimeout(() => heard.hashchange()); } };
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
// The drawing of graphs is not what this is about.
document.getElementById("data").text = fs.readFileSync(data, "utf8");
const program = scripts.map((path) => fs.readFileSync(path, "utf8")).join("\n").replace("function drawGraphs(", "function drawGraphs() {} function drawGraphsReally(");
(0, eval)(program.replace('"use strict";', ""));

const shown = () => ["overview", "source", "graphs", "kernels", "memory", "guards", "time"].filter((name) => !ids["view-" + name].hidden);
const found = { start: shown(), overview: ids["view-overview"].textContent, href: ids["tab-memory"].attributes.href };
ids["tab-guards"].listeners.click({});
found.clicked = [shown(), address];
location.hash = "time";
setTimeout(() => { found.followed = shown(); process.stdout.write(JSON.stringify(found)); }, 20);
