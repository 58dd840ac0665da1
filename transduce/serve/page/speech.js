// Speech to text: a recording or a file, its waveform, its words, and their translation.

import { ask, copier, fill, h, roving, title, worker } from "./ask.js";
import { translated } from "./translate.js";

const RATE = 16000; // hertz, for recordings and waveforms

export function start(panel, runs, translators, limits) {
  const [run, onward, file] = ["run", "onward", "file"].map((name) => panel.querySelector(`#transcribe-${name}`));
  const record = panel.querySelector("#record");
  const results = panel.querySelector(".results");
  const { work, say } = worker(panel);
  let player;
  let last; // the sound that was last chosen, and whether it is a recording
  fill(run, runs);
  onward.append(...translators.map((each, i) => h("option", { value: i }, title(each))), h("option", { value: "" }, "No"));
  panel.querySelector("#onward").hidden = !translators.length;

  const transcribe = (blob, recorded = false) => work(async (signal, tell) => {
    last = [blob, recorded];
    tell("Transcribing ...");
    results.replaceChildren();
    if (blob.size > 1e6 * limits.upload_mb) {
      const size = (blob.size / 1e6).toFixed(1);
      throw new Error(`A file may have ${limits.upload_mb} MB, but ${blob.name ?? "this recording"} has ${size}; send it in parts.`);
    }
    const sound = await decoded(blob);
    signal.throwIfAborted(); // another sound was chosen in the meantime
    player = new Player(sound);
    if (player.sound) results.replaceChildren(h("div", { class: "card" }, ...player.parts));
    player.draw();
    const info = runs[run.value];
    const transcript = await transcribed(info, recorded && player.sound ? wav(player.sound) : blob, signal);
    if (!player.sound) results.replaceChildren(h("div", { class: "card" }, ...player.parts)); // the server could decode it
    results.firstChild.append(...wordButtons(transcript, player));
    tell(transcript.text ? `Transcript: ${transcript.text}` : "The recording has no words.", "aloud");
    if (!onward.value || !transcript.text) return;
    const lines = transcript.segments.map((segment) => segment.text).join("\n");
    const best = await translated(translators[onward.value], lines, 1, signal, results, undefined, false);
    results.append(copier(() => best.join("\n")));
    tell(`Transcript: ${transcript.text} Translated: ${best.join(" ")}`, "aloud");
  });

  new ResizeObserver(() => player?.draw()).observe(results);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => player?.draw());
  for (const each of [run, onward]) each.addEventListener("change", () => last && transcribe(...last));
  file.addEventListener("click", () => { file.value = ""; }); // else the same file cannot be chosen again
  file.addEventListener("change", () => file.files.length && transcribe(file.files[0]));
  panel.addEventListener("dragover", (event) => event.preventDefault());
  panel.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) transcribe(event.dataTransfer.files[0]);
  });

  let recorder;
  let asked = false; // whether the browser is asking for the microphone
  record.addEventListener("click", async () => {
    if (recorder) return recorder.stop();
    if (asked) return;
    if (!navigator.mediaDevices) return say("Browsers record only on https pages and on localhost; choose a file.", "error");
    asked = true;
    try {
      recorder = await recording(Math.min(limits.seconds, (1e6 * limits.upload_mb) / (2 * RATE)), (blob) => {
        recorder = undefined;
        pressed(false);
        transcribe(blob, true);
      });
      pressed(true);
      say("Recording ... Press Stop when you have spoken.");
    } catch (error) {
      say(`No microphone is available (${error.message}).`, "error");
    } finally {
      asked = false;
    }
  });
  const pressed = (on) => {
    record.textContent = on ? "Stop" : "Record";
    record.setAttribute("aria-pressed", String(on));
  };
}

/** Record from the microphone until stopped, or for at most so many seconds; then `done` gets the sound. */
async function recording(seconds, done) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const chunks = [];
  const limit = setTimeout(() => recorder.stop(), 1000 * seconds);
  recorder.addEventListener("dataavailable", (event) => chunks.push(event.data));
  recorder.addEventListener("stop", () => {
    clearTimeout(limit);
    stream.getTracks().forEach((track) => track.stop());
    done(new Blob(chunks, { type: recorder.mimeType }));
  });
  recorder.start();
  return recorder;
}

/** The sound as the browser decodes it; null if it cannot. */
async function decoded(blob) {
  try {
    return await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  } catch {
    return null;
  }
}

