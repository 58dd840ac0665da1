"""Outputs with their words: tokens, confidence and alignment to the source; transcripts of
sound."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.decode.rules import Timestamps

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
