"""Lines, tables and sentences: text files, plain or .gz, and the columns of Parquet and Arrow
files."""

import csv
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transduce.errors import InputError, require

LONGEST_LINE = 1 << 28
"""Bytes. A book that is one line has less; a file without an end, such as /dev/zero, has more."""

PACKED = (b"\xfd7zXZ\0", b"PK\x03\x04", b"BZh", b"\x28\xb5\x2f\xfd")
"""The first bytes of files that xz, zip, bzip2 and zstd have packed."""

TABLES = (".parquet", ".arrow", ".feather")
"""Endings of tables; the last two are Arrow's own format, as a file or as a stream."""

ROWS = 1 << 14
"""Rows of a Parquet file that are read at a time."""

SENTENCE_END = re.compile(r"""[.!?…]["'”’»)\]]*\s+|[。！？]["'”’」』）]*\s*""")
"""The end of a sentence, closing quotes and brackets included, and the space behind it."""

OPENING = "\"'“‘«„([¿¡"
"""Marks that may stand before the first letter of a sentence."""


def check_text(path: Path) -> None:
    """Raise InputError if `path` is a directory or does not exist."""
    if path.is_dir() or not path.exists():
        reason = "is a directory" if path.is_dir() else "does not exist"
        raise InputError(f"a text must be a file, plain or .gz, but {path} {reason}")


def read_lines(path: Path | str) -> list[str]:
    """The lines of a UTF-8 file, plain or .gz. A line ends at \\n alone (a \\r before it is removed
    too).

    `str.splitlines` would also split at form feeds and U+2028, and shift one side of a corpus
    against the other.

    Raises:
        InputError: there is no such file, or it is not UTF-8; by file and line.
    """
    return list(each_line(Path(path)))


def each_line(path: Path) -> Iterator[str]:
    """The lines of `read_lines`, one after the other, so that a file may be larger than memory."""
    return decode_lines(raw_lines(path), str(path))


def bounded_lines(readline: Callable[[int], bytes], name: str) -> Iterator[bytes]:
    """The undecoded lines of an open file, which errors call by this name.

    Raises:
        InputError: a line is longer than LONGEST_LINE.
    """
    while line := readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"a line of text may have {LONGEST_LINE:,} bytes, but {name} has a longer one; "
                "split it, or name another file"
            )
        yield line


