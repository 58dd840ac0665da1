"""Outputs with their words: tokens, confidence and alignment to the source; transcripts of sound;
perplexity."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from transduce.config import at_least
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.language import encode_text
from transduce.decode.rules import Timestamps
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.tasks.base import token_log_probs

Span = tuple[str, int, int]
"""A word, its first token, and the one after its last."""

WIDE = re.compile("[\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff]")
"""A character of Chinese or Japanese."""


QUOTES = "“”‘’…—"
"""Marks that Chinese shares with other languages."""


def between(before: str, after: str) -> str:
    """The separator of two texts: a space, but nothing within Chinese and Japanese."""
    inner = before.rstrip(QUOTES)[-1:], after.lstrip(QUOTES)
    return "" if not before or all(map(WIDE.match, inner)) else " "


def joined_texts(texts: Iterable[str]) -> str:
    """Join texts of one language, in this order."""
    whole = ""
    for text in filter(None, map(str.strip, texts)):
        whole += between(whole, text) + text
    return whole


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of the tokens of a given text."""

    tokens: list[str]
    """The T tokens, readable; the end is one of them where the model predicts it."""
    log_probs: Float[Tensor, " T"]
    """The natural log-probability of each, given the tokens before it, and the source if there is
    one."""

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the text."""
        return float(self.log_probs.double().sum())

    def followed_by(self, other: "TokenScores") -> "TokenScores":
        """The scores of this text and another one after it, as one."""
        log_probs = torch.cat((self.log_probs, other.log_probs))
        return TokenScores(self.tokens + other.tokens, log_probs)


@dataclass(frozen=True)
class Word:
    """A word of an output, between white space."""

    text: str
    confidence: float
    """0 ... 1: the geometric mean of the probabilities of its tokens; with times by CTC, of their
    CTC probabilities among all tokens but the blank."""
    start: float | None = None
    """Seconds from the beginning of the sound, if times were requested."""
    stop: float | None = None


@dataclass(frozen=True)
class WordAlignment:
    """The source word that each word of an output is aligned to."""

    source: list[str]
    """The words of the source, as its tokens spell them."""
    target: list[str]
    pairs: list[tuple[int, int]]
    """The number of a source word and that of a target word, one pair for every target word, in
    their order."""
    layer: int | None = None
    """The decoder layer, from 0, whose attention gave it; None for a text in parts, which may use
    several."""

    def __str__(self) -> str:
        """In Pharaoh's format: 0-0 1-2."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)

    def followed_by(self, other: "WordAlignment") -> "WordAlignment":
        """The alignment of this text and another one after it, as one."""
        target, pairs, n = self.target + other.target, other.pairs, len(self.target)
        if n and other.target and not between(self.target[-1], other.target[0]):
            n -= 1  # both are a part of one word
            target[n : n + 2] = ["".join(target[n : n + 2])]
            pairs = [pair for pair in pairs if pair[1]]
        pairs = [(source + len(self.source), word + n) for source, word in pairs]
        return WordAlignment(self.source + other.source, target, self.pairs + pairs)


@dataclass(frozen=True)
class Output:
    """One output text."""

    text: str
    log_prob: float = 0.0
    """The natural log-probability, with the bonuses of a glossary and of biases; nan if not
    computed."""
    score: float = 0.0
    """The score by which hypotheses are ranked."""
    tokens: list[int] = field(default_factory=list)
    finished: bool = True
    """False: cut at the bound on its length."""
    token_scores: TokenScores | None = None
    """Scores of the tokens and, if finished, of the end, if requested: by attention alone, without
    CTC or a language model."""
    words: list[Word] = field(default_factory=list)
    """Words with their confidence, if token scores or word times were requested."""
    alignment: WordAlignment | None = None
    """The source words that its words are aligned to, if requested."""
    language: str = ""
    """The language of the sound, if it was detected."""
    no_speech_prob: float | None = None
    """The no-speech probability, if it was requested and the model has one; see
    `speech.no_speech_prob`."""


