// Beam search, and the choice between translating a line as a whole and sentence by sentence.

// Spaces are the characters of Python's \s and strip().
const SENTENCE_END = /[.!?…\u0589\u061f\u06d4\u0964\u0965\u104b\u1362\u1367\u17d4]["'”’»)\]]*[\t-\r\x1c-\x1f\x85\p{Z}]+|[。！？]["'”’」』）]*[\t-\r\x1c-\x1f\x85\p{Z}]*/gu;
const OUTER_SPACES = /^[\t-\r\x1c-\x1f\x85\p{Z}]+|[\t-\r\x1c-\x1f\x85\p{Z}]+$/gu;
const WIDE = "[\\u3001-\\u30ff\\u3400-\\u9fff\\uf900-\\ufaff\\uff01-\\uff9f\\u{20000}-\\u{3ffff}]"; // as in tasks/outputs.py
const QUOTES = "[“”‘’…—]*";
const [WIDE_START, WIDE_END] = [new RegExp(`^${QUOTES}${WIDE}`, "u"), new RegExp(`${WIDE}${QUOTES}$`, "u")];
const GOES_ON = /^["'“‘«„([¿¡]*\p{Lowercase}/u;
const VISIBLE = /[^\p{Cc}\p{Cf}\p{Z}]|[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u{110bd}\u{110cd}]/u; // as in data/lines.py

export class Translator {
  /**
   * The parts of an export: sessions of encoder and step, tokenizers of source and target, the ids before each source
   * (opening), config.json as config, the fields of SearchConfig as search, and the runtime's class of tensors.
   */
  constructor(parts) {
    Object.assign(this, parts);
  }

  /** The n best translations of a line, the best first: text, score and log_prob. A blank line stays blank. */
  async translate(line, nBest) {
    if (!VISIBLE.test(line)) return Array.from({ length: nBest }, () => ({ text: "", log_prob: 0, score: 0 }));
    const { split_length: longest, max_source_length, beam_size: size } = this.search;
    const limit = Math.max(0, max_source_length - this.opening.length - 1); // opening and end take positions, too
    const ids = this.source.encode(line);
    let ways = [[ids]];
    const parts = longest && longest < ids.length ? sentences(line) : [];
    if (parts.length > 1) ways = [...(ids.length <= limit ? ways : []), parts.map((part) => this.source.encode(part))];
    const found = [];
    for (const texts of ways) {
      const best = [];
      for (const each of texts) {
        const source = [...this.opening, ...each.slice(0, limit), this.config.eos_id];
        best.push(await this.#search(source, Math.max(size, nBest), nBest));
      }
      found.push({ outputs: this.#joined(best), mean: mean(best) });
    }
    return found.reduce((best, way) => (way.mean > best.mean ? way : best)).outputs;
  }

  /** The n best hypotheses of a source: tokens, log_prob and score. */
  async #search(source, size, nBest) {
    const { eos_id: eos, bos_id: bos, n_layers: layers, n_kv_heads: heads, d_head: width } = this.config;
    const lengths = this.#ids([source.length], [1]);
    const memory = await this.encoder.run({ source: this.#ids(source, [1, source.length]), lengths });
    const bound = this.#bound(Number(memory.memory_lengths.data[0]));
    let active = [{ tokens: [], log_prob: 0 }];
    let finished = [];
    let keys = new this.Tensor("float32", new Float32Array(), [layers, 1, heads, 0, width]);
    let values = keys;
    for (let length = 1; ; length++) {
      const tokens = this.#ids(active.map((each) => each.tokens.at(-1) ?? bos), [active.length]);
      const { logits, new_keys, new_values } = await this.step.run({ tokens, keys, values, ...memory });
      const never = length <= this.search.min_length ? [...this.config.suppressed, eos] : this.config.suppressed;
      const penalty = this.#penalty(length);
      const next = topK(logits, active, never, 2 * size).map(({ row, token, log_prob }) =>
        ({ row, tokens: [...active[row].tokens, token], log_prob, score: log_prob / penalty }));
      const ends = ({ tokens }) => tokens.at(-1) === eos;
      finished = best([...finished, ...next.slice(0, size).filter(ends)]).slice(0, size);
      active = next.filter((each) => !ends(each)).slice(0, size);
      const done = !active.length || (finished.length === size && active[0].score <= finished.at(-1).score);
      if (done || length >= bound) break;
      const rows = active.map(({ row }) => row);
      [keys, values] = [new_keys, new_values].map((tensor) => this.#rows(tensor, rows));
    }
    const hypotheses = best([...finished, ...active].slice(0, size)).slice(0, nBest);
    const found = hypotheses.map((each) => ({ ...each, tokens: each.tokens.filter((token) => token !== eos) }));
    return Array.from({ length: nBest }, (_, i) => found[Math.min(i, found.length - 1)]);
  }

  #ids(ids, dims) {
    return new this.Tensor("int64", BigInt64Array.from(ids, BigInt), dims);
  }

  /** Maximum number of tokens of a translation, including its end. */
  #bound(length) {
    const { length_ratio: ratio, length_extra: extra, max_length: most, min_length: least } = this.search;
    return Math.min(Math.max(1 + least, Math.trunc(Math.fround(length * ratio)) + extra), most || Infinity);
  }

  #penalty(length) {
    const { alpha, length_offset: offset } = this.search;
    return ((offset + length) / (offset + 1)) ** alpha;
  }

  /** Select rows of all layers' keys or values. */
  #rows({ data, dims: [layers, n, ...rest] }, rows) {
    const size = rest.reduce((a, b) => a * b);
    const chosen = new Float32Array(layers * rows.length * size);
    for (let layer = 0; layer < layers; layer++)
      rows.forEach((row, i) => {
        const start = (layer * n + row) * size;
        chosen.set(data.subarray(start, start + size), (layer * rows.length + i) * size);
      });
    return new this.Tensor("float32", chosen, [layers, rows.length, ...rest]);
  }

  /** Join the best outputs of all texts, then the second best ones. */
  #joined(texts) {
    return texts[0].map((_, k) => {
      const parts = texts.map((each) => each[k]);
      const log_prob = sum(parts.map((part) => part.log_prob));
      const length = sum(parts.map(({ tokens }) => tokens.length)) + parts.length;
      const written = parts.map(({ tokens }) => this.target.decode(tokens).replace(/[\n\r]/g, " "));
      const text = written.length > 1 ? joined(written) : written[0];
      return { text, log_prob, score: parts.length > 1 ? log_prob / this.#penalty(length) : parts[0].score };
    });
  }
}

/** Join texts with spaces, but without any within Chinese and Japanese. */
export function joined(texts) {
  return texts.map((text) => text.replace(OUTER_SPACES, "")).filter((text) => text)
    .reduce((whole, text) => whole + (whole && !(WIDE_END.test(whole) && WIDE_START.test(text)) ? " " : "") + text, "");
}

/** The mean log-probability per token, including ends, of the best outputs of all texts. */
function mean(texts) {
  return sum(texts.map(([{ log_prob }]) => log_prob)) / sum(texts.map(([{ tokens }]) => tokens.length + 1));
}

function sum(numbers) {
  return numbers.reduce((a, b) => a + b);
}

function best(hypotheses) {
  return hypotheses.sort((a, b) => b.score - a.score);
}

/** The n likeliest continuations of the hypotheses, the likeliest first; some tokens are excluded. */
function topK({ data, dims: [, vocabulary] }, active, never, n) {
  const found = [];
  active.forEach(({ log_prob }, row) => {
    const logits = data.subarray(row * vocabulary, (row + 1) * vocabulary);
    let [largest, total] = [-Infinity, 0];
    for (const logit of logits) if (logit > largest) largest = logit;
    for (const logit of logits) total += Math.exp(logit - largest);
    const offset = log_prob - largest - Math.log(total);
    for (const token of never) logits[token] = -Infinity;
    for (let token = 0; token < vocabulary; token++) {
      const value = logits[token] + offset;
      if (value === -Infinity || (found.length === n && value <= found[n - 1].log_prob)) continue;
      let place = found.length;
      while (place > 0 && found[place - 1].log_prob < value) place--;
      found.splice(place, 0, { row, token, log_prob: value });
      found.length = Math.min(found.length, n);
    }
  });
  return found;
}

/** The sentences of a line. A sentence does not end before a lower-case letter. */
function sentences(line) {
  const ends = [...line.matchAll(SENTENCE_END)].map((match) => match.index + match[0].length);
  const starts = [0, ...ends.filter((end) => !GOES_ON.test(line.slice(end)))];
  return starts.map((start, i) => line.slice(start, starts[i + 1]).replace(OUTER_SPACES, "")).filter((part) => part);
}