def raw_lines(path: Path) -> Iterator[bytes]:
    """The undecoded lines of a text, plain or packed by gzip, one after the other.

    Raises:
        InputError: there is no such file, it is damaged, or packed by something else, or a line is
            too long.
    """
    check_text(path)
    with path.open("rb") as file:
        start = file.peek(6)
        if start.startswith(PACKED):
            raise InputError(
                f"a text must be plain or packed by gzip, but {path} is packed by xz, zip, bzip2 "
                "or zstd; unpack it"
            )
        packed = start.startswith(b"\x1f\x8b") or path.suffix == ".gz"
        try:
            text = gzip.GzipFile(fileobj=file) if packed else file
            yield from bounded_lines(text.readline, str(path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path} is not a whole gzip file: {error}; unpack it or fetch it again"
            ) from error


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines of bytes as in `read_lines`, such as those of a file; `name` stands for the file in
    errors."""
    for number, line in enumerate(lines, start=1):
        yield decode_line(line.removesuffix(b"\n"), name, number)


def decode_line(line: bytes, name: str, number: int) -> str:
    """One line without its \\n.

    Raises:
        InputError: the line is not UTF-8.
    """
    if b"\0" in line:  # valid in UTF-8, but no text has it
        raise InputError(
            f"text must be UTF-8, but {name}, line {number}, has a zero byte, as UTF-16 has; if it "
            "is, convert the file with iconv -f utf-16le -t utf-8"
        )
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"text must be UTF-8, but {name}, line {number}, byte {error.start + 1} is "
            f"{line[error.start]:#04x}; convert the file from its encoding, with iconv -f ENCODING "
            "-t utf-8 (latin1, cp1250 or utf-16, for example)"
        ) from error
    # a byte order mark belongs to the file
    return text.removeprefix("\ufeff") if number == 1 else text


def lines_fingerprint(lines: Iterable[str]) -> str:
    """SHA-256 of lines, each with its \\n."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def split_table(
    lines: Sequence[str], name: str, *, comma: bool = False
) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, which the first line has, and the cells of every row of a table.

    Args:
        name: stands for the table in errors.
        comma: cells are those of CSV, with commas and quotes; otherwise tabs separate them.

    Raises:
        InputError: there is no line to name the columns, one is named twice, or a row has more or
            fewer cells.
    """
    if not lines:
        raise InputError(
            f"a table must begin with a line that names its columns, but {name} is empty"
        )
    header, *rows = csv.reader(lines) if comma else (line.split("\t") for line in lines)
    if len(set(header)) < len(header):
        columns = ", ".join(header)
        raise InputError(
            f"a table must name every column once, but {name} has {columns}; rename one of them"
        )
    for number, row in enumerate(rows, start=2):
        check_row(row, header, name, number)
    return header, rows


def check_row(row: Sequence[str], header: Sequence[str], name: str, number: int) -> None:
    """Raise InputError if a row of a table has more or fewer cells than its header."""
    if len(row) != len(header):
        raise InputError(
            f"a line must have a cell for every column, but {name}, line {number}, has {len(row)} "
            f"cells for {len(header)} columns ({', '.join(header)}); tabs separate cells"
        )


def table_files(path: Path) -> tuple[Path, ...]:
    """A Parquet or Arrow file, or those of a directory by name.

    Raises:
        InputError: there is none.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.suffix in TABLES and file.is_file()]
    if not files:
        raise InputError(
            f"a table must be a file or a folder of files that end in {', '.join(TABLES)}, but "
            f"{path} is none"
        )
    return tuple(files)


def each_cell_row(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The cells of these columns, row by row; "translation.en" is the field en of the column
    translation.

    A cell without a value is "", and a line break inside a cell becomes a space.

    Raises:
        InputError: pyarrow is not installed, the file is damaged, or it has no such column of text.
    """
    require("pyarrow", str(path), "arrow")
    import pyarrow

    try:
        for batch in _record_batches(path):
            table = pyarrow.Table.from_batches([batch]).flatten()
            yield from zip(*(_cells(table, column, path) for column in columns), strict=True)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is no whole Parquet or Arrow file: {error}; fetch it again"
        ) from error


def _record_batches(path: Path) -> Iterator[Any]:
    from pyarrow import ArrowInvalid, ipc, memory_map, parquet

    if path.suffix == ".parquet":
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(ROWS)
        return
    with memory_map(str(path)) as source:
        try:
            reader = ipc.open_file(source)
        except ArrowInvalid:
            yield from ipc.open_stream(source)
        else:
            yield from map(reader.get_batch, range(reader.num_record_batches))


def _cells(table: Any, column: str, path: Path) -> list[str]:
    from pyarrow import types

    names = table.column_names
    kind = table.schema.field(column).type if column in names else None
    if kind is None or not (types.is_string(kind) or types.is_large_string(kind)):
        raise InputError(
            f"source and target must be columns of text, but {path} has no {column} of that kind; "
            f"it has {', '.join(names)}; name them with --source-column and --target-column"
        )
    return [(cell or "").replace("\n", " ") for cell in table[column].to_pylist()]


def sentences(line: str) -> list[str]:
    """The sentences of a line, in order. After a full stop, a small letter goes on with the same
    sentence."""
    parts = []
    start = 0
    for end in SENTENCE_END.finditer(line):
        if not line[end.end() :].lstrip(OPENING)[:1].islower():
            parts.append(line[start : end.end()].strip())
            start = end.end()
    return [part for part in (*parts, line[start:].strip()) if part]
