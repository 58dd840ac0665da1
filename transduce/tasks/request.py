"""Typed arguments of a search: of one source, and of what outputs carry besides text."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transduce.decode.phrases import Prefix
from transduce.decode.scorer import Scorer
from transduce.decode.shortlist import Shortlist
from transduce.errors import InputError
from transduce.tasks.config import SearchConfig


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


@dataclass(frozen=True)
class LanguageModel:
    """A language model beside the models that write (shallow fusion)."""

    begin: Callable[[int], Scorer]
    """A scorer of n texts at their beginning."""
    max_length: int = sys.maxsize
    """The most tokens of a text."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a search may use beside the models of a run."""

    shortlist: Shortlist | None = None
    """The tokens that those of a source may become, for `config.shortlist`."""
    words: tuple[str, ...] = ()
    """The lexicon, for `config.words`."""
    lm: LanguageModel | None = None
    """A language model with the weight `config.lm_weight` beside the models, which have 1
    together."""

    def check(self, config: SearchConfig) -> None:
        """Check that a search has what it needs.

        Raises:
            InputError: it has no lexicon or no language model.
        """
        if config.words == "known" and not self.words:
            raise InputError(
                "words=known needs the lexicon of a run of speech to text, but this run has none; "
                "write words into its "
                "lexicon.txt, one in each line, or say words=any"
            )
        if config.lm_weight and self.lm is None:
            raise InputError(
                f"lm_weight needs a language model, but lm_weight={config.lm_weight} and none is "
                "loaded; name one with "
                "--lm, or td.load(RUN, lm=...)"
            )
