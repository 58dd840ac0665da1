"""The words of an output: which tokens spell each, and how sure a model is of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer

Span = tuple[str, int, int]
"""A word, its first token, and the one behind its last."""


@dataclass(frozen=True)
class TokenScores:
    """How likely a given text is, token by token."""

    tokens: list[str]
    """The T tokens, readable, as the tokenizer cuts the text; the end is one of them where the model predicts it."""
    log_probs: Float[Tensor, " T"]
    """The natural log-probability of each, given the tokens before it, and the source if there is one."""

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the whole text."""
        return float(self.log_probs.double().sum())


def joined(scores: Sequence[TokenScores | None]) -> TokenScores | None:
    """Those of several texts as those of one, if they are known."""
    known = [each for each in scores if each]
    tokens = [token for each in known for token in each.tokens]
    return TokenScores(tokens, torch.cat([each.log_probs for each in known])) if known else None


@dataclass(frozen=True)
class Word:
    """A word of an output: what stands between white space."""

    text: str
    confidence: float
    """0 ... 1. Of text, the geometric mean of the probabilities of its tokens. Of sound, the same of each token's share in
    all that CTC would write where it stands."""
    start: float | None = None
    """Seconds from the beginning of the sound, where times were asked for."""
    stop: float | None = None

    def later(self, seconds: float) -> "Word":
        """The same word in a sound that begins so much earlier."""
        if self.start is None or self.stop is None:
            return self
        return replace(self, start=self.start + seconds, stop=self.stop + seconds)


@dataclass(frozen=True)
class WordAlignment:
    """Which word of a source each word of an output was written from."""

    source: list[str]
    """The words of the source, as its tokens spell them."""
    target: list[str]
    pairs: list[tuple[int, int]]
    """The number of a source word and that of a target word, one pair for every target word, in their order."""
    layer: int | None = None
    """The decoder's layer, from 0, whose looks these are; None of a text in parts, which may have several."""

    def __str__(self) -> str:
        """As Pharaoh writes it: 0-0 1-2."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)

    def followed_by(self, other: "WordAlignment") -> "WordAlignment":
        """This text and another one behind it, as one."""
        pairs = [(source + len(self.source), target + len(self.target)) for source, target in other.pairs]
        return WordAlignment(self.source + other.source, self.target + other.target, self.pairs + pairs)


def word_alignment(weights: Float[Tensor, "L T S"], source: Sequence[Span], target: Sequence[Span]) -> WordAlignment:
    """Every target word with the source word that it looks at most.

    A look at a word is one at any of its tokens; a word looks as its tokens do in the mean. Layers differ, and one that
    aligns looks at few places: that whose words have the highest greatest share, in the mean, is taken. A look at the end
    of the source is one at nothing.

    Args:
        weights: cross-attention of every layer, the mean of its heads.
        source, target: the words and their tokens, see `word_spans`.
    """
    words = [word for word, _, _ in source], [word for word, _, _ in target]
    if not source or not target:
        return WordAlignment(*words, [])
    looks = torch.stack([weights[:, a:b].mean(dim=1) for _, a, b in target], dim=1)
    looks = torch.stack([looks[:, :, a:b].sum(dim=2) for _, a, b in source], dim=2)
    layer = int(looks.amax(dim=2).mean(dim=1).argmax())
    return WordAlignment(*words, [(place, n) for n, place in enumerate(looks[layer].argmax(dim=1).tolist())], layer)


def word_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span]:
    """The words that these tokens spell, each with its first token and the one behind its last.

    A token without a text, such as a space alone or an end, belongs to the word behind it, if there is one. Where a token
    spells the end of a word and the beginning of the next, it belongs to both.
    """
    spans: list[tuple[int, int]] = []
    before: list[str] = []
    first = 0
    for n, text in enumerate(tokenizer.beginnings(ids), start=1):
        words = text.split()
        if not words or words == before:
            continue
        if len(before) == len(spans) and len(words) > len(before) and before and words[len(before) - 1] != before[-1]:
            spans[-1] = (spans[-1][0], n)
        spans += [(first, n)] * (len(words) - len(spans))
        spans[len(words) - 1] = (spans[len(words) - 1][0], n)
        before, first = words, n
    (whole,) = tokenizer.decode([ids])
    return [(word, *span) for word, span in zip(whole.split(), spans, strict=False)]


def words_of_text(tokenizer: Tokenizer, ids: Sequence[int], log_probs: Float[Tensor, " T"]) -> list[Word]:
    """The words of a text, with the geometric mean of the probabilities of their tokens."""
    return [Word(w, min(1.0, float(log_probs[a:b].double().mean().exp()))) for w, a, b in word_spans(tokenizer, ids)]
