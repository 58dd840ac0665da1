// Text generation: shows the continuation of a prompt as it is generated.

import { ask, copier, events, fill, h, sendByKey, worker } from "./ask.js";

export function start(panel, runs, limits) {
  const form = panel.querySelector("form");
  const written = panel.querySelector(".written");
  const halt = panel.querySelector("#stop");
  const [run, temperature, tokens, prompt] =
    ["run", "temperature", "tokens", "prompt"].map((name) => panel.querySelector(`#generate-${name}`));
  const { work, say, stop } = worker(panel);
  fill(run, runs);
  tokens.max = limits.max_tokens;
  tokens.value = Math.min(tokens.value, limits.max_tokens);
  sendByKey(form);
  const copy = copier(() => written.textContent);
  copy.disabled = true;
  form.lastElementChild.append(copy);
  halt.addEventListener("click", () => {
    stop();
    halt.disabled = true;
    say("Stopped.");
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    work(async (signal, tell) => {
      tell("Writing ...");
      halt.disabled = false;
      written.hidden = false;
      copy.disabled = false;
      let reason;
      const text = document.createTextNode("");
      written.replaceChildren(h("span", { class: "prompt" }, prompt.value), text);
      const body = { model: runs[run.value].name, prompt: prompt.value, temperature: Number(temperature.value),
        max_tokens: Number(tokens.value), stream: true };
      const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
      try {
        for await (const event of events(await ask("v1/completions", options))) {
          if (event.error) throw new Error(event.error.message);
          text.data += event.choices[0].text;
          reason = event.choices[0].finish_reason;
        }
        tell(reason === "stop" ? "The text ended by itself." : "Stopped at the token limit.");
      } finally {
        if (!signal.aborted) halt.disabled = true; // else the next request may be running
      }
    });
  });
}
