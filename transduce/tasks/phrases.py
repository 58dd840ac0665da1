"""Phrases as text to what a search understands: what an output begins with, and what it must not hold."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.phrases import Forbidden, Prefix, Required, Vocabulary
from transduce.errors import InputError

logger = logging.getLogger("transduce")

TextT = TypeVar("TextT", str, Sequence[str])


@lru_cache(maxsize=4)
def vocabulary(tokenizer: Tokenizer, size: int = 0) -> Vocabulary:
    """What the tokens write; those beyond the tokenizer's, up to `size`, write nothing."""
    surfaces = tokenizer.surfaces
    return Vocabulary([*surfaces, *[b""] * (size - len(surfaces))], tokenizer.eos_id)


@lru_cache(maxsize=4)
def forbidden(tokenizer: Tokenizer, phrases: tuple[str, ...], size: int = 0) -> Forbidden | None:
    """The phrases as they stand, and as the tokenizer normalizes them; None if there are none."""
    found = {phrase.encode() for phrase in phrases}
    for phrase in phrases:
        try:
            found.add(normalized(tokenizer, phrase))
        except InputError:  # what has no tokens comes out of none
            continue
    return Forbidden(vocabulary(tokenizer, size), sorted(found)) if found else None


def normalized(tokenizer: Tokenizer, phrase: str) -> bytes:
    """The phrase as the tokenizer normalizes it, with a space at either end if it has one there.

    Raises:
        InputError: not all of it has a token.
    """
    if not (bare := phrase.strip(" ")):
        return phrase.encode()
    inner = tokenizer.spelled(bare).strip(b" ")
    return b" " * phrase.startswith(" ") + inner + b" " * phrase.endswith(" ")


def prefix(tokenizer: Tokenizer, text: str) -> Prefix | None:
    """What begins an output; None for no text.

    The words before the last one are cut as in training, as it is these tokens that the model knows; the last word may
    be cut in any way, and go on, for whoever types may be in the middle of it. A space behind it ends it.

    Raises:
        InputError: not all of it has a token.
    """
    if not text.strip():
        return None
    (ids,), surfaces, whole = tokenizer.encode([text]), tokenizer.surfaces, tokenizer.spelled(text)
    last = max((i for i, token in enumerate(ids) if surfaces[token].startswith(b" ")), default=0)
    free = b"".join(surfaces[token] for token in ids[last:])
    found = Prefix(vocabulary(tokenizer), ids[:last], free + b" " * (text[-1] == " " and whole[-1:] != b" "))
    if not last and not text.startswith(
        " "
    ):  # a space before the first word is in no text, but the byte of one would be
        bare = tokenizer.decode([[token] for token in found.ways[0]])
        found.ways[0] = [i for i, own in zip(found.ways[0], bare, strict=True) if not own.startswith(" ")]
    return found


def required(tokenizer: Tokenizer, phrases: Sequence[Sequence[str]]) -> Required | None:
    """What each output must hold; None if that is nothing for all of them.

    Raises:
        InputError: not all of a phrase has a token.
    """
    rows = [[normalized(tokenizer, phrase) for phrase in each] for each in phrases]
    return Required(vocabulary(tokenizer), rows) if any(rows) else None


def warn_of_lacking(name: str, phrases: Sequence[str], text: str) -> None:
    """Say which of the phrases that it must hold a text lacks; `name` says what the text is of."""
    if lacking := [phrase for phrase in phrases if phrase.strip(" ") not in text]:
        logger.warning("%s has no room for, or must not hold, what it requires: %s", name, lacking)


def per_line(texts: Sequence[TextT] | None, n: int, name: str, empty: TextT) -> Sequence[TextT]:
    """One text, or list of texts, for each of n inputs; an empty one each where none are given.

    Raises:
        InputError: there are not as many.
    """
    if isinstance(texts, str) or (texts is not None and len(texts) != n):
        told = f"{len(texts)}" if not isinstance(texts, str) else "one string"
        raise InputError(
            f"{name} must be a list with one for each of the {n} inputs, but got {told}; use an empty one for none"
        )
    return texts or [empty] * n
