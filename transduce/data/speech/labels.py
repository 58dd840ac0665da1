"""Columns of labels such as phones: words of an alphabet of their own, each of which is one token."""

from collections.abc import Iterable, Sequence

from transduce.data.text.tokenizer import Tokenizer
from transduce.errors import InputError


def label_symbols(cells: Iterable[str]) -> list[str]:
    """The symbols that stand for the labels in these cells, which spaces separate: <AH> for AH, in the order of the alphabet."""
    return sorted({f"<{label}>" for cell in cells for label in cell.split()})


def encode_labels(tokenizer: Tokenizer, cells: Sequence[str]) -> list[list[int]]:
    """The ids of the symbols of every cell's labels.

    Raises:
        InputError: the tokenizer lacks the symbol of one of them.
    """
    known = {name: i for i, name in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    if lacking := [symbol for symbol in label_symbols(cells) if symbol not in known]:
        raise InputError(
            f"a label needs a symbol of its own in the vocabulary, but there is none for {lacking[0][1:-1]!r}; name it with "
            f"--symbols {lacking[0]!r}, or correct the column"
        )
    return [[known[f"<{label}>"] for label in cell.split()] for cell in cells]
