// Requests to the server, and HTML elements for its answers: text becomes a text node, never markup.

let token = "";

export function useToken(text) {
  token = text;
}

/** Send a request and return the response; an Error has the server's message and status. */
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached; it may have stopped, or the network is down.");
  }
  if (!response.ok) {
    const { error } = await response.json().catch(() => ({ error: response.statusText }));
    throw Object.assign(new Error(error.message ?? error), { status: response.status });
  }
  return response;
}

export async function askJSON(path, body, options = {}) {
  const posted = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return (await ask(path, body ? { ...posted, ...options } : options)).json();
}

/** The objects of a stream of server-sent events. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n\n");
    held = lines.pop();
    for (const line of lines) {
      const data = line.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/** Make an element with attributes (functions become listeners) and children, which may be texts. */
export function h(tag, attributes = {}, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Let the Tab key stop at one of the items only; arrow keys, Home and End move between them. */
export function roving(container, items, columns = 1) {
  const stop = (item) => items.forEach((each) => { each.tabIndex = each === item ? 0 : -1; });
  stop(items[0]);
  container.addEventListener("focusin", (event) => items.includes(event.target) && stop(event.target));
  container.addEventListener("keydown", (event) => {
    const i = items.indexOf(event.target);
    const row = columns > 1 ? columns : items.length;
    const first = i - (i % row);
    const to = {
      ArrowRight: i + 1, ArrowLeft: i - 1, ArrowDown: i + columns, ArrowUp: i - columns,
      Home: event.ctrlKey ? 0 : first, End: event.ctrlKey ? items.length - 1 : first + row - 1,
    }[event.key];
    if (i < 0 || to === undefined) return;
    event.preventDefault();
    items[to]?.focus();
  });
}

/** Ctrl+Enter in a text field submits its form. */
export function sendByKey(form) {
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}

/**
 * Run the tasks of a panel, one at a time: a new one aborts the last. The panel's status shows progress and errors
 * (kind "error"); a text of the kind "aloud" is for screen readers only.
 */
export function worker(panel) {
  const status = panel.querySelector(".status");
  let last;
  const say = (text, kind = "") => {
    status.className = `status ${kind}`;
    status.textContent = text;
  };
  const work = async (task) => {
    last?.abort();
    const controller = last = new AbortController();
    const tell = (text, kind) => controller === last && say(text, kind);
    panel.setAttribute("aria-busy", "true");
    try {
      await task(controller.signal, tell);
    } catch (error) {
      if (error.name !== "AbortError") tell(error.message, "error");
    } finally {
      if (controller === last) panel.removeAttribute("aria-busy");
    }
  };
  return { work, say, stop: () => last?.abort() };
}

/** A button that copies a text; hidden where the browser forbids it: on pages other than https and localhost. */
export function copier(text) {
  const show = (label) => { button.textContent = label; };
  const copy = () => navigator.clipboard.writeText(text()).then(() => show("Copied"), () => show("Not allowed"))
    .then(() => setTimeout(show, 1500, "Copy"));
  const button = h("button", { type: "button", class: "copy", hidden: !navigator.clipboard, click: copy }, "Copy");
  return button;
}

/** Fill a select with runs, or with their language pairs; a value is an index into the list. */
export function fill(select, runs) {
  select.replaceChildren(...runs.map((run, i) => h("option", { value: i }, title(run))));
}

/** The name of a run, and the languages that it translates. */
export function title(run) {
  return run.source ? `${run.name}: ${language(run.source)} to ${language(run.target)}` : run.name;
}

function language(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code.replace("_", "-"));
  } catch {
    return code;
  }
}
