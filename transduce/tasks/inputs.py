"""What a task is called with: a list, of text where it reads text."""

import re
from collections.abc import Iterable, Sized
from pathlib import Path

from transduce.errors import InputError

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which stands for a byte that was no UTF-8."""


def check_list(given: object, rule: str, *, of_text: bool = False) -> None:
    """Raise InputError unless it is a list, and no single string or path; `rule` says who takes a list of what.

    Args:
        of_text: every element must be text, of characters that UTF-8 can write.
    """
    if isinstance(given, str | Path):
        raise InputError(f"{rule}, but got one string; use [{str(given)[:20]!r}]")
    if not isinstance(given, Sized) or not isinstance(given, Iterable):
        raise InputError(f"{rule}, but got {type(given).__name__}; make a list of it")
    for i, each in enumerate(given if of_text else ()):
        if not isinstance(each, str):
            raise InputError(f"{rule}, but element {i} is {each!r:.40} of type {type(each).__name__}; make text of it")
        if not each.isascii() and SURROGATE.search(each):
            raise InputError(f"{rule}, but element {i} has half a character, {each!r:.40}; read it as UTF-8")
