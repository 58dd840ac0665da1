// The model, in a thread of its own: it answers a message with a line by its translations, or by an error.

import * as ort from "./ort.js";
import { Translator } from "./search.js";
import { SentencePiece } from "./sentencepiece.js";

async function read(name) {
  const response = await fetch(new URL(`../../${name}`, import.meta.url));
  if (!response.ok) throw new Error(`${name} must be beside index.html, but the server answers ${response.status}; export the run again`);
  return new Uint8Array(await response.arrayBuffer());
}

async function load() {
  const object = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
  const [config, web, binary] = await Promise.all([object("config.json"), object("web.json"), read("page/browser/ort.wasm")]);
  const tokenizers = web.shared ? ["tokenizer.model"] : ["source.model", "target.model"];
  const [encoder, step, ...models] = await Promise.all(["encoder.onnx", "step.onnx", ...tokenizers].map(read));
  ort.env.wasm.wasmBinary = binary.buffer;
  ort.env.wasm.numThreads = 1; // more threads need headers that a plain server does not send
  const [source, target = source] = models.map((model) => new SentencePiece(model));
  const tag = `<2${web.about[2]}>`; // selects the target language of a multilingual model
  return new Translator({
    opening: source.ids.has(tag) ? source.encode(tag) : [], search: web.search, config, source, target, Tensor: ort.Tensor,
    encoder: await ort.InferenceSession.create(encoder),
    step: await ort.InferenceSession.create(step),
  });
}

const loaded = load();
const answer = (compute) => loaded.then(compute).then(postMessage, ({ message }) => postMessage({ error: message }));
answer(() => ({}));
onmessage = ({ data: { line, n_best: n } }) => answer(async (translator) => ({ outputs: await translator.translate(line, n) }));
