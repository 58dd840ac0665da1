"""Text from files, line by line. Lines of parallel files stay aligned, and nothing is left out silently."""

import gzip
import hashlib
import logging
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from transduce.config import at_least

logger = logging.getLogger("transduce")


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
    path = Path(path)
    check_text(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            raw = file.read()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}; unpack it or fetch it again") from error
    return decode_lines(raw, str(path))


def decode_lines(raw: bytes, name: str) -> list[str]:
    """The lines of bytes, as in `read_lines`; `name` is what an error calls them."""
    lines = raw.removesuffix(b"\n").split(b"\n") if raw else []
    return [decode_line(line, name, number) for number, line in enumerate(lines, start=1)]


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
    there = ", ".join(header)
    if len(set(header)) < len(header):
        raise ValueError(f"a table must name every column once, but {name} has {there}; rename one of them")
    for number, row in enumerate(rows, start=first):
        if len(row) != len(header):
            raise ValueError(
                f"a line must have a cell for every column, but {name}, line {number}, has {len(row)} cells for "
                f"{len(header)} columns ({there}); tabs separate cells"
            )
    return list(header), rows


@dataclass(frozen=True)
class ParallelText:
    """Sentence pairs: target[i] translates source[i]. `n_blank` pairs were left out, as a side was blank."""

    source: list[str]
    target: list[str]
    n_blank: int = 0

    def __len__(self) -> int:
        return len(self.source)


def read_parallel(source: Path | str, target: Path | str) -> ParallelText:
    """Two files: line i of one translates line i of the other.

    Raises:
        ValueError: their line counts differ, or no pair is left.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            f"parallel files must have the same number of lines, "
            f"but {source} has {len(sources)} and {target} has {len(targets)}"
        )
    return _without_blanks(sources, targets, f"{source} and {target}")


def read_parallel_tsv(path: Path | str) -> ParallelText:
    """One file, each line a source sentence, a tab and its target sentence.

    Raises:
        ValueError: a line has no tab or more than one, or no pair is left.
    """
    _, rows = split_table(read_lines(path), str(path), ("source", "target"))
    return _without_blanks([source for source, _ in rows], [target for _, target in rows], str(path))


def _without_blanks(sources: list[str], targets: list[str], name: str) -> ParallelText:
    kept = [(s, t) for s, t in zip(sources, targets, strict=True) if s.strip() and t.strip()]
    if not kept:
        raise ValueError(f"a corpus needs a pair with text on both sides, but {name}: {len(sources)} lines, none such")
    return ParallelText([s for s, _ in kept], [t for _, t in kept], len(sources) - len(kept))


def hold_out(text: ParallelText, n: int, seed: int) -> tuple[ParallelText, ParallelText]:
    """Most pairs for training, and n that validation takes; both keep their order.

    Which ones is a function of n, the seed and the number of pairs. Pairs equal to one that is held out, on both sides,
    leave the training text too; a line of the log tells how many.

    Raises:
        ValueError: no pair would be left for training.
    """
    order = np.random.default_rng(seed).permutation(len(text))
    taken = sorted(order[:n].tolist())
    pairs = list(zip(text.source, text.target, strict=True))
    twins = {pairs[i] for i in taken}
    train = [pair for pair in pairs if pair not in twins]
    if not train:
        raise ValueError(
            f"a training needs pairs besides those held out, but hold_out={n} takes all of {len(pairs)}; hold out fewer"
        )
    told = "validation holds out %d of %d training pairs; %d equal to one of them left the training text too"
    logger.warning(told, len(taken), len(pairs), len(pairs) - len(taken) - len(train))
    valid = [pairs[i] for i in taken]
    return (
        ParallelText([s for s, _ in train], [t for _, t in train], text.n_blank),
        ParallelText([s for s, _ in valid], [t for _, t in valid]),
    )


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

    def read(self, split: Literal["train", "valid", "test"]) -> ParallelText:
        """One split.

        Raises:
            ValueError: no folder is named, or it lacks the files.
        """
        name = getattr(self, split)
        return read_parallel(self._file(f"{name}.{self.source}"), self._file(f"{name}.{self.target}"))

    def splits(self, seed: int) -> tuple[ParallelText, ParallelText, ParallelText | None]:
        """Training, validation and test text; the seed decides nothing here."""
        return self.read("train"), self.read("valid"), self.read("test")

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
    """Parallel text in files of any name: two per split, or one TSV of source, tab, target."""

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
    hold_out: int = 0
    """Pairs that validation takes out of the training text, where it has no files; the seed decides which."""

    def __post_init__(self) -> None:
        at_least(0, hold_out=self.hold_out)

    def splits(self, seed: int) -> tuple[ParallelText, ParallelText, ParallelText | None]:
        """Training, validation and test text; the test is never touched.

        Raises:
            ValueError: as for `read`; or validation has files and is held out as well.
        """
        train, test = self.read("train"), self.read("test")
        assert train is not None
        if not self.hold_out:
            valid = self.read("valid")
            assert valid is not None
            return train, valid, test
        if self.valid_source or self.valid_target or self.valid_tsv:
            raise ValueError(
                f"validation has files or is held out, but hold_out={self.hold_out} and files are named; leave one out"
            )
        train, valid = hold_out(train, self.hold_out, seed)
        return train, valid, test

    def read(self, split: Literal["train", "valid", "test"]) -> ParallelText | None:
        """One split; None if there is no test split.

        Raises:
            ValueError: a side is missing, or files and TSV are both given.
        """
        source, target, tsv = (getattr(self, f"{split}_{part}") for part in ("source", "target", "tsv"))
        if tsv and not source and not target:
            return read_parallel_tsv(tsv)
        if source and target and not tsv:
            return read_parallel(source, target)
        if split == "test" and not (source or target or tsv):
            return None
        way_out = ", or --hold-out 500" if split == "valid" and not (source or target or tsv) else ""
        raise ValueError(
            f"the {split} text is two files or one TSV: give --{split}-source and --{split}-target, or --{split}-tsv{way_out}, "
            f"but {split}_source={source}, {split}_target={target} and {split}_tsv={tsv}"
        )
