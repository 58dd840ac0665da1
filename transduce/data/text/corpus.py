"""Text from files, line by line. Lines of parallel files stay aligned, and nothing is left out silently."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Literal

from transduce.config import at_least
from transduce.data.text.parallel import POOL, LargeText, ParallelText, has_text, survey
from transduce.data.text.tables import each_cell_row, table_files

CACHE = Path("runs/text")
"""Where large corpora are prepared unless something else is said."""

Split = Literal["train", "valid", "test"]


def check_text(path: Path) -> None:
    """Raise ValueError if `path` is a directory or does not exist."""
    if path.is_dir() or not path.exists():
        raise ValueError(
            f"a text must be a file, plain or .gz, but {path} {'is a directory' if path.is_dir() else 'does not exist'}"
        )


def read_lines(path: Path | str) -> list[str]:
    """The lines of a UTF-8 file, plain or .gz. A line ends at \\n alone (a \\r before it goes too).

    `str.splitlines` would also split at form feeds and U+2028, and shift one side of a corpus against the other.

    Raises:
        ValueError: there is no such file, or it is not UTF-8; by file and line.
    """
    return list(each_line(Path(path)))


def each_line(path: Path) -> Iterator[str]:
    """The lines of `read_lines`, one after the other, so that a file may be larger than memory."""
    return decode_lines(raw_lines(path), str(path))


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a text, plain or .gz, as they are, one after the other.

    Raises:
        ValueError: there is no such file, or it is damaged.
    """
    check_text(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            yield from file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}; unpack it or fetch it again") from error


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines of bytes as in `read_lines`, such as those of a file; `name` is what an error calls it."""
    for number, line in enumerate(lines, start=1):
        yield decode_line(line.removesuffix(b"\n"), name, number)


def decode_line(line: bytes, name: str, number: int) -> str:
    """One line without its \\n.

    Raises:
        ValueError: the line is not UTF-8.
    """
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"text must be UTF-8, but {name}, line {number}, byte {error.start + 1} is {line[error.start]:#04x}; "
            "convert the file, for example with iconv -f latin1 -t utf-8"
        ) from error
    return text.removeprefix("\ufeff") if number == 1 else text  # a byte order mark belongs to the file


def lines_fingerprint(lines: Iterable[str]) -> str:
    """SHA-256 of lines, each with its \\n."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def split_table(
    lines: Sequence[str], name: str, header: Sequence[str] | None = None
) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the cells of every row, of a table whose cells are separated by tabs.

    Args:
        name: what an error calls the table.
        header: the names of the columns; None: the first line has them.

    Raises:
        ValueError: there is no line to name the columns, one is named twice, or a row has more or fewer cells.
    """
    rows = [line.split("\t") for line in lines]
    first = 1
    if header is None:
        if not rows:
            raise ValueError(f"a table must begin with a line that names its columns, but {name} is empty")
        header, *rows = rows
        first = 2
    if len(set(header)) < len(header):
        there = ", ".join(header)
        raise ValueError(f"a table must name every column once, but {name} has {there}; rename one of them")
    for number, row in enumerate(rows, start=first):
        _check_row(row, header, name, number)
    return list(header), rows


def _check_row(row: Sequence[str], header: Sequence[str], name: str, number: int) -> None:
    if len(row) != len(header):
        raise ValueError(
            f"a line must have a cell for every column, but {name}, line {number}, has {len(row)} cells for "
            f"{len(header)} columns ({', '.join(header)}); tabs separate cells"
        )


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
            ValueError: the line counts differ, a line of a TSV has no tab or more than one, or a column is missing.
        """
        if self.columns:
            return ((s, t) for path in self.paths for s, t in each_cell_row(path, self.columns))
        return each_line_pair(*self.paths) if len(self.paths) == 2 else each_row_pair(*self.paths)

    def read(self) -> ParallelText:
        """All pairs at once.

        Raises:
            ValueError: as above, or no pair is left.
        """
        return _without_blanks(self, str(self))

    def read_or_survey(self, cache: Path) -> ParallelText | LargeText:
        """All pairs at once where they are no more than POOL, which is what memory surely takes."""
        beginning = list(islice(self, POOL + 1))
        return survey(self, cache) if len(beginning) > POOL else _without_blanks(beginning, str(self))


