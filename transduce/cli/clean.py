"""`transduce data clean`: remove pairs of parallel text that are useless for training."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from pathlib import Path
from statistics import mode
from typing import Annotated

from tyro.conf import Positional, arg

from transduce.cli.common import Texts
from transduce.cli.large_files import check_output
from transduce.config import at_least
from transduce.data.parallel_text import Pair, PairFiles, has_text
from transduce.data.tables import TABLES, table_files
from transduce.errors import InputError
from transduce.process import Bar

FIRST = 10_000
"""Number of first pairs that determine the usual script of each side."""

ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "HALFWIDTH": "CJK", "FULLWIDTH": "LATIN"}
"""Scripts that count as another one: texts mix them, or they are its letters in another width."""

WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\U00020000-\U0003fffd]"
)
"""A character of Chinese, Japanese or Korean, which says about as much as three letters."""


def clean(
    files: Positional[Texts],
    *,
    source: str,
    target: str,
    output: Annotated[Path, arg(metavar="PREFIX")],
    max_ratio: float = 3.0,
    max_words: int = 200,
) -> None:
    """Remove pairs that are useless for training; they are counted, and kept in a file.

    FILE is two files, a TSV of source, tab, target, a TMX file or a Moses zip of OPUS as it comes,
    or a table (.csv, .jsonl, .parquet, .arrow) with a column named `source`, and one `target`.
    PREFIX.en and PREFIX.de get the pairs that are kept, PREFIX.removed.tsv the others with the
    reason: a blank side, the same text on both sides, a duplicate of another pair, a side longer
    than `max_words`, sides whose lengths differ by more than `max_ratio`, a wrong encoding (Ã¼ for
    ü, or �), or mostly letters of another script than the text usually has.

    Args:
        files: The parallel text.
        source: The source language, such as en, which becomes the suffix of its file.
        target: The target language, such as de.
        output: The prefix of the names of the new files.
        max_ratio: Maximum ratio of the lengths of the two sides in characters; Chinese, Japanese
            and Korean characters count three times.
        max_words: Maximum number of words of a side.
    """
    from transduce.files import replacing

    at_least(1, max_ratio=max_ratio, max_words=max_words)
    pairs = pair_files(files, source, target)
    first, more = _decoded(pairs)
    filters = Filters(max_ratio, max_words, _usual_scripts(first))
    counted = Counter[str]()
    names = _new_files(output, (source, target, "removed.tsv"), pairs.paths)
    one, other, rest = map(replacing, names)
    with one as sources, other as targets, rest as others, Bar(unit="pair", unit_scale=True) as bar:
        for pair in chain(first, more):
            counted[reason := filters.reason(pair)] += 1
            if reason:
                others.write(("\t".join((reason, *pair)) + "\n").encode())
            else:
                for file, text in zip((sources, targets), pair, strict=True):
                    file.write(f"{text}\n".encode())
            bar.update()
    n_pairs = counted.pop("", 0)
    counts = ", ".join(f"{n:,} {reason}" for reason, n in counted.most_common()) or "none"
    print(f"{names[0]} and {names[1]}: {n_pairs:,} pairs; {names[2]}: {counts}")
    if not n_pairs:
        raise InputError(f"training needs pairs, but none is left; {names[2]} has the reasons")


def _new_files(output: Path, endings: Sequence[str], inputs: Sequence[Path]) -> list[Path]:
    """The names of the new files, none of which may be an input.

    Raises:
        InputError: two of them would be one, or one is an input.
    """
    if len({*endings}) < len(endings):
        raise InputError(
            f"the new files are named by {', '.join(endings)}, but two are the same; give one "
            f"another name, such as {endings[1]}-2"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    names = [Path(f"{output}.{ending}") for ending in endings]
    for name in names:
        check_output(name, inputs)
    return names


def _usual_scripts(pairs: Sequence[Pair]) -> list[str]:
    """The most frequent script of each side."""
    sides = zip(*pairs, strict=True)
    return [mode([*filter(None, map(script_of, side))] or [""]) for side in sides]


def pair_files(files: Sequence[Path], source: str, target: str) -> PairFiles:
    """Two files or a TSV; or a table, whose columns are the languages.

    Raises:
        InputError: there are more files, or none.
    """
    if not 0 < len(files) < 3:
        raise InputError(f"a parallel text is one or two files, but there are {len(files)}")
    if len(files) == 1 and (files[0].is_dir() or files[0].name.lower().endswith(TABLES)):
        return PairFiles(table_files(files[0]), (source, target))
    return PairFiles(tuple(files))


def _decoded(pairs: PairFiles) -> tuple[list[Pair], Iterator[Pair]]:
    """The first pairs, and an iterator of the others, with U+FFFD for bytes that are not UTF-8;
    pairs with such bytes are removed later. All are read only once, as a pipe can be.

    Raises:
        InputError: more than a tenth of the first pairs have such bytes, as in another encoding.
    """
    more = pairs.decoded("replace")
    first = [*islice(more, FIRST)]
    if 10 * sum(any("\ufffd" in text for text in pair) for pair in first) > len(first):
        list(islice(pairs, FIRST))  # raises an error that names the line
    return first, more


@dataclass
class Filters:
    """Conditions for keeping a pair; `scripts` are the usual ones of both sides."""

    max_ratio: float
    max_words: int
    scripts: Sequence[str]
    seen: set[int] = field(default_factory=set)

    def reason(self, pair: Pair) -> str:
        """Why this pair is removed; "" if it is kept."""
        lengths = sorted(len(text) + 2 * len(WIDE.findall(text)) for text in pair)
        if not has_text(pair):
            return "blank"
        if hash(pair) in self.seen:
            return "duplicate"
        self.seen.add(hash(pair))
        if pair[0].strip() == pair[1].strip():
            return "untranslated"
        if any("\ufffd" in text or _decoded_twice(text) for text in pair):
            return "wrong encoding"
        if any(len(text.split()) > self.max_words for text in pair):
            return "too long"
        if lengths[1] > self.max_ratio * max(lengths[0], 10):  # short texts differ by more
            return "length ratio"
        scripts = zip(map(script_of, pair), self.scripts, strict=True)
        if any(script not in ("", usual or script) for script, usual in scripts):
            return "other script"
        return ""


CONTROLS = {byte: 0xDC00 + byte for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
"""Bytes that are no letter in Windows-1252, and which other programs read as control characters."""


def _decoded_twice(text: str) -> bool:
    """Whether UTF-8 was read as Latin-1 or Windows-1252, and written as UTF-8 again."""
    for encoding in ("latin1", "cp1252"):
        with suppress(UnicodeError):
            text.translate(CONTROLS).encode(encoding, "surrogateescape").decode()
            return not text.isascii()
    return False


def script_of(text: str) -> str:
    """The script of most letters, as their Unicode names begin; "" where there are no letters."""
    scripts = Counter(filter(None, map(_script, text)))
    return max(scripts, key=scripts.__getitem__, default="")


@cache
def _script(character: str) -> str:
    name = unicodedata.name(character, "?") if character.isalpha() else ""
    script = re.split("[ -]", name)[0]
    return ONE_SCRIPT.get(script, script)
