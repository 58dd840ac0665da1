"""Parallel text: in files, as a whole in memory, or, if it may not fit into memory, read from its
files as often as needed."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from transduce.data.base_tokenizer import TAG
from transduce.data.lines import each_line, in_step, is_blank, lines_fingerprint
from transduce.data.tables import each_cell_row, tsv_cells
from transduce.errors import InputError, logger
from transduce.process import Bar

POOL = 1 << 18
"""Pairs of a training text that are in memory at a time; a text of at most this size stays in
memory."""

SAMPLE = 1 << 19
"""Pairs of a large text from which a tokenizer is trained."""

BLOCK = 1 << 14
"""Pairs of a large text that are read at a time."""

SURVEY = "survey.json"

MARKUP = (".sgm", ".sgml", ".xml")
"""Endings of WMT's test sets, whose lines of markup would be sentences."""

Pair = tuple[str, str]
CopiedAs = Callable[[str], str]
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class ParallelText:
    """Sentence pairs: target[i] translates source[i]. `n_blank` pairs were left out, as a side was
    blank."""

    source: list[str]
    target: list[str]
    n_blank: int = 0

    @classmethod
    def of(cls, pairs: Iterable[Pair], n_blank: int = 0) -> "ParallelText":
        """The text of these pairs."""
        pairs = list(pairs)
        return cls([source for source, _ in pairs], [target for _, target in pairs], n_blank)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Pair]:
        return zip(self.source, self.target, strict=True)

    def hold_out(self, n: int, seed: int) -> tuple["ParallelText", "ParallelText"]:
        """Split into a training text and n pairs for validation; both keep their order.

        The choice is a function of n, the seed and the number of pairs. Pairs that equal a held-out
        pair on both sides are removed from the training text, too.

        Raises:
            InputError: no pair would be left for training.
        """
        held_out = _draw([*self], n, seed)
        equal = frozenset(held_out)
        train = (pair for pair in self if pair not in equal)
        return ParallelText.of(train, self.n_blank), ParallelText.of(held_out)

    def with_copies(self, copied_as: CopiedAs) -> "ParallelText":
        """The same text with copies of its pairs; see `with_copies`."""
        return ParallelText.of(with_copies(self, copied_as), self.n_blank)

    def sample(self) -> tuple[list[str], list[str]]:
        """Source and target sentences to train a tokenizer on: all of them."""
        return self.source, self.target

    def lines(self) -> Iterator[str]:
        """The lines that a fingerprint is made of."""
        yield from self.source
        yield from self.target


@dataclass(frozen=True)
class PairFiles:
    """Sentence pairs in two parallel files, or in one TSV of source, tab, target.

    If `columns` has the names of the source and target columns, the files are tables, which are
    read one after the other.
    """

    paths: tuple[Path, ...]
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))

    def __iter__(self) -> Iterator[Pair]:
        """All pairs, including those with a blank side.

        Raises:
            InputError: the line counts differ, a line of a TSV has no tab or more than one, a
                column is missing, or a file is SGML or XML.
        """
        return self.decoded("strict")

    def decoded(self, errors: str) -> Iterator[Pair]:
        """All pairs; for `errors` see `each_line`."""
        if self.columns:
            rows = (each_cell_row(path, self.columns, errors) for path in self.paths)
            return ((source, target) for source, target in chain.from_iterable(rows))
        if len(self.paths) == 1:
            return each_tsv_pair(self.paths[0], errors)
        if marked_up := [path for path in self.paths if path.suffix.lower() in MARKUP]:
            raise InputError(
                f"parallel text has a sentence a line, but {marked_up[0]} has markup by its name; "
                "extract its text, as sacrebleu --echo writes that of WMT's test sets"
            )
        return in_step([*map(str, self.paths)], *(each_line(path, errors) for path in self.paths))

    def read(self, *, keep_blank: bool = False) -> ParallelText:
        """The pairs that have text on both sides, for training.

        Args:
            keep_blank: return all pairs, for validation and test: line n of an output belongs to
                line n of the files.

        Raises:
            InputError: as for iteration, or no pair has text on both sides.
        """
        pairs = list(self)
        text = _with_text(pairs, str(self))
        return ParallelText.of(pairs) if keep_blank else text

    def read_or_survey(self, cache: Path) -> "ParallelText | LargeText":
        """The pairs that have text on both sides, in memory where the files have no more than POOL
        pairs."""
        beginning = list(islice(self, POOL + 1))
        if len(beginning) <= POOL:
            return _with_text(beginning, str(self))
        if pipe := next((path for path in self.paths if not path.is_file()), None):
            raise InputError(
                f"more than {POOL:,} pairs are read from their files several times, but {pipe} is "
                "not a regular file and can be read only once; write it to a file, which may be .gz"
            )
        return survey(self, cache)


def each_tsv_pair(path: Path, errors: str = "strict") -> Iterator[Pair]:
    """The lines of a file, each a source sentence, a tab and its target sentence.

    Raises:
        InputError: a line has no tab or more than one.
    """
    for number, line in enumerate(each_line(path, errors), start=1):
        source, *others = tsv_cells(line)
        if len(others) != 1:
            raise InputError(
                f"a line must be a source, a tab and its target, but {path}, line {number}, has "
                f"{1 + len(others)} cells for 2 columns (source, target); write tabs instead of "
                "spaces, or keep only two columns with cut -f1,2"
            )
        yield source, others[0]


def _with_text(pairs: Sequence[Pair], name: str) -> ParallelText:
    """The pairs that have text on both sides.

    Raises:
        InputError: there is none in the files of this name.
    """
    usable = [*filter(has_text, pairs)]
    if not usable:
        raise InputError(
            "a corpus needs a pair with text on both sides, but there is none in the "
            f"{len(pairs)} lines of {name}"
        )
    return ParallelText.of(usable, len(pairs) - len(usable))


