// The record of a training, which may still be running: learning curves, scores, and samples over time.

import { askJSON, h, worker } from "./ask.js";

const PAUSE = 5000; // milliseconds until the record is read again
const [WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP] = [400, 240, 46, 20, 34, 12];

/** Return a function that shows the record of the chosen run; takes the names of all runs, and the runs that generate text. */
export function start(panel, names, writers) {
  const select = panel.querySelector("select");
  const results = panel.querySelector(".results");
  const { work } = worker(panel);
  select.replaceChildren(...names.map((name) => h("option", {}, name)));
  let shown = "";
  const show = () => work(async (signal, say) => {
    if (!shown) say("Reading ...");
    const record = await askJSON(`page/runs/${encodeURIComponent(select.value)}`, null, { signal });
    const state = JSON.stringify([select.value, record]);
    if (state === shown) return say(""); // clears an earlier error
    shown = state;
    const { progress, curves, samples } = record;
    const scores = Object.entries(record.scores).flatMap(([data, rows]) => rows.map((row) => ({ data, ...row })));
    const compare = writers.every((run) => run.name !== select.value);
    const parts = [
      ["Progress", progress],
      ["Learning curve", curves.length && h("div", { class: "charts" }, ...curves.map(chart))],
      ["Scores on held-out data", scores.length && scoreTable(scores)],
      ["Samples over time", samples.length && h("div", {}, ...samples.map((sample) => history(sample, compare)))],
    ].filter(([, part]) => part);
    results.replaceChildren(...parts.map(([name, part]) => h("section", { class: "card" }, h("h2", {}, name), part)));
    say(parts.length ? "" : "The directory of this run has no record of its training.");
  });
  select.addEventListener("change", show);
  setInterval(() => panel.hidden || document.hidden || panel.hasAttribute("aria-busy") || show(), PAUSE);
  return show;
}

function number(value) {
  return Math.abs(value) >= 10000 ? value.toLocaleString("en") : String(Number(value.toPrecision(3)));
}

/** About n round numbers; the first is at most low, and the last at least high. */
function ticks(low, high, n) {
  const rough = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const first = Math.floor(low / step);
  return Array.from({ length: Math.ceil(high / step) - first + 1 }, (_, i) => (first + i) * step);
}

function chart({ label, training, validation }) {
  const all = [...training, ...validation];
  const [updates, values] = [0, 1].map((k) => all.map((point) => point[k]));
  const last = Math.max(...updates);
  const levels = ticks(Math.min(...values), Math.max(...values), 5);
  const [low, high] = [levels[0], levels.at(-1)];
  const x = (update) => LEFT + (update / last) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low || 1)) * (HEIGHT - TOP - BOTTOM);
  const line = (points, kind) => h("svg:polyline", { class: kind, points: points.map(([u, v]) => `${x(u)},${y(v)}`).join(" ") });
  const dots = validation.map(([u, v]) => h("svg:circle", { class: "validation", cx: x(u), cy: y(v), r: 2.5 }));
  const text = (at, attributes) => h("svg:text", attributes, number(at));
  const axes = [
    ...levels.flatMap((at) => [
      h("svg:line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(at), y2: y(at) }),
      text(at, { x: LEFT - 6, y: y(at) + 4, "text-anchor": "end" }),
    ]),
    ...ticks(0, last, 5).filter((at) => at <= last).map((at) => text(at, { x: x(at), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" })),
  ];
  const ends = validation.length ? `validation from ${number(validation[0][1])} to ${number(validation.at(-1)[1])}` : "training only";
  const cursor = h("svg:line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const readout = h("p", { class: "readout" }, `${label} against updates`);
  const points = validation.length ? validation : training;
  const look = (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const [update, value] = points.reduce((best, each) => (Math.abs(x(each[0]) - at) < Math.abs(x(best[0]) - at) ? each : best));
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, x(update));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `${label}: ${number(value)} at update ${update.toLocaleString("en")}`;
  };
  const svg = h("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", pointermove: look, pointerdown: look,
    "aria-label": `${label}: ${ends}, ${number(last)} updates` },
    ...axes, cursor, line(training, "training"), line(validation, "validation"), ...dots);
  const legend = training.length > 0 && h("p", { class: "legend" },
    h("span", { class: "training" }, "training"), h("span", { class: "validation" }, "validation"));
  const table = h("details", {}, h("summary", {}, "As a table"),
    h("table", { class: "plain" }, h("thead", {}, header("update", label)),
      h("tbody", {}, ...validation.map(([u, v]) => h("tr", {}, h("td", {}, number(u)), h("td", {}, number(v)))))));
  return h("figure", {}, h("figcaption", {}, label), svg, ...(legend ? [legend] : []), readout, ...(validation.length ? [table] : []));
}

function header(...names) {
  return h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)));
}

function scoreTable(scores) {
  const bounded = scores.some(({ low }) => low !== null);
  const rows = scores.map(({ data, search, measure, value, low, high, group, score }) => h("tr", {},
    h("td", {}, [data, search, group].filter((each) => each).join(", ")), h("td", { title: score }, measure),
    h("td", {}, number(value)),
    ...(bounded ? [h("td", {}, low === null || high === null ? "" : `${number(low)} to ${number(high)}`)] : [])));
  return h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Scores" }, h("table", { class: "plain" },
    h("thead", {}, header("data", "measure", "score", ...(bounded ? ["95 % interval"] : []))), h("tbody", {}, ...rows)));
}

/** A sample and its outputs; words outside the longest common subsequence with the reference are marked. */
function history({ source, reference, outputs }, compare) {
  const rows = outputs.map(([update, text]) => h("tr", {}, h("th", { scope: "row" }, number(update)),
    h("td", {}, ...(compare ? marked(text, reference) : [text]))));
  return h("article", {}, h("h3", {}, source),
    h("p", {}, h("span", { class: "hint" }, compare ? "reference: " : "original: "), reference),
    h("table", { class: "plain outputs" }, h("thead", {}, header("update", "output")), h("tbody", {}, ...rows)));
}

function marked(text, reference) {
  const [words, right] = [text, reference].map((each) => each.split(/\s+/));
  // common[i][j]: the longest common subsequence of the words from i and the reference's words from j
  const common = Array.from({ length: words.length + 1 }, () => new Array(right.length + 1).fill(0));
  for (let i = words.length - 1; i >= 0; i--)
    for (let j = right.length - 1; j >= 0; j--)
      common[i][j] = words[i] === right[j] ? 1 + common[i + 1][j + 1] : Math.max(common[i + 1][j], common[i][j + 1]);
  const parts = [];
  let j = 0;
  words.forEach((word, i) => {
    while (j < right.length && words[i] !== right[j] && common[i][j + 1] >= common[i + 1][j] && common[i][j + 1] === common[i][j]) j++;
    const hit = j < right.length && word === right[j];
    if (hit) j++;
    parts.push(hit ? word : h("mark", {}, word), " ");
  });
  return parts;
}
