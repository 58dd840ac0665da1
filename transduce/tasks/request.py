"""What is asked of a search: of one source, for its outputs, beside the models; and its checks."""

import logging
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from transduce.decode.phrases import Prefix
from transduce.decode.scorer import Scorer
from transduce.errors import InputError

logger = logging.getLogger("transduce")

TextT = TypeVar("TextT", str, Sequence[str])

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which stands for a byte that was no UTF-8."""


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

    @property
    def has_text(self) -> bool:
        """Whether some of the output is prescribed."""
        return bool(self.prefix or any(self.require))


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


def check_list(inputs: object, rule: str, *, of_text: bool = False) -> None:
    """Raise InputError with this rule unless an input is a list, and no single string or path.

    Args:
        of_text: every element must be text that UTF-8 can encode.
    """
    if isinstance(inputs, str | Path):
        raise InputError(f"{rule}, but got one string; use [{str(inputs)[:20]!r}]")
    if not isinstance(inputs, Collection):
        raise InputError(f"{rule}, but got {type(inputs).__name__}; make a list of it")
    for i, each in enumerate(inputs if of_text else ()):
        if not isinstance(each, str) or (not each.isascii() and SURROGATE.search(each)):
            raise InputError(
                f"{rule}, but element {i} is {each!r:.40}, which UTF-8 cannot hold; make text of it"
            )


def per_line(texts: Sequence[TextT] | None, n: int, name: str, empty: TextT) -> Sequence[TextT]:
    """One text, or list of texts, for each of n inputs; an empty one each for None.

    Raises:
        InputError: there are not as many.
    """
    if texts is not None and (isinstance(texts, str) or len(texts) != n):
        actual = "one string" if isinstance(texts, str) else len(texts)
        raise InputError(
            f"{name} must be a list with one for each of the {n} inputs, but got {actual}; use an "
            "empty one for none"
        )
    return texts or [empty] * n


def warn_of_lacking(name: str, phrases: Sequence[str], text: str) -> None:
    """Warn of required phrases that a text lacks; `name` says what the text is of."""
    if lacking := [phrase for phrase in phrases if phrase.strip(" ") not in text]:
        logger.warning("%s has no room for, or must not hold, what it requires: %s", name, lacking)
