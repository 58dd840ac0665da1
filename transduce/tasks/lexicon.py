"""The words that a run knows: those of its training, in a file to which one may add others; see decode/lexicon.py."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.lines import read_lines
from transduce.decode.lexicon import Lexicon
from transduce.errors import InputError
from transduce.files import write_file
from transduce.run import LEXICON as FILE
from transduce.tasks.phrases import normalized, vocabulary


def save_lexicon(directory: Path, words: Iterable[str]) -> None:
    """Write the words into a run directory, one in each line, unless it has some, as somebody may have added to them."""
    if words and not (directory / FILE).exists():
        write_file(directory / FILE, "".join(f"{word}\n" for word in words))


def load_lexicon(directory: Path) -> tuple[str, ...]:
    """The words of a run directory; none if it has no such file."""
    path = directory / FILE
    return tuple(word for line in read_lines(path) for word in line.split()) if path.exists() else ()


@lru_cache(maxsize=4)
def lexicon(tokenizer: Tokenizer, words: tuple[str, ...]) -> Lexicon:
    """The words as the tokenizer normalizes them.

    Raises:
        InputError: none of them has tokens.
    """
    found = set[bytes]()
    for word in words:
        try:
            found |= {*normalized(tokenizer, word).split()}
        except InputError:  # what has no tokens cannot come out
            continue
    if not found:
        raise InputError(
            f"known words must be such as the run's tokenizer can spell, but of {len(words)} it can spell none; write others into "
            f"the run's {FILE}, or say words=any"
        )
    return Lexicon(vocabulary(tokenizer), sorted(found))
