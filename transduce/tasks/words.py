"""The words of an output: which tokens spell each, and how sure a model is of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.text.tokenizer import Tokenizer


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


def word_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[str, int, int]]:
    """The words that these tokens spell, each with its first token and the one behind its last.

    A token without a text, such as a space alone or an end, belongs to the word behind it, if there is one. Where a token
    spells the end of a word and the beginning of the next, it belongs to both.
    """
    spans: list[tuple[int, int]] = []
    before: list[str] = []
    first = 0
    for n, text in enumerate(tokenizer.decode([ids[:n] for n in range(1, len(ids) + 1)]), start=1):
        words = text.split()
        if not words or words == before:
            continue
        if len(before) == len(spans) and len(words) > len(before) and before and words[len(before) - 1] != before[-1]:
            spans[-1] = (spans[-1][0], n)
        spans += [(first, n)] * (len(words) - len(spans))
        spans[len(words) - 1] = (spans[len(words) - 1][0], n)
        before, first = words, n
    return [(word, *span) for word, span in zip(before, spans, strict=False)]


def words_of_text(tokenizer: Tokenizer, ids: Sequence[int], log_probs: Float[Tensor, " T"]) -> list[Word]:
    """The words of a text, with the geometric mean of the probabilities of their tokens."""
    return [Word(w, min(1.0, float(log_probs[a:b].double().mean().exp()))) for w, a, b in word_spans(tokenizer, ids)]
