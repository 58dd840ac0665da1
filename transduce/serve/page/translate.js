// A translator: the n best translations of every line, and the decoder's attention.

import { askJSON, fill, h, roving, sendByKey, worker } from "./ask.js";

const AT_A_TIME = 4;
const PAUSE = 500; // milliseconds without a key, after which the text is translated

export function start(panel, runs) {
  const form = panel.querySelector("form");
  const results = panel.querySelector(".results");
  const [run, n, text] = ["run", "n", "text"].map((name) => panel.querySelector(`#translate-${name}`));
  const { work } = worker(panel);
  fill(run, runs);
  sendByKey(form);
  const send = (aloud) => work(async (signal, say) => {
    clearTimeout(timer);
    say(aloud ? "Translating ..." : "");
    results.replaceChildren();
    const best = await translated(run.value, text.value, Number(n.value), signal, results);
    if (aloud) say(`Translated: ${best.join(" ")}`, "aloud");
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(true);
  });
  let timer;
  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => form.checkValidity() && send(false), PAUSE);
  });
}

/** The best translation of every line; each is shown as soon as it comes, its attention map open or folded. */
export async function translated(run, text, nBest, signal, results, open = true) {
  const lines = text.split(/\r\n|\r|\n/).filter((line) => line.trim());
  const places = lines.map((line) => h("article", { class: "card" }, h("p", { class: "source" }, line)));
  const best = [];
  results.append(...places);
  let next = 0;
  const some = async () => {
    while (next < lines.length) {
      const i = next++;
      const { outputs } = await askJSON("page/translate", { model: run, line: lines[i], n_best: nBest }, { signal });
      best[i] = outputs[0].text;
      places[i].append(...ranked(outputs, open && lines.length === 1));
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, some));
  return best;
}

function ranked(outputs, open) {
  const looks = h("details", { open, class: "looks" }, h("summary", {}, "Where the decoder looked"), h("div"));
  const choose = (k) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === k)));
    looks.lastChild.replaceWith(picture(outputs[k]));
  };
  const buttons = outputs.map((output, k) => h("button", { type: "button", click: () => choose(k) }, output.text || "(nothing)"));
  choose(0);
  const rows = outputs.map((output, k) => h("li", {}, buttons[k], h("span", { class: "score" }, output.score.toFixed(2))));
  return [h("ol", { class: "ranked", role: "list", "aria-label": "Translations, the best first, with their scores" }, ...rows), looks];
}

/** Cross-attention as a table: a row for each target token, dark at source tokens with large weights. */
function picture({ attention }) {
  if (!attention) return h("p", { class: "hint" }, "There is no picture of this one: it is blank, very long, or of several runs.");
  const { source, target, weights, layer } = attention;
  const columns = source.map((token) => h("th", { scope: "col" }, h("span", {}, shown(token))));
  const heads = target.map((token) => h("th", { scope: "row" }, shown(token)));
  const readout = h("p", { class: "readout" }, "Point at a field, or go there with the arrow keys.");
  const cells = [];
  const rows = weights.map((row, t) => h("tr", {}, heads[t], ...row.map((weight, s) => {
    const label = `${shown(target[t])} looks at ${shown(source[s])}: ${Math.round(100 * weight)} %`;
    const look = () => {
      heads.forEach((each, i) => each.classList.toggle("on", i === t));
      columns.forEach((each, i) => each.classList.toggle("on", i === s));
      readout.textContent = label;
    };
    const cell = h("td", { "aria-label": label, pointermove: look, pointerdown: look, focus: look });
    cell.style.setProperty("--weight", weight);
    cells.push(cell);
    return cell;
  })));
  const table = h("table", { role: "grid", "aria-label": "Where the decoder looked: a row for each token written" },
    h("thead", {}, h("tr", {}, h("td", { role: "presentation" }), ...columns)), h("tbody", {}, ...rows));
  roving(table, cells, source.length);
  return h("div", {}, h("div", { class: "wide" }, table), readout,
    h("p", { class: "hint" }, `Rows were written, columns were read; layer ${layer + 1}, mean over its heads.`));
}

/** A token without the marks that tokenizers put for spaces. */
function shown(token) {
  return token.replace(/^[\u2581\u0120 ]+(?=.)/u, "").replace(/^[\u2581\u0120 ]+$/u, "\u2423");
}
