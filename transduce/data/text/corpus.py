"""Parallel text from files. Their lines stay aligned, and nothing is left out silently."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Literal

from transduce.config import at_least
from transduce.data.text.lines import check_row, each_cell_row, each_line, table_files
from transduce.data.text.parallel_text import POOL, LargeText, ParallelText, has_text, survey
from transduce.errors import InputError

CACHE = Path("runs/text")
"""Where large corpora are prepared unless something else is said."""

Split = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class PairFiles:
    """Sentence pairs in files: in two, whose lines i translate each other, or in a TSV of source, tab, target.

    With `columns`, of source and target, they are Parquet or Arrow files, one after the other.
    """

    paths: tuple[Path, ...]
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The pairs one after the other, those with a blank side too.

        Raises:
            InputError: the line counts differ, a line of a TSV has no tab or more than one, or a column is missing.
        """
        if self.columns:
            return ((s, t) for path in self.paths for s, t in each_cell_row(path, self.columns))
        return each_line_pair(*self.paths) if len(self.paths) == 2 else each_row_pair(*self.paths)

    def read(self) -> ParallelText:
        """All pairs that one can learn from: those with text on both sides.

        Raises:
            InputError: as above, or no pair is left.
        """
        return _without_blanks(self, str(self))

    def read_whole(self) -> ParallelText:
        """All pairs, as validation and test need them, so that line n of an output belongs to line n of the files.

        Raises:
            InputError: as for `read`.
        """
        pairs = list(self)
        _without_blanks(pairs, str(self))
        return ParallelText([source for source, _ in pairs], [target for _, target in pairs])

    def read_or_survey(self, cache: Path) -> ParallelText | LargeText:
        """All pairs at once where they are no more than POOL, which is what memory surely takes."""
        beginning = list(islice(self, POOL + 1))
        return survey(self, cache) if len(beginning) > POOL else _without_blanks(beginning, str(self))


