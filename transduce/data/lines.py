"""Lines and tables: text files, plain or .gz, and the columns of tables: Parquet, Arrow,
CSV, JSON lines, TMX, and the zips of OPUS."""

import csv
import gzip
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from transduce.errors import InputError, require

LONGEST_LINE = 1 << 28
"""Bytes. A book that is one line has less; a file without an end, such as /dev/zero, has more."""

PACKED = (b"\xfd7zXZ\0", b"PK\x03\x04", b"BZh", b"\x28\xb5\x2f\xfd")
"""The first bytes of files that xz, zip, bzip2 and zstd have packed."""

ARROW = (".parquet", ".arrow", ".feather")
"""Endings of tables of pyarrow; the last two are Arrow's own format, as a file or as a stream."""

TABLES = (*ARROW, ".csv", ".jsonl", ".tmx", ".tmx.gz", ".zip")
"""Endings of tables."""

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
"""The attribute of a TMX file that names the language of a text."""

CODES = ("bpt", "ept", "ph", "it", "ut")
"""Elements of a TMX file that hold the markup of another format, and no text."""

ROWS = 1 << 14
"""Rows of a Parquet file that are read at a time."""


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


def each_line(path: Path, errors: str = "strict") -> Iterator[str]:
    """The lines of `read_lines`, one after the other, so that a file may be larger than memory.

    With errors="replace", bytes that are not UTF-8 become U+FFFD.
    """
    return decode_lines(raw_lines(path), str(path), errors)


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
                "or zstd; unpack it, or save a spreadsheet as CSV"
            )
        packed = start.startswith(b"\x1f\x8b") or path.suffix == ".gz"
        try:
            text = gzip.GzipFile(fileobj=file) if packed else file
            yield from bounded_lines(text.readline, str(path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path} is not a whole gzip file: {error}; unpack it or fetch it again"
            ) from error


def decode_lines(lines: Iterable[bytes], name: str, errors: str = "strict") -> Iterator[str]:
    """Lines of bytes as in `read_lines`, such as those of a file; `name` stands for the file in
    errors."""
    for number, line in enumerate(lines, start=1):
        yield decode_line(line.removesuffix(b"\n"), name, number, errors)


def decode_line(line: bytes, name: str, number: int, errors: str = "strict") -> str:
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
        text = line.removesuffix(b"\r").decode("utf-8", errors)
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


