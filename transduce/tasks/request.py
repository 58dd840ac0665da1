"""Typed arguments of a search: what one source asks for, and what outputs carry besides their text."""

from collections.abc import Sequence
from dataclasses import dataclass

from transduce.decode.phrases import Prefix


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one source asks of a search, beyond the configuration."""

    prefix: Prefix | None = None
    """The beginning of the output."""
    require: Sequence[str] = ()
    """Phrases in the output."""
    number: int = 0
    """The number of the input among all; samples depend on it."""
    part: int = 0
    """The number of this part of the input; samples depend on it, too."""


@dataclass(frozen=True, kw_only=True)
class Details:
    """What outputs carry besides their text."""

    token_scores: bool = False
    """Log-probabilities of tokens, and the confidence of words."""
    alignments: bool = False
    """The source word that each word was written from; of text."""
    word_times: bool = False
    """The times of words, and their confidence by CTC; of sound."""
    no_speech: bool = False
    """The probability that nobody speaks, where the model can tell."""
