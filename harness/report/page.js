// The table of cells: filter, sort, turn pages, and unpack a cell's record when it is opened. Text from records is only
// ever set as text. Rows are elements while they are looked at, PAGE at a time, so that 20,000 cells cost what 100 do.
"use strict";
const PAGE = 100;
const data = JSON.parse(document.getElementById("cells-data").textContent);
const several = document.body.dataset.several === "yes";
const count = data.anchor.length;
const word = (name, row) => data.words[name].values[data.words[name].index[row]];
const texts = (name, row) => data.words[name] ? word(name, row) : data.figures[name] ? data.figures[name].text[row] : data[name][row];

const COLUMNS = [["cell_id", "cell"], ["run", "run"], ["model", "model"], ["label", "layout"], ["technique", "technique"],
  ["devices", "devices"], ["status", "status"], ["throughput", "throughput"], ["throughput_unit", "unit"], ["interval", "95 % interval"],
  ["step_seconds", "step"], ["peak_memory_bytes", "peak memory"], ["parity", "parity"], ["update_error", "update error"],
  ["caveat_words", "caveats"], ["reason", "reason"]].filter(([name]) => name !== "run" || several);
const NUMBERS = new Set([...Object.keys(data.figures), "interval"]);
const FILTERS = [["run", "Run"], ["model", "Model"], ["layout", "Layout"], ["precision", "Precision"], ["devices", "Devices"],
  ["status", "Status"]].filter(([name]) => name !== "run" || several);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// ---------------------------------------------------------------- what is shown, in which order

let searched = null;  // each row's words, made when someone first searches, so that the page need not wait for them
const wordsOfRows = () => searched ??= Array.from({ length: count }, (_, row) =>
  COLUMNS.map(([name]) => texts(name, row)).join(" ").toLowerCase());
const state = { shown: Array.from({ length: count }, (_, row) => row), page: 0, sort: null, up: true, open: new Set() };
const selects = {};
const search = make("input", { type: "search", id: "search", placeholder: "for example fsdp bf16" });
const said = make("output", { "aria-live": "polite", class: "faint", id: "said" });
const table = make("table", { id: "cells-table", "aria-describedby": "how" });
const body = make("tbody");
const previous = make("button", { type: "button" }, "Previous"), next = make("button", { type: "button" }, "Next");

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = Object.entries(selects).filter(([, select]) => select.value !== "");
  const rows = words.length ? wordsOfRows() : null;
  state.shown = [];
  for (let row = 0; row < count; row++)
    if (chosen.every(([name, select]) => texts(name, row) === select.value) && words.every(w => rows[row].includes(w)))
      state.shown.push(row);
  state.page = 0;
  order();
}

function order() {
  const name = state.sort, sign = state.up ? 1 : -1;
  if (name !== null) {
    const figures = data.figures[name === "interval" ? "throughput" : name];
    const ranks = figures ? figures.value : ranked(name);
    // Cells without a value stay last, whichever way the others are sorted.
    state.shown.sort((a, b) => {
      const x = ranks[a], y = ranks[b];
      return x === null || y === null ? (x === null) - (y === null) || a - b : sign * (x - y) || a - b;
    });
  }
  render();
}

function ranked(name) {
  const { values, index } = data.words[name];
  const collator = new Intl.Collator("en", { numeric: true });
  const places = [...values.keys()].sort((a, b) => collator.compare(values[a], values[b]));
  const rank = [];
  places.forEach((value, place) => { rank[value] = values[value] === "" ? null : place; });
  return index.map(value => rank[value]);
}

function render() {
  const pages = Math.max(1, Math.ceil(state.shown.length / PAGE));
  state.page = Math.min(state.page, pages - 1);
  const first = state.page * PAGE, here = state.shown.slice(first, first + PAGE);
  body.replaceChildren(...here.flatMap(row => state.open.has(row) ? [line(row), detailsRow(row)] : [line(row)]));
  said.textContent = state.shown.length === 0 ? `no cell of ${count.toLocaleString("en")} is like this`
    : `cells ${(first + 1).toLocaleString("en")} to ${(first + here.length).toLocaleString("en")} of ` +
      `${state.shown.length.toLocaleString("en")}` +
      (state.shown.length < count ? `, chosen from ${count.toLocaleString("en")}` : "");
  previous.disabled = state.page === 0;
  next.disabled = state.page === pages - 1;
}

