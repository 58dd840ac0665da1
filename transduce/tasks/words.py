"""The words of an output: their tokens, their confidence, and the source words they were written
from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer

Span = tuple[str, int, int]
"""A word, its first token, and the one behind its last."""


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


def joined(scores: Sequence[TokenScores | None]) -> TokenScores | None:
    """The scores of several texts as those of one; None without scores."""
    known = [each for each in scores if each]
    if not known:
        return None
    return TokenScores(
        [token for each in known for token in each.tokens],
        torch.cat([each.log_probs for each in known]),
    )


@dataclass(frozen=True)
class Word:
    """A word of an output, between white space."""

    text: str
    confidence: float
    """0 ... 1: the geometric mean of the probabilities of its tokens; with times, of their
    probabilities by CTC among all tokens but the blank."""
    start: float | None = None
    """Seconds from the beginning of the sound, where times were asked for."""
    stop: float | None = None

    def later(self, seconds: float) -> "Word":
        """The same word in a sound that begins this many seconds earlier."""
        if self.start is None or self.stop is None:
            return self
        return replace(self, start=self.start + seconds, stop=self.stop + seconds)


@dataclass(frozen=True)
class WordAlignment:
    """The source word that each word of an output was written from."""

    source: list[str]
    """The words of the source, as its tokens spell them."""
    target: list[str]
    pairs: list[tuple[int, int]]
    """The number of a source word and that of a target word, one pair for every target word, in
    their order."""
    layer: int | None = None
    """The decoder's layer, from 0, whose attention this is; None of a text in parts, which may have
    several."""

    def __str__(self) -> str:
        """As Pharaoh writes it: 0-0 1-2."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)

    def followed_by(self, other: "WordAlignment") -> "WordAlignment":
        """The alignment of this text and another one after it, as one."""
        pairs = [
            (source + len(self.source), target + len(self.target)) for source, target in other.pairs
        ]
        return WordAlignment(
            self.source + other.source, self.target + other.target, self.pairs + pairs
        )


def word_alignment(
    weights: Float[Tensor, "L T S"], source: Sequence[Span], target: Sequence[Span]
) -> WordAlignment:
    """Every target word with the source word of the greatest weight.

    Weights are summed over the tokens of a source word, and averaged over those of a target word;
    the end of the source has none. Of the layers, the one is taken whose greatest weights are the
    highest in the mean, as layers that align have few large weights.

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


def words_of_text(
    tokenizer: Tokenizer, ids: Sequence[int], log_probs: Float[Tensor, " T"]
) -> list[Word]:
    """The words of a text with their confidence, by the log-probabilities of its tokens."""
    return [
        Word(word, min(1.0, float(log_probs[start:stop].double().mean().exp())))
        for word, start, stop in word_spans(tokenizer, ids)
    ]
