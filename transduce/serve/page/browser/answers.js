// Answers the page's requests in this browser, without a server. Not a module: modules do not run on pages opened as files.

function answerLocally() {
  const footer = document.querySelector("footer");
  const runs = fetch("web.json").then((response) => response.json()).then(({ about: [name, source, target] }) =>
    ({ runs: [{ name, does: "translate", source, target }], records: [] }));
  const worker = new Worker("page/browser/worker.js", { type: "module" });
  const answered = () => new Promise((resolve) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = () => resolve({ error: "This browser cannot run the model; use a newer one." });
  });
  footer.textContent = "The model is being loaded ...";
  const loaded = answered();
  loaded.then(({ error }) => {
    footer.textContent = error ?? "This browser translates by itself: your text stays on this machine.";
  });
  let last = loaded;
  /** Send requests to the worker one after the other; one that is aborted before its turn is never sent. */
  const translate = (body, signal) => {
    const turn = last.then(async () => {
      signal?.throwIfAborted();
      if ((await loaded).error) return loaded;
      const answer = answered();
      worker.postMessage(body);
      return answer;
    });
    last = turn.catch(() => {});
    return turn;
  };
  window.fetch = async (path, { body, signal } = {}) => {
    const answer = path === "page/runs" ? await runs : await translate(JSON.parse(body), signal);
    signal?.throwIfAborted();
    return Response.json(answer, { status: answer.error ? 500 : 200 });
  };
}

if (location.protocol === "file:") {
  const trouble = document.getElementById("trouble");
  trouble.textContent = "This page needs a web server, but a simple one is enough: run python -m http.server in its folder, "
    + "then open http://localhost:8000.";
  trouble.hidden = false;
  document.querySelector("footer").remove();
} else {
  answerLocally();
}