function line(row) {
  const open = make("button", { type: "button", class: "open", "aria-expanded": state.open.has(row),
    "aria-controls": `details-${row}` }, make("code", {}, word("cell_id", row)));
  const cells = COLUMNS.map(([name]) => {
    if (name === "cell_id") return make("td", { class: "nowrap" }, open);
    const kind = NUMBERS.has(name) ? "number" : name === "status" ? `nowrap ${data.verified[row] ? "good" : "bad"}`
      : ["model", "technique", "run"].includes(name) ? "nowrap" : name;
    return make("td", { class: kind }, texts(name, row));
  });
  const element = make("tr", { class: "cell", id: data.anchor[row] }, ...cells);
  element.addEventListener("click", event => {
    if (getSelection().toString() === "" || event.target.closest("button")) toggle(row, element);
  });
  return element;
}

function toggle(row, element) {
  if (state.open.delete(row)) element.nextElementSibling.remove();
  else { state.open.add(row); element.after(detailsRow(row)); }
  element.querySelector("button.open").setAttribute("aria-expanded", state.open.has(row));
}

// ---------------------------------------------------------------- one cell

const unpacked = new Map();
async function record(row) {
  const place = data.place[row], pack = Math.floor(place / data.pack);
  if (!unpacked.has(pack)) {
    const bytes = Uint8Array.from(atob(document.getElementById(`pack-${pack}`).textContent.trim()), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(pack, new Response(stream).json());
  }
  return (await unpacked.get(pack))[place % data.pack];
}

function detailsRow(row) {
  const panel = make("div", { class: "cell-details", role: "region", "aria-label": `cell ${word("cell_id", row)}` }, "…");
  record(row).then(({ command, record }) => panel.replaceChildren(...details(command, record)))
    .catch(() => { panel.textContent = `This browser cannot unpack it; hpbench explain RUN ${word("cell_id", row)} tells it.`; });
  return make("tr", { id: `details-${row}` }, make("td", { colspan: COLUMNS.length }, panel));
}

const part = (title, ...children) => make("section", {}, make("h4", {}, title), ...children);
const pairs = entries => make("table", { class: "plain" }, make("tbody", {}, ...entries.map(entry =>
  make("tr", {}, ...entry.map((text, i) => make("td", i ? {} : { class: "nowrap" }, text === null ? "–" : String(text)))))));
const plainly = value => value !== null && typeof value === "object" ? JSON.stringify(value) : value;

function details(command, record) {
  const found = [make("h4", {}, `${record.cell.model} ${record.cell.layout}: ${record.status}` +
    (record.phase ? ` in phase ${record.phase}` : "") + (record.failed_rank !== null ? ` on rank ${record.failed_rank}` : ""))];
  if (record.reason) found.push(make("pre", { class: "reason" }, record.reason));
  found.push(part("To repeat it", make("pre", { class: "command" }, command)));
  const parts = [];
  const { step_seconds: timed, warmup_seconds: warmup } = record.samples;
  if (timed.length) parts.push(part("Samples", strip(warmup, timed),
    make("p", { class: "faint" }, `${timed.length} timed steps, after ${warmup.length} of warm-up (grey); the line is the ` +
      `median of the timed ones. From ${Math.min(...timed)} to ${Math.max(...timed)} s.`)));
  const check = record.verification;
  if (check) parts.push(part("Verification", pairs([["verdict", check.verdict], ...(check.why ? [["why", check.why]] : []),
    ["against", `${check.model}, single device ${check.reference}`],
    ...[["loss", "max_relative_loss_error", "loss"], ["gradient norm", "max_relative_gradient_norm_error", "gradient_norm"],
      ["parameter update", "max_update_error", "update"]].map(([name, key, limit]) =>
      [`${name} error`, `${check[key] ?? "–"} (tolerance ${check.tolerance[limit] ?? "–"})`]),
    ["worst parameter", check.worst_parameter], ["losses", check.losses.join(", ")],
    ["reference losses", check.reference_losses.join(", ")]])));
  if (record.observed) parts.push(part("Observed", pairs(Object.entries(record.observed)
    .flatMap(([name, value]) => name === "dtypes" ? Object.entries(value).map(([what, dtype]) => [`dtype of ${what}`, dtype])
      : [[name, plainly(value)]]))));
  const metrics = Object.entries(record.metrics);
  if (metrics.length && data.verified !== undefined) parts.push(part(record.status === "ok" ? "Figures"
    : "Figures, of a cell that was not verified", pairs(metrics.map(([name, metric]) => [name,
    `${metric.value} ${metric.unit}` + (metric.low !== null ? ` (95 % ${metric.low} to ${metric.high})` : "")]))));
  parts.push(part("Environment", make("p", {}, "id ", make("code", {}, record.environment_id), ", run ",
    make("code", {}, record.run_id), `, ended ${record.time}; `, make("a", { href: "#environment" }, "all of it")),
    ...(record.caveats.length ? [make("ul", {}, ...record.caveats.map(caveat => make("li", {}, caveat)))] : [])));
  if (Object.keys(record.durations).length) parts.push(part("Seconds the harness spent", pairs(Object.entries(record.durations))));
  found.push(make("div", { class: "parts" }, ...parts));
  if (record.log_tail) found.push(part("Last lines of its log", make("pre", { class: "log" }, record.log_tail)));
  return found;
}

function strip(warmup, timed) {
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const all = [...warmup, ...timed].filter(Number.isFinite), top = Math.max(...all), low = Math.min(...all);
  const x = i => 6 + 628 * i / Math.max(1, all.length - 1), y = value => top === low ? 32 : 58 - 52 * (value - low) / (top - low);
  const ordered = [...timed].sort((a, b) => a - b), middle = ordered.length >> 1;
  const median = ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
  const picture = svg("svg", { class: "strip", viewBox: "0 0 640 64", role: "img", "aria-label": `step times, median ${median} s` });
  picture.append(svg("line", { x1: 0, x2: 640, y1: 63, y2: 63 }),
    svg("line", { class: "middle", x1: x(warmup.length), x2: 634, y1: y(median), y2: y(median) }),
    ...all.map((value, i) => svg("circle", { class: i < warmup.length ? "warmup" : "timed", cx: x(i), cy: y(value), r: 3 })));
  return picture;
}

// ---------------------------------------------------------------- set up

for (const [name, label] of FILTERS) {
  const values = [...new Set(Array.from({ length: count }, (_, row) => texts(name, row)))]
    .sort(new Intl.Collator("en", { numeric: true }).compare);
  selects[name] = make("select", { id: `filter-${name}` }, make("option", { value: "" }, "all"),
    ...values.map(value => make("option", { value }, value)));
  selects[name].addEventListener("change", filter);
}
const reset = make("button", { type: "button", id: "reset" }, "Show all");
const clear = () => { search.value = ""; for (const select of Object.values(selects)) select.value = ""; };
reset.addEventListener("click", () => { clear(); filter(); });
search.addEventListener("input", filter);
previous.addEventListener("click", () => { state.page--; render(); });
next.addEventListener("click", () => { state.page++; render(); });
table.append(make("thead", {}, make("tr", {}, ...COLUMNS.map(([name, label]) => {
    const button = make("button", { type: "button" }, label);
    const head = make("th", { scope: "col", class: NUMBERS.has(name) ? "number" : "", "data-name": name }, button);
    button.addEventListener("click", () => {
      state.up = state.sort === name ? !state.up : true;
      state.sort = name;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      state.page = 0;
      order();
    });
    return head;
  }))), body);
document.getElementById("cells-here").replaceChildren(
  make("div", { class: "filters", role: "search" }, ...FILTERS.map(([name, label]) => make("label", {}, label, selects[name])),
    make("label", { class: "search" }, "Containing", search), reset),
  make("p", { class: "faint", id: "how" }, "A cell's first column opens it; a column's head sorts."),
  make("div", { class: "pager" }, previous, next, said), make("div", { class: "wide", tabindex: "0" }, table));
filter();

function follow() {
  const row = data.anchor.indexOf(decodeURIComponent(location.hash.slice(1)));
  if (row < 0) return;
  if (!state.shown.includes(row)) { clear(); filter(); }
  state.page = Math.floor(state.shown.indexOf(row) / PAGE);
  state.open.add(row);
  render();
  const element = document.getElementById(data.anchor[row]);
  element.scrollIntoView();
  element.querySelector("button.open").focus({ preventScroll: true });
}
addEventListener("hashchange", follow);
follow();