def in_step(names: Sequence[str], *sides: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Line i of one file and line i of the other, of files with these names.

    Raises:
        InputError: their line counts differ.
    """
    for n, (s, t) in enumerate(zip_longest(*sides)):
        if s is None or t is None:
            longer = n + 1 + sum(1 for _ in sides[s is None])
            counts = (n, longer) if s is None else (longer, n)
            raise InputError(
                "parallel files must have the same number of lines, "
                f"but {names[0]} has {counts[0]} and {names[1]} has {counts[1]}"
            )
        yield s, t


def split_table(
    lines: Iterable[str], name: str, *, comma: bool = False
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The names of the columns, which the first line has; and the number and the cells of every
    other row, blank ones left out.

    Args:
        name: stands for the table in errors.
        comma: cells are those of CSV, with commas and quotes; otherwise tabs separate them.

    Raises:
        InputError: there is no line to name the columns, one is named twice, or a row has more or
            fewer cells.
    """
    rows = _csv_rows(lines, name) if comma else enumerate((line.split("\t") for line in lines), 1)
    _, header = next(rows, (0, None))
    if header is None:
        raise InputError(
            f"a table must begin with a line that names its columns, but {name} is empty"
        )
    columns = ", ".join(header)
    if len(set(header)) < len(header):
        raise InputError(
            f"a table must name every column once, but {name} has {columns}; rename one of them"
        )
    if len(header) == 1 < len(columns.split()):
        between, has = ("commas", "no commas") if comma else ("tabs", "spaces")
        raise InputError(
            f"columns must have {between} between them, but the first line of {name} has {has}: "
            f"{columns!r}; write tabs, or commas in a file that ends in .csv"
        )
    return header, _checked_rows(rows, header, name, comma)


def _csv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of CSV, and the line where each row begins; the end of a line inside of quotes
    becomes a space."""
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    number = 1
    try:
        for row in reader:
            yield number, [cell.replace("\n", " ") for cell in row] or [""]
            number = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{name} must be CSV, but the row from line {number} on is not: {error}; look for "
            "quotes that do not end, and write a quote inside of quotes twice"
        ) from error


def _checked_rows(
    rows: Iterator[tuple[int, list[str]]], header: Sequence[str], name: str, comma: bool
) -> Iterator[tuple[int, list[str]]]:
    way_out = "put quotes around texts with commas" if comma else "tabs separate cells"
    for number, row in rows:
        if len(row) == len(header):
            yield number, row
        elif row != [""]:
            raise InputError(
                f"a line must have a cell for every column, but {name}, line {number}, has "
                f"{len(row)} cells for {len(header)} columns ({', '.join(header)}); {way_out}"
            )


def each_record(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a table in text, by column, and their places for messages.

    The rows are JSON objects (.json, .jsonl), or the first one names the columns, with commas
    between them (.csv) or tabs. A cell without a value is "".

    Raises:
        InputError: there is no such file, or it is something else; by file and line.
    """
    if path.suffix in (".json", ".jsonl"):
        for number, line in enumerate(each_line(path), start=1):
            if line.strip():
                yield f"{path}, line {number},", _json_record(line, path, number)
        return
    header, rows = split_table(each_line(path), str(path), comma=path.suffix == ".csv")
    for number, row in rows:
        yield f"{path}, line {number},", dict(zip(header, row, strict=True))


def _json_record(line: str, path: Path, number: int) -> dict[str, str]:
    """The cells of a JSON object; "translation.en" is the field en of the field translation."""
    try:
        cells = {}
        for name, cell in json.loads(line).items():
            inner = cell if isinstance(cell, dict) else {"": cell}
            for field, value in inner.items():
                text = "" if value is None else str(value)
                cells[f"{name}.{field}".removesuffix(".")] = text.replace("\n", " ")
        return cells
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputError(
            f"a line must be a JSON object, but {path}, line {number}, is not: {error}; "
            'write {"audio_filepath": "a.wav", "text": "good day"}'
        ) from error


def table_files(path: Path) -> tuple[Path, ...]:
    """A table, or those of a directory by name.

    Raises:
        InputError: there is none.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in files if file.name.endswith(TABLES) and file.is_file()]
    if not files:
        raise InputError(
            f"a table must be a file or a folder of files that end in {', '.join(TABLES)}, but "
            f"{path} is none"
        )
    return tuple(files)


def each_cell_row(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The cells of these columns, row by row; "translation.en" is the field en of the column
    translation. The columns of TMX files and of Moses zips of OPUS are languages.

    A cell without a value is "", and a line break inside a cell becomes a space.

    Raises:
        InputError: pyarrow is not installed, the file is damaged, or it has no such column of text.
    """
    readers = {".csv": _record_rows, ".jsonl": _record_rows, ".zip": _moses_rows}
    readers |= dict.fromkeys(ARROW, _arrow_rows)
    return readers.get(path.suffix, _tmx_rows)(path, columns)


def _record_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for place, row in each_record(path):
        _check_columns(place, columns, row)
        yield tuple(row[column] for column in columns)


def _moses_rows(path: Path, languages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    try:
        with zipfile.ZipFile(path) as packed:
            sides, names = [], []
            for language in languages:
                files = [name for name in packed.namelist() if name.endswith(f".{language}")]
                if len(files) != 1:
                    endings = [name.rpartition(".")[2] for name in packed.namelist()]
                    _check_columns(str(path), [language], endings)
                    raise InputError(f"one .{language} must be in {path}, not {files}; unpack it")
                names.append(f"{path}: {files[0]}")
                lines = bounded_lines(packed.open(files[0]).readline, names[-1])
                sides.append(decode_lines(lines, names[-1]))
            yield from in_step(names, *sides)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise InputError(f"{path} is no whole zip file: {error}; fetch it again") from error


def _tmx_rows(path: Path, languages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The texts of each unit that has one of the languages; en-GB also stands for a missing en."""
    body = ElementTree.Element("body")
    texts: dict[str, str] = {}
    known = set[str]()
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for event, element in ElementTree.iterparse(file, ("start", "end")):
                match event, element.tag.rpartition("}")[2]:
                    case "start", "body":
                        body = element
                    case "end", code if code in CODES:
                        element.text = ""
                    case "end", "tuv":
                        name = (element.get(LANGUAGE) or element.get("lang") or "").lower()
                        segments = chain(*(s.itertext() for s in element.findall("{*}seg")))
                        text = " ".join("".join(segments).split())
                        texts = {name.split("-")[0]: text} | texts | {name: text}
                    case "end", "tu":
                        row = tuple(texts.get(language.lower(), "") for language in languages)
                        if any(row):
                            yield row
                        known |= texts.keys()
                        texts = {}
                        body.clear()  # or all units would stay in memory
    except (SyntaxError, zlib.error, EOFError, OSError, LookupError, ValueError) as error:
        # the last two are of unknown encodings
        raise InputError(
            f"{path} is no whole TMX file: {error}; fetch it again, or convert it to UTF-8"
        ) from error
    _check_columns(str(path), [language.lower() for language in languages], sorted(known))


def _check_columns(place: str, columns: Iterable[str], present: Iterable[str]) -> None:
    for column in columns:
        if column not in present:
            raise InputError(
                f"source and target must be columns of text, but {place} has no {column} of that "
                f"kind; it has {', '.join(present) or 'none'}; name them with --source-column and "
                "--target-column (in transduce data clean with --source and --target)"
            )


def _arrow_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
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

    texts = [
        field.name
        for field in table.schema
        if types.is_string(field.type) or types.is_large_string(field.type)
    ]
    _check_columns(str(path), [column], texts)
    return [(cell or "").replace("\n", " ") for cell in table[column].to_pylist()]