/** One channel: the mean of all. */
function mono(sound) {
  const channels = Array.from({ length: sound.numberOfChannels }, (_, c) => sound.getChannelData(c));
  return channels[0].map((_, i) => channels.reduce((sum, each) => sum + each[i], 0) / channels.length);
}

/** The sound as a WAV file of 16 bits, which the server reads. */
function wav(sound) {
  const samples = Int16Array.from(mono(sound), (x) => Math.round(32767 * Math.max(-1, Math.min(1, x))));
  const head = new DataView(new ArrayBuffer(44));
  const text = (at, letters) => [...letters].forEach((letter, i) => head.setUint8(at + i, letter.charCodeAt(0)));
  const size = 2 * samples.length;
  text(0, "RIFF"), text(8, "WAVEfmt "), text(36, "data");
  for (const [at, value] of [[4, 36 + size], [16, 16], [24, RATE], [28, 2 * RATE], [40, size]]) head.setUint32(at, value, true);
  for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]]) head.setUint16(at, value, true);
  return new Blob([head, samples], { type: "audio/wav" }); // browsers run on little-endian machines
}

async function transcribed(run, blob, signal) {
  const body = new FormData();
  body.append("file", blob, blob.name ?? "recording.wav");
  body.append("model", run.name);
  body.append("response_format", "verbose_json");
  if (run.word_times) body.append("timestamp_granularities[]", "word");
  return (await ask("v1/audio/transcriptions", { method: "POST", body, signal })).json();
}

/** Buttons that play each word, or whole segments if word times are unknown. */
function wordButtons({ words, segments, text }, player) {
  const parts = words?.length ? words : segments.map((each) => ({ ...each, word: each.text }));
  if (!text) return [h("p", { class: "hint" }, "(no words)")];
  const readout = h("p", { class: "readout" }, "Choose a word to hear it; use the arrow keys to move between words.");
  const buttons = parts.map(({ word, start, end }) => h("button", { type: "button", class: "word", click: () => {
    readout.textContent = `${word}: ${start.toFixed(2)} to ${end.toFixed(2)} s`;
    player.play(start, end);
  } }, word));
  const toolbar = h("div", { class: "words", dir: "auto", role: "toolbar", "aria-label": "What was said" }, ...buttons);
  roving(toolbar, buttons);
  return [toolbar, readout, copier(() => text)];
}

/** Draws a sound, and plays parts of it. */
class Player {
  static context;

  constructor(sound) {
    this.sound = sound;
    this.part = [0, 0];
    if (!sound) {
      this.parts = [h("p", { class: "hint" }, "This browser cannot play this sound, so no waveform is shown.")];
      return;
    }
    const seconds = sound.duration;
    this.samples = mono(sound);
    this.canvas = h("canvas", { role: "img", "aria-label": `Waveform of ${seconds.toFixed(1)} seconds` });
    const all = h("button", { type: "button", click: () => this.play(0, seconds) }, "Play all");
    this.parts = [h("div", { class: "row" }, all, h("span", { class: "hint" }, `${seconds.toFixed(1)} s`)), this.canvas];
  }

  play(start, stop) {
    if (!this.sound) return;
    const context = Player.context ??= new AudioContext();
    context.resume();
    this.source?.stop();
    this.source = context.createBufferSource();
    this.source.buffer = this.sound;
    this.source.connect(context.destination);
    this.source.start(0, start, stop - start);
    this.part = [start, stop];
    this.draw();
  }

  draw() {
    if (!this.canvas?.clientWidth) return;
    const { canvas, samples, sound } = this;
    const scale = devicePixelRatio;
    const [width, height] = [Math.round(canvas.clientWidth * scale), Math.round(canvas.clientHeight * scale)];
    const style = getComputedStyle(canvas);
    const pen = Object.assign(canvas, { width, height }).getContext("2d");
    const [from, to] = this.part.map((seconds) => (seconds / sound.duration) * width);
    pen.fillStyle = style.getPropertyValue("--chosen");
    pen.fillRect(from, 0, to - from, height);
    pen.fillStyle = style.getPropertyValue("--accent");
    const loudest = samples.reduce((most, x) => Math.max(most, Math.abs(x)), 0.01);
    for (let x = 0; x < width; x++) {
      const some = samples.subarray(Math.floor((x / width) * samples.length), Math.ceil(((x + 1) / width) * samples.length));
      const [low, high] = some.reduce(([a, b], y) => [Math.min(a, y), Math.max(b, y)], [0, 0]);
      const top = (0.5 - (0.48 * high) / loudest) * height;
      pen.fillRect(x, top, 1, Math.max(scale, (0.48 * (high - low) * height) / loudest));
    }
  }
}
