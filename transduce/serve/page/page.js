// The page, with a tab for each task of the server's runs.

import { askJSON, h, roving, useToken } from "./ask.js";
import * as generate from "./generate.js";
import * as run from "./run.js";
import * as speech from "./speech.js";
import * as translate from "./translate.js";

const NAMES = { translate: "Translate", transcribe: "Transcribe", generate: "Generate", runs: "Training" };
const find = (id) => document.getElementById(id);

async function open() {
  const [form, trouble] = [find("token"), find("trouble")];
  try {
    const info = await askJSON("page/runs");
    form.hidden = trouble.hidden = true;
    show(info);
  } catch (error) {
    const locked = error.status === 401;
    trouble.hidden = locked && form.hidden; // at first the token is only requested
    trouble.textContent = locked ? "This token is wrong." : error.message;
    if (locked) form.hidden = false;
    if (locked) find("token-text").focus();
  }
}

function show({ runs, records, ...limits }) {
  const [translators, speakers, writers] =
    ["translate", "transcribe", "generate"].map((does) => runs.filter((each) => each.does === does));
  const opened = {};
  if (translators.length) translate.start(find("translate"), translators, records);
  if (speakers.length) speech.start(find("transcribe"), speakers, translators, limits);
  if (writers.length) generate.start(find("generate"), writers, limits);
  if (records.length) opened.runs = run.start(find("runs"), records, writers);
  const names = Object.keys(NAMES).filter((name) => (name === "runs" ? records.length : runs.some((each) => each.does === name)));
  const tabs = names.map((name) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": name,
    click: () => choose(name) }, NAMES[name]));
  find("tabs").replaceChildren(...tabs);
  roving(find("tabs"), tabs);
  const choose = (name) => {
    tabs.forEach((tab, i) => tab.setAttribute("aria-selected", String(names[i] === name)));
    names.forEach((each) => { find(each).hidden = each !== name; });
    history.replaceState(null, "", `#${name}`);
    opened[name]?.();
  };
  const wanted = location.hash.slice(1);
  choose(names.includes(wanted) ? wanted : names[0]);
}

find("token").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(find("token-text").value.trim());
  open();
});
open();