@dataclass(frozen=True)
class LargeText:
    """Sentence pairs that stay in their files and are read one after the other.

    `n_pairs` have text on both sides; the `n_blank` others are left out.
    """

    files: PairFiles
    folder: Path
    """The cache of what is computed from the text."""
    n_pairs: int
    n_blank: int
    digest: str
    held_out: frozenset[Pair] = frozenset()
    """Pairs held out for validation; equal pairs are left out, too."""
    copied_as: CopiedAs | None = None
    """Maps a source to that of a second copy of its pair."""

    def __iter__(self) -> Iterator[Pair]:
        return self._for_training(filter(has_text, self.files))

    def _for_training(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The pairs that are not held out, with their copies."""
        left = (pair for pair in pairs if pair not in self.held_out)
        return with_copies(left, self.copied_as) if self.copied_as else left

    def with_copies(self, copied_as: CopiedAs) -> "LargeText":
        """The same text with copies of its pairs; see `with_copies`."""
        return replace(self, copied_as=copied_as)

    def hold_out(self, n: int, seed: int) -> tuple["LargeText", ParallelText]:
        """Split as a `ParallelText` does; the pairs for validation are drawn from the sample.

        Raises:
            InputError: no pair of the sample would be left for training.
        """
        held_out = _draw(self._sample(), n, seed)
        return replace(self, held_out=frozenset(held_out)), ParallelText.of(held_out)

    def sample(self) -> tuple[list[str], list[str]]:
        """Source and target sentences to train a tokenizer on: at most SAMPLE pairs, all equally
        likely."""
        return ParallelText.of(self._for_training(self._sample())).sample()

    def lines(self) -> Iterator[str]:
        """The lines that a fingerprint is made of: the digest of the text."""
        yield self.digest + " copies" * bool(self.copied_as)

    def _sample(self) -> list[Pair]:
        with (self.folder / "sample.jsonl").open(encoding="utf-8") as file:
            return [(source, target) for source, target in map(json.loads, file)]


def survey(files: PairFiles, cache: Path) -> LargeText:
    """Read a large text once: count and hash its pairs, and draw the sample.

    The results are kept in `cache`, under a hash of the files' paths, sizes and times of change,
    and of the columns that are read, so that the next start need not read the text.
    """
    status = [
        (str(path.resolve()), (stat := path.stat()).st_size, stat.st_mtime_ns)
        for path in files.paths
    ]
    folder = cache / hashlib.sha256(repr((status, files.columns)).encode()).hexdigest()[:16]
    if not (folder / SURVEY).is_file():
        _survey(files, folder)
    return LargeText(files, folder, **json.loads((folder / SURVEY).read_text()))


def _survey(files: PairFiles, folder: Path) -> None:
    from transduce.files import write_file, write_json  # they load torch: slow for --help

    rng = np.random.default_rng(0)
    digests = [hashlib.sha256(), hashlib.sha256()]
    n_pairs = n_blank = 0
    sample: list[Pair] = []
    with Bar(desc="reading", unit="pair", unit_scale=True) as bar:
        for block in blocks(files, BLOCK):
            pairs = [*filter(has_text, block)]
            # reservoir sampling: pair i replaces another one with probability SAMPLE / (i + 1)
            places = rng.integers(np.arange(n_pairs, n_pairs + len(pairs)) + 1).tolist()
            for pair, place in zip(pairs, places, strict=True):
                for digest, text in zip(digests, pair, strict=True):
                    digest.update(f"{text}\n".encode())
                if len(sample) < SAMPLE:
                    sample.append(pair)
                elif place < SAMPLE:
                    sample[place] = pair
            n_pairs += len(pairs)
            n_blank += len(block) - len(pairs)
            bar.update(len(block))
    write_file(folder / "sample.jsonl", "".join(json.dumps(pair) + "\n" for pair in sample))
    both = hashlib.sha256("".join(side.hexdigest() for side in digests).encode())
    counts = {"n_pairs": n_pairs, "n_blank": n_blank, "digest": both.hexdigest()}
    write_json(folder / SURVEY, counts)


def _draw(pairs: Sequence[Pair], n: int, seed: int) -> list[Pair]:
    """n of the pairs, in their order.

    Raises:
        InputError: every pair is drawn, or equal to a drawn one.
    """
    order = np.random.default_rng(seed).permutation(len(pairs))
    drawn = [pairs[i] for i in sorted(order[:n].tolist())]
    if {*pairs} <= {*drawn}:
        raise InputError(
            f"training needs pairs besides those held out, but hold_out={n} takes all of the "
            f"{len(pairs)} that it is drawn from; hold out fewer"
        )
    logger.warning(
        "validation holds out %d training pairs; pairs equal to them are removed from the training "
        "text, too",
        n,
    )
    return drawn


def with_copies(pairs: Iterable[Pair], copied_as: CopiedAs) -> Iterator[Pair]:
    """Each pair, followed by a copy with another source, unless that is blank or the same.

    A tag in front of a source, such as <2de>, stays as it is.
    """
    for source, target in pairs:
        yield source, target
        tag = TAG.match(source)
        start = tag.end() if tag else 0
        copy = copied_as(source[start:])
        if copy and copy != source[start:].strip():
            yield f"{source[:start]} {copy}".lstrip(), target


def has_text(pair: Pair) -> bool:
    """Whether neither side is blank."""
    return not any(map(is_blank, pair))


def blocks(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Lists of `size` items; the last list may have fewer."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def fingerprint(*texts: ParallelText | LargeText) -> str:
    """SHA-256 of the sentences, which does not depend on where the files are."""
    return lines_fingerprint(line for text in texts for line in text.lines())
