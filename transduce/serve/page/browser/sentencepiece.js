// SentencePiece, BPE and unigram: text to ids and back, as in the library, from the bytes of a model.

const [UNIGRAM, BPE] = [1, 2]; // types of models
const [NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE] = [1, 2, 3, 4, 6]; // types of pieces
const UNKNOWN_COST = 10;
const SPACE = "\u2581";
const utf8 = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The field numbers and values of a protocol buffer message; a value is a number or bytes. */
function* fields(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  const varint = () => {
    for (let value = 0, place = 1; ; place *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * place;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    const [number, kind] = [tag >>> 3, tag & 7];
    if (kind === 0) {
      yield [number, varint()];
    } else if (kind === 5) {
      yield [number, view.getFloat32(at, true)];
      at += 4;
    } else if (kind === 2) {
      const end = varint() + at;
      yield [number, bytes.subarray(at, end)];
      at = end;
    } else {
      throw new Error(`a SentencePiece model has no field of kind ${kind}`);
    }
  }
}

/** The normalization rules: a trie of bytes (Darts), and the texts that replace its keys. */
class Rules {
  constructor(bytes) {
    const start = 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    this.trie = new Uint32Array(bytes.slice(4, start).buffer);
    this.texts = bytes.subarray(start);
  }

  /** Where the longest key at a position of a text ends, and its replacement; undefined if there is none. */
  at(text, start) {
    const next = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let node = next(this.trie[0]);
    let found;
    for (let end = start; end < text.length;) {
      const character = String.fromCodePoint(text.codePointAt(end));
      let unit;
      for (const byte of utf8.encode(character)) {
        node ^= byte;
        unit = this.trie[node];
        if ((unit & 0x800000ff) !== byte) return found;
        node ^= next(unit);
      }
      end += character.length;
      if (unit & 256) found = [end, this.#text(this.trie[node] & 0x7fffffff)];
    }
    return found;
  }

  #text(start) {
    return strict.decode(this.texts.subarray(start, this.texts.indexOf(0, start)));
  }
}

export class SentencePiece {
  constructor(model) {
    const parts = [...fields(model)];
    const part = (number) => Object.fromEntries(fields(parts.find(([each]) => each === number)[1]));
    this.pieces = parts.filter(([number]) => number === 1).map(([, bytes]) => {
      const { 1: name, 2: score = 0, 3: type = NORMAL } = Object.fromEntries(fields(bytes));
      return { text: strict.decode(name), score, type };
    });
    const { 3: kind = UNIGRAM, 24: suffix = 0, 44: unknown } = part(2);
    const { 2: rules, 3: prefix = 1, 4: trim = 1, 5: marked = 1 } = part(3);
    if (![UNIGRAM, BPE].includes(kind) || suffix || !marked) throw new Error("The page cannot read such a SentencePiece model.");
    this.segment = kind === BPE ? this.#merged : this.#viterbi;
    this.rules = rules?.length ? new Rules(rules) : null;
    this.prefix = prefix; // whether a text begins with a space
    this.trim = trim; // whether to merge runs of spaces, and remove them at both ends
    this.ids = new Map();
    this.bytes = [];
    this.pieces.forEach(({ text, type }, id) => {
      if (type === NORMAL || type === USER_DEFINED) this.ids.set(text, id);
      if (type === BYTE) this.bytes.push(id);
    });
    this.unknownText = unknown ? strict.decode(unknown) : " \u2047 ";
    this.unknown = this.pieces.findIndex(({ type }) => type === UNKNOWN);
    const symbols = this.pieces.filter(({ type, text }) => type === USER_DEFINED && text).map(({ text }) => text);
    this.symbols = symbols.sort((a, b) => b.length - a.length);
  }

  /** The ids of a text; without byte pieces, adjacent characters without a piece become one unknown piece. */
  encode(text) {
    const ids = this.segment(this.#normalized(text)).flatMap((piece) =>
      this.ids.get(piece) ?? (this.bytes.length ? [...utf8.encode(piece)].map((byte) => this.bytes[byte]) : this.unknown));
    return ids.filter((id, i) => id !== this.unknown || ids[i - 1] !== id);
  }

  /** The symbol at a position of a text; its characters are neither normalized nor merged. */
  #symbolAt(text, at) {
    return this.symbols.find((symbol) => text.startsWith(symbol, at));
  }

  #normalized(text) {
    let out = this.prefix && text ? SPACE : "";
    let afterSpace = this.trim;
    for (let at = 0; at < text.length;) {
      const symbol = this.#symbolAt(text, at);
      const character = symbol ?? String.fromCodePoint(text.codePointAt(at));
      let [end, part] = (!symbol && this.rules?.at(text, at)) || [at + character.length, character];
      if (afterSpace) part = part.replace(/^ +/, "");
      out += part.replaceAll(" ", SPACE);
      if (part) afterSpace = this.trim && part.endsWith(" ");
      at = end;
    }
    return this.trim ? out.replace(/\u2581+$/, "") : out;
  }

  /** The pieces of a text: the pair with the best score is merged repeatedly, the first of equal ones. */
  #merged(text) {
    const parts = [];
    const fixed = []; // whether a part is a symbol
    for (let at = 0; at < text.length; at += parts.at(-1).length) {
      const symbol = this.#symbolAt(text, at);
      parts.push(symbol ?? String.fromCodePoint(text.codePointAt(at)));
      fixed.push(symbol !== undefined);
    }
    const score = (i) => {
      const id = i + 1 < parts.length && !fixed[i] && !fixed[i + 1] ? this.ids.get(parts[i] + parts[i + 1]) : undefined;
      return id === undefined ? -Infinity : this.pieces[id].score;
    };
    const scores = parts.map((_, i) => score(i));
    for (;;) {
      let best = 0;
      for (let i = 1; i < scores.length; i++) if (scores[i] > scores[best]) best = i;
      if (!(scores[best] > -Infinity)) return parts;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
      fixed.splice(best, 1);
      scores.splice(best, 1);
      scores[best] = score(best);
      if (best > 0) scores[best - 1] = score(best - 1);
    }
  }

  /** The pieces of a text whose scores have the largest sum (Viterbi). */
  #viterbi(text) {
    const scores = this.pieces.filter(({ type }) => type === NORMAL).map(({ score }) => score);
    const least = scores.reduce((a, b) => Math.min(a, b));
    const most = scores.reduce((a, b) => Math.max(a, b), 0);
    const longest = this.pieces.reduce((n, { text: piece }) => Math.max(n, piece.length), 1);
    const ends = [{ score: 0 }]; // by position, the best segmentation up to there: its score, and where its last piece starts
    const reach = (start, end, cost) => {
      const score = ends[start].score + cost;
      if (!ends[end] || score > ends[end].score) ends[end] = { score: Math.fround(score), start };
    };
    for (let start = 0, next; start < text.length; start = next) {
      next = start + String.fromCodePoint(text.codePointAt(start)).length;
      for (let end = next; end <= Math.min(text.length, start + longest); end++) {
        const piece = text.slice(start, end);
        const id = this.ids.get(piece);
        if (id === undefined) continue;
        const { type, score } = this.pieces[id];
        reach(start, end, type === USER_DEFINED ? Math.fround(utf8.encode(piece).length * most) - 0.1 : score);
      }
      if (!this.ids.has(text.slice(start, next))) reach(start, next, Math.fround(least - UNKNOWN_COST));
    }
    const parts = [];
    for (let end = text.length; end > 0; end = ends[end].start) parts.unshift(text.slice(ends[end].start, end));
    return parts;
  }

  decode(ids) {
    let text = "";
    let bytes = [];
    let begun = false;
    const flush = () => {
      text += characters(Uint8Array.from(bytes));
      bytes = [];
    };
    for (const id of ids) {
      const piece = this.pieces[id];
      if (piece.type === BYTE) {
        bytes.push(this.bytes.indexOf(id));
        continue;
      }
      flush();
      if (piece.type === CONTROL) continue;
      if (id === this.unknown) {
        text += this.unknownText;
        continue;
      }
      const strips = !begun && !text && (this.prefix || this.trim) && piece.text.startsWith(SPACE);
      begun ||= strips && !this.trim;
      text += piece.text.slice(strips ? 1 : 0).replaceAll(SPACE, " ");
    }
    flush();
    return text;
  }
}

/** Decode UTF-8; a byte that belongs to no character becomes U+FFFD. */
function characters(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const length = [0x80, 0xe0, 0xf0].reduce((n, lead) => n + (bytes[at] >= lead ? 1 : 0), 1);
    try {
      text += strict.decode(bytes.subarray(at, at + length));
      at += length;
    } catch {
      text += "\ufffd";
      at += 1;
    }
  }
  return text;
}