@dataclass(frozen=True)
class Segment:
    """The n best transcripts of a sound between two times, in seconds."""

    start: float
    stop: float
    outputs: list[Output]

    @property
    def best(self) -> Output:
        """The best of them."""
        return self.outputs[0]


def split_at_times(segment: Segment, times: Timestamps, tokenizer: Tokenizer) -> list[Segment]:
    """Split a segment at the timestamps in its output; without any, return it alone."""
    (output,) = segment.outputs
    parts = []
    for begun, ended, ids in times.segments(output.tokens):
        stop = segment.stop if ended is None else min(segment.stop, segment.start + ended)
        part = replace(output, text=tokenizer.decode([ids])[0].strip(), tokens=ids)
        parts.append(Segment(min(stop, segment.start + begun), stop, [part]))
    return parts or [segment]


@dataclass(frozen=True)
class Transcript:
    """The transcript of a sound, or the `error` that prevented it."""

    path: Path | str
    segments: list[Segment]
    error: str = ""

    @property
    def text(self) -> str:
        """The best text of every segment as one."""
        return joined_texts(segment.best.text for segment in self.segments)


def word_alignment(
    weights: Float[Tensor, "L T S"], source: Sequence[Span], target: Sequence[Span]
) -> WordAlignment:
    """Align every target word to the source word of the greatest weight.

    Weights are summed over the tokens of a source word, and averaged over those of a target word;
    the end of the source is left out. The layer is taken whose greatest weights are highest on
    average, because layers that align have few large weights.

    Args:
        weights: cross-attention of every layer, the mean of its heads.
        source, target: the words and their tokens, see `word_spans`.
    """
    words = [word for word, _, _ in source], [word for word, _, _ in target]
    if not source or not target:
        return WordAlignment(*words, [])
    by_target = torch.stack([weights[:, a:b].mean(dim=1) for _, a, b in target], dim=1)
    by_word = torch.stack([by_target[:, :, a:b].sum(dim=2) for _, a, b in source], dim=2)
    layer = int(by_word.amax(dim=2).mean(dim=1).argmax())
    pairs = [(place, n) for n, place in enumerate(by_word[layer].argmax(dim=1).tolist())]
    return WordAlignment(*words, pairs, layer)


def word_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span]:
    """The words that these tokens spell, with their tokens.

    A token without a text, such as a space alone or an end, belongs to the word after it, if there
    is one. A token that spells the end of a word and the beginning of the next belongs to both.
    """
    spans: list[list[int]] = []
    before: list[str] = []
    first = 0
    for stop, text in enumerate(tokenizer.beginnings(ids), start=1):
        words = text.split()
        if not words or words == before:
            continue
        last = len(before) - 1
        if last >= 0 and len(spans) == len(before) < len(words) and words[last] != before[last]:
            spans[last][1] = stop  # it also ends the word before
        spans += [[first, stop] for _ in range(len(words) - len(spans))]
        spans[len(words) - 1][1] = stop
        before = words
        first = stop
    (text,) = tokenizer.decode([ids])
    return [(word, start, stop) for word, (start, stop) in zip(text.split(), spans, strict=False)]


def with_scores(tokenizer: Tokenizer, output: Output, scores: TokenScores) -> Output:
    """The same output with the log-probabilities of its tokens and the confidence of its words."""
    words = [
        Word(word, min(1.0, float(scores.log_probs[start:stop].double().mean().exp())))
        for word, start, stop in word_spans(tokenizer, output.tokens)
    ]
    return replace(output, token_scores=scores, words=words)


