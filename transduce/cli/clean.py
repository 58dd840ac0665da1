"""`transduce data clean`: parallel text without the pairs that teach nothing."""

import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import mode
from typing import Annotated
from xml.etree import ElementTree

from tyro.conf import Positional, arg

from transduce.config import at_least
from transduce.data.lines import decode_lines
from transduce.data.parallel_text import Pair, PairFiles, has_text
from transduce.errors import InputError
from transduce.process import Bar

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
"""The attribute of a TMX file that names the language of a text."""

FIRST = 10_000
"""Pairs that tell the script of each side."""

ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK"}
"""Scripts that one text mixes."""

Text = Annotated[tuple[Path, ...], arg(metavar="FILE ...")]


def clean(
    files: Positional[Text],
    *,
    source: str,
    target: str,
    output: Annotated[Path, arg(metavar="PREFIX")],
    max_ratio: float = 3.0,
    max_words: int = 200,
) -> None:
    """Leave out pairs that teach nothing; each that goes is counted, and kept in a file.

    FILE is two files, a TSV of source, tab, target, a TMX file, or a Moses zip of OPUS as it comes.
    PREFIX.en and PREFIX.de get the pairs that stay, PREFIX.removed.tsv the others and why: a blank
    side, the same text on both, another pair again, a longer side than `max_words`, sides whose
    lengths differ by more than `max_ratio`, a wrong encoding (Ã¼ for ü, or �), or mostly letters
    of another script than the text has, as of another language.

    Args:
        files: The parallel text.
        source: The language that goes in, such as en: the ending of its file.
        target: The language that comes out, such as de.
        output: What the names of the new files begin with.
        max_ratio: The characters of the longer side for each of the shorter one.
        max_words: Words of a side.
    """
    from transduce.files import replacing

    at_least(1, max_ratio=max_ratio, max_words=max_words)
    pairs = each_pair(files, source, target)
    first = filter(has_text, islice(each_pair(files, source, target), FIRST))
    scripts = [mode(map(script_of, side)) for side in zip(*first, strict=True)]
    filters = Filters(max_ratio, max_words, scripts)
    removed = Counter[str]()
    kept = 0
    names = [f"{output}.{ending}" for ending in (source, target, "removed.tsv")]
    output.parent.mkdir(parents=True, exist_ok=True)
    one, other, rest = (replacing(Path(name)) for name in names)
    with one as sources, other as targets, rest as others, Bar(unit="pair", unit_scale=True) as bar:
        for pair in pairs:
            if reason := filters.reason(pair):
                removed[reason] += 1
                others.write(("\t".join((reason, *pair)) + "\n").encode())
            else:
                kept += 1
                for file, text in zip((sources, targets), pair, strict=True):
                    file.write(f"{text}\n".encode())
            bar.update()
    counts = ", ".join(f"{n:,} {reason}" for reason, n in removed.most_common()) or "none"
    print(f"{names[0]} and {names[1]}: {kept:,} pairs; {names[2]}: {counts}")


def each_pair(files: Sequence[Path], source: str, target: str) -> Iterator[Pair]:
    """The pairs of parallel text in a form that is used.

    Raises:
        InputError: it is something else, or lacks a language.
    """
    if not 0 < len(files) < 3:
        raise InputError(f"a parallel text is one or two files, but there are {len(files)}")
    readers = {".zip": _moses_pairs, ".tmx": _tmx_pairs}
    if len(files) == 1 and (read := readers.get(files[0].suffix)):
        return read(files[0], source, target)
    return iter(PairFiles(tuple(files)))


def _moses_pairs(path: Path, source: str, target: str) -> Iterator[Pair]:
    try:
        with zipfile.ZipFile(path) as packed:
            sides = []
            for language in (source, target):
                names = [name for name in packed.namelist() if name.endswith(f".{language}")]
                if len(names) != 1:
                    raise InputError(
                        f"a Moses zip must have a file that ends in .{language}, but {path} has "
                        f"{', '.join(packed.namelist())}; name its languages with --source and "
                        "--target"
                    )
                sides.append(decode_lines(packed.open(names[0]), f"{path}: {names[0]}"))
            yield from zip(*sides, strict=True)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is no whole zip file: {error}; fetch it again") from error


def _tmx_pairs(path: Path, source: str, target: str) -> Iterator[Pair]:
    """The units of a TMX file that have text in both languages; en also stands for en-GB."""
    try:
        for _, unit in ElementTree.iterparse(path):
            if unit.tag == "tu":
                texts = {}
                for variant in unit.iter("tuv"):
                    name = variant.get(LANGUAGE) or variant.get("lang") or ""
                    text = " ".join("".join(variant.itertext()).split())
                    texts[name.lower()] = texts[name.lower().split("-")[0]] = text
                if source.lower() in texts and target.lower() in texts:
                    yield texts[source.lower()], texts[target.lower()]
                unit.clear()
    except (ElementTree.ParseError, OSError) as error:
        raise InputError(f"{path} is no whole TMX file: {error}; fetch it again") from error


@dataclass
class Filters:
    """What a pair must be to stay; `scripts` are those of both sides."""

    max_ratio: float
    max_words: int
    scripts: Sequence[str]
    seen: set[int] = field(default_factory=set)

    def reason(self, pair: Pair) -> str:
        """Why this pair goes; "" if it stays."""
        lengths = sorted(map(len, pair))
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
        if any(script not in ("", usual) for script, usual in scripts):
            return "other script"
        return ""


def _decoded_twice(text: str) -> bool:
    """Whether UTF-8 was read as Latin-1 or Windows-1252, and written as UTF-8 again."""
    for encoding in ("latin1", "cp1252"):
        try:
            if not text.isascii() and text.encode(encoding).decode():
                return True
        except UnicodeError:
            continue
    return False


def script_of(text: str) -> str:
    """The script of most letters, as their Unicode names begin; "" where there are no letters."""
    scripts = Counter(map(_script, text))
    del scripts[""]
    return max(scripts, key=scripts.__getitem__, default="")


@cache
def _script(character: str) -> str:
    name = unicodedata.name(character, "?") if character.isalpha() else ""
    script = re.split("[ -]", name)[0]
    return ONE_SCRIPT.get(script, script)
