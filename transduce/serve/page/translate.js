// Translation: the n best translations of every line, and the decoder's attention.

import { askJSON, copier, fill, h, roving, sendByKey, worker } from "./ask.js";

const AT_A_TIME = 4;
const PAUSE = 500; // milliseconds after the last key press until the text is translated

export function start(panel, runs, records) {
  const form = panel.querySelector("form");
  const results = panel.querySelector(".results");
  const [run, n, text, best] = ["run", "n", "text", "best"].map((name) => panel.querySelector(`#translate-${name}`));
  const { work, say, stop } = worker(panel);
  const copy = copier(() => best.textContent);
  const show = (lines) => {
    best.textContent = lines.join("\n");
    best.lang = runs[run.value].target;
    copy.disabled = !best.textContent;
  };
  fill(run, runs);
  sendByKey(form);
  form.lastElementChild.append(copy);
  const send = (aloud) => work(async (signal, tell) => {
    clearTimeout(timer);
    tell(aloud ? "Translating ..." : "");
    results.replaceChildren();
    if (aloud) show([]); // after a pause in typing, the last translation stays until there is a new one
    try {
      const lines = await translated(runs[run.value], text.value, 1 + Number(n.value), signal, results, show);
      if (aloud) tell(`Translated: ${lines.join(" ")}`, "aloud");
    } catch (error) {
      if (!signal.aborted && !results.querySelector(".ranked")) show([]);
      throw error;
    }
  });
  /** Without text, offer examples from the run's held-out data. */
  const offer = async () => {
    clearTimeout(timer);
    stop();
    say("");
    show([]);
    results.replaceChildren();
    const { name } = runs[run.value];
    const path = `page/runs/${encodeURIComponent(name)}`;
    const { samples } = records.includes(name) ? await askJSON(path).catch(() => ({ samples: [] })) : { samples: [] };
    if (text.value.trim() || results.childElementCount || !samples.length) return;
    const tries = samples.slice(0, 3).map(({ source }) => h("button", { type: "button", click: () => {
      text.value = source;
      send(true);
    } }, source));
    results.append(h("p", { class: "hint" }, "For example:"), h("div", { class: "examples" }, ...tries));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (text.value.trim()) send(true);
    else say("There is no text to translate.", "error");
  });
  let timer;
  const changed = () => {
    clearTimeout(timer);
    if (!text.value.trim()) offer();
    else timer = setTimeout(() => form.checkValidity() && send(false), PAUSE);
  };
  for (const each of [text, run, n]) each.addEventListener("input", changed);
  offer();
}

/**
 * The best translation of every line, "" for a blank one; each is shown as soon as it arrives, with its attention map
 * open or folded. `show` gets all of them whenever one arrives, or another one is chosen.
 */
export async function translated(run, text, nBest, signal, results, show = () => {}, open = true) {
  const lines = text.split(/\r\n|\r|\n/);
  const places = lines.map((line) => line.trim() && h("article", { class: "card" }, h("p", { class: "source", dir: "auto" }, line)));
  const best = lines.map(() => "");
  results.append(...places.filter((place) => place));
  let next = 0;
  const some = async () => {
    while (next < lines.length) {
      const i = next++;
      if (!places[i]) continue;
      const { name, source, target } = run;
      const body = { model: name, source, target, line: lines[i], n_best: nBest };
      const { outputs } = await askJSON("page/translate", body, { signal });
      const chosen = ({ text }) => {
        best[i] = text;
        show(best);
      };
      places[i].append(...ranked(outputs, open && results.childElementCount === 1, chosen));
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, some));
  return best;
}

function ranked(outputs, open, chosen) {
  const drawn = outputs.some((output) => "attention" in output);
  const looks = h("details", { open, class: "looks" }, h("summary", {}, "Cross-attention"), h("div"));
  const choose = (k) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === k)));
    if (drawn) looks.lastChild.replaceWith(picture(outputs[k]));
    chosen(outputs[k]);
  };
  const buttons = outputs.map((output, k) => h("button", { type: "button", click: () => choose(k) }, output.text || "(nothing)"));
  choose(0);
  const rows = outputs.map((output, k) => h("li", {}, buttons[k], h("span", { class: "score" }, output.score.toFixed(2))));
  const list = h("ol", { class: "ranked", role: "list", "aria-label": "Translations, the best first, with their scores" }, ...rows);
  return drawn ? [list, looks] : [list];
}

/** Cross-attention as a table: a row for each target token, dark at source tokens with large weights. */
function picture({ attention }) {
  if (!attention) return h("p", { class: "hint" }, "There is no attention map for this translation: it is blank, very long, or made by an ensemble.");
  const { source, target, weights, layer } = attention;
  const columns = source.map((token) => h("th", { scope: "col" }, h("span", {}, shown(token))));
  const heads = target.map((token) => h("th", { scope: "row" }, shown(token)));
  const readout = h("p", { class: "readout" }, "Point at a cell, or move to it with the arrow keys.");
  const cells = [];
  const rows = weights.map((row, t) => h("tr", {}, heads[t], ...row.map((weight, s) => {
    const label = `${shown(target[t])} attends to ${shown(source[s])}: ${Math.round(100 * weight)} %`;
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
  const table = h("table", { role: "grid", "aria-label": "Cross-attention: a row for each target token" },
    h("thead", {}, h("tr", {}, h("td", { role: "presentation" }), ...columns)), h("tbody", {}, ...rows));
  roving(table, cells, source.length);
  return h("div", {}, h("div", { class: "wide" }, table), readout,
    h("p", { class: "hint" }, `Rows are target tokens, columns are source tokens; layer ${layer + 1}, mean over its heads.`));
}

/** A token without the marks by which tokenizers show spaces. */
function shown(token) {
  return token.replace(/^[\u2581\u0120 ]+(?=.)/u, "").replace(/^[\u2581\u0120 ]+$/u, "\u2423");
}
