"""Checks of the inputs of a task."""

import logging
import re
from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import TypeVar

from transduce.errors import InputError

logger = logging.getLogger("transduce")

TextT = TypeVar("TextT", str, Sequence[str])

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which stands for a byte that was no UTF-8."""


def check_list(given: object, rule: str, *, of_text: bool = False) -> None:
    """Raise InputError with this rule unless an input is a list, and no single string or path.

    Args:
        of_text: every element must be text that UTF-8 can encode.
    """
    if isinstance(given, str | Path):
        raise InputError(f"{rule}, but got one string; use [{str(given)[:20]!r}]")
    if not isinstance(given, Sized) or not isinstance(given, Iterable):
        raise InputError(f"{rule}, but got {type(given).__name__}; make a list of it")
    for i, each in enumerate(given if of_text else ()):
        if not isinstance(each, str):
            raise InputError(
                f"{rule}, but element {i} is {each!r:.40} of type {type(each).__name__}; make text "
                "of it"
            )
        if not each.isascii() and SURROGATE.search(each):
            raise InputError(
                f"{rule}, but element {i} has half a character, {each!r:.40}; read it as UTF-8"
            )


def per_line(texts: Sequence[TextT] | None, n: int, name: str, empty: TextT) -> Sequence[TextT]:
    """One text, or list of texts, for each of n inputs; an empty one each for None.

    Raises:
        InputError: there are not as many.
    """
    if isinstance(texts, str) or (texts is not None and len(texts) != n):
        actual = "one string" if isinstance(texts, str) else f"{len(texts)}"
        raise InputError(
            f"{name} must be a list with one for each of the {n} inputs, but got {actual}; use an "
            "empty one for none"
        )
    return texts or [empty] * n


def warn_of_lacking(name: str, phrases: Sequence[str], text: str) -> None:
    """Warn of required phrases that a text lacks; `name` says what the text is of."""
    if lacking := [phrase for phrase in phrases if phrase.strip(" ") not in text]:
        logger.warning("%s has no room for, or must not hold, what it requires: %s", name, lacking)