def each_line_pair(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Line i of one file and line i of the other.

    Raises:
        InputError: their line counts differ.
    """
    sides = each_line(source), each_line(target)
    for n, (s, t) in enumerate(zip_longest(*sides)):
        if s is None or t is None:
            more = n + 1 + sum(1 for _ in sides[s is None])
            counts = (n, more) if s is None else (more, n)
            raise InputError(
                f"parallel files must have the same number of lines, "
                f"but {source} has {counts[0]} and {target} has {counts[1]}"
            )
        yield s, t


def each_row_pair(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file, each a source sentence, a tab and its target sentence.

    Raises:
        InputError: a line has no tab or more than one.
    """
    for number, line in enumerate(each_line(path), start=1):
        row = line.split("\t")
        check_row(row, ("source", "target"), str(path), number)
        yield row[0], row[1]


def _without_blanks(pairs: Iterable[tuple[str, str]], name: str) -> ParallelText:
    source, target = list[str](), list[str]()
    n = 0
    for n, pair in enumerate(pairs, start=1):  # noqa: B007
        if has_text(pair):
            source.append(pair[0])
            target.append(pair[1])
    if not source:
        raise InputError(f"a corpus needs a pair with text on both sides, but {name}: {n} lines, none such")
    return ParallelText(source, target, n - len(source))


def corpus_folder(name: str) -> Path | None:
    """The folder `name` inside the one that the environment variable TRANSDUCE_DATA names; None if it is not set."""
    root = os.environ.get("TRANSDUCE_DATA")
    return Path(root) / name if root else None


class Corpus:
    """What every parallel corpus has."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """What is one token wherever it stands, such as the tags of languages."""
        return ()

    def test_groups(self) -> list[str]:
        """Of every test pair, the group whose score is told by itself; none if there is one score for all."""
        return []


def find_text(folder: Path | None, name: str) -> Path | None:
    """The file of this name in a folder, plain or .gz; None if there is none.

    Raises:
        InputError: no folder is named.
    """
    if folder is None:
        raise InputError("a folder of parallel text must be named: use --data DIR, or set TRANSDUCE_DATA")
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def text_in(folder: Path | None, name: str) -> Path:
    """The same of a file that must be there.

    Raises:
        InputError: no folder is named, or it lacks the file.
    """
    path = find_text(folder, name)
    if path is None:
        assert folder is not None
        there = "no such folder"
        if folder.is_dir():
            there = "it holds " + (", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing")
        raise InputError(f"the folder {folder} must hold {name} or {name}.gz, but {there}")
    return path


@dataclass(frozen=True, kw_only=True)
class Folder(Corpus):
    """Parallel text as SPLIT.LANGUAGE or SPLIT.LANGUAGE.gz in one folder, the layout of Multi30k."""

    data: Path | None = None
    """The folder."""
    source: str = "en"
    """The language that goes in: the ending of its files."""
    target: str = "de"
    """The language that comes out."""
    train: str = "train"
    """Training files are named so, SPLIT.LANGUAGE or SPLIT.LANGUAGE.gz."""
    valid: str = "val"
    """Validation files, which tell how good a checkpoint is."""
    test: str = "test"
    """Test files, which only the finished model sees."""

    def read(self, split: Split) -> ParallelText:
        """One split; of the training text, the pairs with text on both sides.

        Raises:
            InputError: no folder is named, or it lacks the files.
        """
        files = self._files(split)
        return files.read() if split == "train" else files.read_whole()

    def splits(
        self, seed: int, cache: Path = CACHE
    ) -> tuple[ParallelText | LargeText, ParallelText, ParallelText | None]:
        """Training, validation and test text; the seed decides nothing here."""
        return self._files("train").read_or_survey(cache), self.read("valid"), self.read("test")

    def _files(self, split: Split) -> PairFiles:
        name = getattr(self, split)
        source, target = (text_in(self.data, f"{name}.{language}") for language in (self.source, self.target))
        return PairFiles((source, target))


@dataclass(frozen=True, kw_only=True)
class Files(Corpus):
    """Parallel text in files of any name: two per split, one TSV of source, tab, target, or Parquet and Arrow files."""

    train_source: Path | None = None
    """Training text, one sentence a line, plain or .gz."""
    train_target: Path | None = None
    """Its translation, line by line."""
    train_tsv: Path | None = None
    """In place of both: source, tab, target."""
    valid_source: Path | None = None
    """Validation text, which tells how good a checkpoint is."""
    valid_target: Path | None = None
    """Its translation."""
    valid_tsv: Path | None = None
    """In place of both."""
    test_source: Path | None = None
    """Test text, which only the finished model sees; it may be left out."""
    test_target: Path | None = None
    """Its translation."""
    test_tsv: Path | None = None
    """In place of both."""
    train_table: Path | None = None
    """In place of both: a Parquet or Arrow file, or a folder of them (pip install '.[arrow]' in a clone)."""
    valid_table: Path | None = None
    """In place of both."""
    test_table: Path | None = None
    """In place of both."""
    source_column: str = "source"
    """The column of tables that goes in; translation.en is the field en of the column translation."""
    target_column: str = "target"
    """The column of tables that comes out."""
    hold_out: int = 0
    """Pairs that validation takes out of the training text, where it has no files; the seed decides which."""

    def __post_init__(self) -> None:
        at_least(0, hold_out=self.hold_out)

    def splits(
        self, seed: int, cache: Path = CACHE
    ) -> tuple[ParallelText | LargeText, ParallelText, ParallelText | None]:
        """Training, validation and test text; the test is never touched.

        Args:
            cache: a folder for what is made of a large training text.

        Raises:
            InputError: as for `read`; or validation has files and is held out as well.
        """
        files, test = self._files("train"), self.read("test")
        assert files is not None
        train = files.read_or_survey(cache)
        if not self.hold_out:
            valid = self.read("valid")
            assert valid is not None
            return train, valid, test
        if self.valid_source or self.valid_target or self.valid_tsv or self.valid_table:
            raise InputError(
                f"validation has files or is held out, but hold_out={self.hold_out} and files are named; leave one out"
            )
        return *train.hold_out(self.hold_out, seed), test

    def read(self, split: Split) -> ParallelText | None:
        """One split, of the training text the pairs with text on both sides; None if there is no test split.

        Raises:
            InputError: a side is missing, or files and TSV are both given.
        """
        files = self._files(split)
        if files is None:
            return None
        return files.read() if split == "train" else files.read_whole()

    def _files(self, split: Split) -> PairFiles | None:
        named = {part: getattr(self, f"{split}_{part}") for part in ("source", "target", "tsv", "table")}
        match {part: path for part, path in named.items() if path}:
            case {"source": source, "target": target, **more} if not more:
                return PairFiles((source, target))
            case {"tsv": tsv, **more} if not more:
                return PairFiles((tsv,))
            case {"table": table, **more} if not more:
                return PairFiles(table_files(table), (self.source_column, self.target_column))
            case given if split == "test" and not given:
                return None
        way_out = ", or --hold-out 500" if split == "valid" and not any(named.values()) else ""
        *some, last = (f"{split}_{part}={path}" for part, path in named.items())
        raise InputError(
            f"the {split} text is two files, a TSV or a table: give --{split}-source and --{split}-target, or --{split}-tsv, "
            f"or --{split}-table{way_out}, but {', '.join(some)} and {last}"
        )