@dataclass(frozen=True)
class Perplexity:
    """The cost of a text for a model, and how it was measured."""

    nats: float
    """The cost of all predicted tokens together."""
    n_tokens: int
    n_bytes: int
    """Length of the predicted text in UTF-8."""
    signature: str

    @property
    def nats_per_token(self) -> float:
        """Cross-entropy, as training reports it."""
        return self.nats / self.n_tokens

    @property
    def perplexity(self) -> float:
        """e to the nats per token: comparable between models with one tokenizer only."""
        return math.exp(self.nats_per_token) if self.nats_per_token < 709 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats / math.log(2) / self.n_bytes

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.3f} per token, {self.nats_per_token:.4f} nats per "
            "token, "
            f"{self.bits_per_byte:.4f} bits per byte\n{self.signature}"
        )


@torch.inference_mode()
def measure_perplexity(
    model: Engine,
    tokenizer: Tokenizer,
    text: str,
    *,
    window: int | None = None,
    stride: int | None = None,
    batch_tokens: int = 4096,
) -> Perplexity:
    """Predict every token of a text once, from up to `window` tokens before it.

    Windows begin `stride` tokens apart, and in each window only the tokens after the previous
    window count: so all but those of the first window have at least window - stride tokens of
    context. The text is tokenized as for training (`encode_text`): BOS stands first if the
    tokenizer has one, otherwise the first token is not predicted; and if EOS is another token,
    every line is a text between the two, and both are predicted.

    Args:
        window: positions; the model's max_positions if not given.
        stride: half of the window if not given; the whole window is fastest, 1 the fairest.
        batch_tokens: positions of a batch; it changes speed and memory, never the result.

    Raises:
        InputError: there is no token to predict, or the stride or the window is not valid.
    """
    at_least(1, window=window, stride=stride)
    config = model.config.for_stack(model.config.decoder)
    limit = config.max_positions
    window = window or limit
    stride = stride or max(1, window // 2)
    if stride > window or (config.positions == "learned" and window > limit):
        raise InputError(
            "stride must lie in 1 ... window, and window within learned positions, but "
            f"stride={stride}, window={window} and max_positions={limit}"
        )
    stream = encode_text(tokenizer, text)
    n_tokens = len(stream) - 1
    if n_tokens < 1:
        raise InputError(
            f"perplexity needs a token to predict, but the text has {len(text)} characters"
        )
    nats = 0.0
    for rows, n in _windows(stream, window, stride, max(1, batch_tokens // window)):
        ids: Int[Tensor, "B T"] = torch.from_numpy(rows.astype(np.int64)).to(model.device)
        states = model.decoder_states(ids[:, :-1])[:, -n:].flatten(0, 1)
        nats -= token_log_probs(model, states, ids[:, -n:].flatten()).double().sum().item()
    n_bytes = len(text.encode())
    if tokenizer.bos_id is None:  # the first token is not predicted
        n_bytes -= len(tokenizer.decode([stream[:1].tolist()])[0].encode())
    return Perplexity(nats, n_tokens, n_bytes, _signature(tokenizer, n_tokens, window, stride))


def _signature(tokenizer: Tokenizer, n_tokens: int, window: int, stride: int) -> str:
    return (
        f"tokens:{n_tokens}|vocabulary:{tokenizer.vocab_size}|window:{window}|stride:{stride}|"
        f"first:{'given' if tokenizer.bos_id is None else 'bos'}|"
        f"eos:{'no' if tokenizer.bos_id == tokenizer.eos_id else 'yes'}|"
        f"version:{version('transduce')}"
    )


def _windows(
    stream: Integer[np.ndarray, " L"], window: int, stride: int, batch_size: int
) -> Iterator[tuple[Integer[np.ndarray, "B T"], int]]:
    """Windows with the token after each, in batches, and how many predictions of each count: the
    first window, full windows, and the rest."""
    yield stream[None, : window + 1], min(window, len(stream) - 1)
    whole = sliding_window_view(stream, min(window + 1, len(stream)))[stride::stride]
    for i in range(0, len(whole), batch_size):
        yield whole[i : i + batch_size], stride
    n_left = len(stream) - 1 - window - stride * len(whole)
    if n_left > 0:
        yield stream[None, stride * (len(whole) + 1) :], n_left