def each_line_pair(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Line i of one file and line i of the other.

    Raises:
        ValueError: their line counts differ.
    """
    sides = each_line(source), each_line(target)
    for n, (s, t) in enumerate(zip_longest(*sides)):
        if s is None or t is None:
            more = n + 1 + sum(1 for _ in sides[s is None])
            counts = (n, more) if s is None else (more, n)
            raise ValueError(
                f"parallel files must have the same number of lines, "
                f"but {source} has {counts[0]} and {target} has {counts[1]}"
            )
        yield s, t


def each_row_pair(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file, each a source sentence, a tab and its target sentence.

    Raises:
        ValueError: a line has no tab or more than one.
    """
    for number, line in enumerate(each_line(path), start=1):
        row = line.split("\t")
        _check_row(row, ("source", "target"), str(path), number)
        yield row[0], row[1]


def _without_blanks(pairs: Iterable[tuple[str, str]], name: str) -> ParallelText:
    source, target = list[str](), list[str]()
    n = 0
    for n, pair in enumerate(pairs, start=1):  # noqa: B007
        if has_text(pair):
            source.append(pair[0])
            target.append(pair[1])
    if not source:
        raise ValueError(f"a corpus needs a pair with text on both sides, but {name}: {n} lines, none such")
    return ParallelText(source, target, n - len(source))


def corpus_folder(name: str) -> Path | None:
    """The folder `name` inside the one that the environment variable TRANSDUCE_DATA names; None if it is not set."""
    root = os.environ.get("TRANSDUCE_DATA")
    return Path(root) / name if root else None


@dataclass(frozen=True, kw_only=True)
class Folder:
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
        """One split.

        Raises:
            ValueError: no folder is named, or it lacks the files.
        """
        return self._files(split).read()

    def splits(
        self, seed: int, cache: Path = CACHE
    ) -> tuple[ParallelText | LargeText, ParallelText, ParallelText | None]:
        """Training, validation and test text; the seed decides nothing here."""
        return self._files("train").read_or_survey(cache), self.read("valid"), self.read("test")

    def _files(self, split: Split) -> PairFiles:
        name = getattr(self, split)
        return PairFiles((self._file(f"{name}.{self.source}"), self._file(f"{name}.{self.target}")))

    def _file(self, name: str) -> Path:
        if self.data is None:
            raise ValueError("a folder of parallel text must be named: use --data DIR, or set TRANSDUCE_DATA")
        for path in (self.data / name, self.data / f"{name}.gz"):
            if path.is_file():
                return path
        there = "no such folder"
        if self.data.is_dir():
            there = "it holds " + (", ".join(sorted(path.name for path in self.data.iterdir())[:8]) or "nothing")
        raise ValueError(f"the folder {self.data} must hold {name} or {name}.gz, but {there}")


@dataclass(frozen=True, kw_only=True)
class Files:
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
    """In place of both: a Parquet or Arrow file, or a folder of them (pip install 'transduce[arrow]')."""
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
            ValueError: as for `read`; or validation has files and is held out as well.
        """
        files, test = self._files("train"), self.read("test")
        assert files is not None
        train = files.read_or_survey(cache)
        if not self.hold_out:
            valid = self.read("valid")
            assert valid is not None
            return train, valid, test
        if self.valid_source or self.valid_target or self.valid_tsv or self.valid_table:
            raise ValueError(
                f"validation has files or is held out, but hold_out={self.hold_out} and files are named; leave one out"
            )
        return *train.hold_out(self.hold_out, seed), test

    def read(self, split: Split) -> ParallelText | None:
        """One split; None if there is no test split.

        Raises:
            ValueError: a side is missing, or files and TSV are both given.
        """
        files = self._files(split)
        return files.read() if files else None

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
        raise ValueError(
            f"the {split} text is two files, a TSV or a table: give --{split}-source and --{split}-target, or --{split}-tsv, "
            f"or --{split}-table{way_out}, but {', '.join(some)} and {last}"
        )
