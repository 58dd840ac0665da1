"""Columns of tables: Parquet, Arrow, CSV, tabs, JSON lines, TMX, and the zips of OPUS."""

import csv
import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from transduce.data.lines import bounded_lines, check_text, decode_lines, each_line, in_step
from transduce.errors import InputError, require

ARROW = (".parquet", ".arrow", ".feather")
"""Endings of tables of pyarrow; the last two are Arrow's own format, as a file or as a stream."""

TABLES = (*ARROW, ".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".tmx", ".tmx.gz", ".zip")
"""Endings of tables."""

SPLIT = re.compile(
    r"(?<![a-z])(?:(train|trn)|(valid|validation|val|dev|development|eval|evaluation)|(tests?))"
    r"(?:set|data|ing)?(?![a-z])",
    re.IGNORECASE,
)
"""The part of a table's name that names its split; a group for each split."""

NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that JSON and Arrow can hold, and no line of text has."""

QUOTED = re.compile(r'"([^"]*(?:""[^"]*)+)"')
"""A cell with doubled quotes inside of quotes, as in CSV."""

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
"""The attribute of a TMX file that names the language of a text."""

CODES = ("bpt", "ept", "ph", "it", "ut")
"""Elements of a TMX file that hold the markup of another format, and no text."""

LONGEST_CELL = 1 << 24
"""The most characters of a CSV cell, enough for a document; a longer one has a quote that does not
end."""

ROWS = 1 << 14
"""Rows of a Parquet file that are read at a time."""


def split_table(
    lines: Iterable[str], name: str, *, comma: bool = False
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The names of the columns, from the first line; and the line number and the cells of every
    other row, without blank rows.

    Args:
        name: stands for the table in errors.
        comma: cells are those of CSV, with commas and quotes; otherwise tabs separate them.

    Raises:
        InputError: there is no line to name the columns, one is named twice, or a row has more or
            fewer cells.
    """
    rows = _csv_rows(lines, name) if comma else enumerate(map(tsv_cells, lines), 1)
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

    def checked() -> Iterator[tuple[int, list[str]]]:
        way_out = "put quotes around texts with commas" if comma else "tabs separate cells"
        for number, row in rows:
            if len(row) == len(header):
                yield number, row
            elif row != [""]:
                raise InputError(
                    f"a line must have a cell for every column, but {name}, line {number}, has "
                    f"{len(row)} cells for {len(header)} columns ({columns}); {way_out}"
                )

    return header, checked()


def tsv_cells(line: str) -> list[str]:
    """The cells of a line with tabs between them. Quotes belong to the text, unless they are
    doubled inside of others, as pandas writes a text with quotes."""
    return [
        match[1].replace('""', '"') if (match := QUOTED.fullmatch(cell)) else cell
        for cell in line.split("\t")
    ]


def _csv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of CSV, and the line where each row begins; the end of a line inside of quotes
    becomes a space."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
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


def each_record(path: Path, errors: str = "strict") -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a text table, each with its place for messages and its cells by column.

    The rows are JSON objects (.json, .jsonl), or cells with commas (.csv) or tabs between them
    after a first line that names the columns. A cell without a value is "".

    Args:
        errors: see `each_line`.

    Raises:
        InputError: there is no such file, or it has another format; the message names file and
            line.
    """
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending in (".json", ".jsonl"):
        for number, line in enumerate(each_line(path, errors), start=1):
            if line.strip():
                yield f"{path}, line {number},", _json_record(line, path, number)
        return
    header, rows = split_table(each_line(path, errors), str(path), comma=ending == ".csv")
    for number, row in rows:
        yield f"{path}, line {number},", dict(zip(header, row, strict=True))


def _json_record(line: str, path: Path, number: int) -> dict[str, str]:
    """The cells of a JSON object; "translation.en" is the field en of the field translation."""
    try:
        cells = {}
        # Python writes a missing value of pandas as NaN
        for name, cell in json.loads(line, parse_constant=lambda _: None).items():
            inner = cell if isinstance(cell, dict) else {"": cell}
            for field, value in inner.items():
                if not isinstance(value, list | dict):  # which are no text
                    text = "" if value is None else str(value)
                    text = NO_TEXT.sub("\ufffd", text.replace("\n", " "))
                    cells[f"{name}.{field}".removesuffix(".")] = text
        return cells
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputError(
            f"a line must be a JSON object, but {path}, line {number}, is not: {error}; "
            'write {"audio_filepath": "a.wav", "text": "good day"}'
        ) from error


def table_files(path: Path) -> tuple[Path, ...]:
    """A table file, or the table files of a directory by name; in a directory saved by the library
    datasets, the files that its state.json lists.

    Raises:
        InputError: there is no table, one is missing, or a directory has tables of several splits.
    """
    files = sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path]
    if (state := path / "state.json").is_file():
        with suppress(ValueError, LookupError, TypeError):
            files = [
                path / each["filename"] for each in json.loads(state.read_bytes())["_data_files"]
            ]
    files = [file for file in files if file.name.lower().endswith(TABLES)]
    for file in files:
        check_text(file)
    names = {file.name.lower() for file in files}
    twins = {name for name in names if name.removesuffix(".gz") in names - {name}}
    files = [file for file in files if file.name.lower() not in twins]
    splits = {
        split.lastindex: split[split.lastindex or 0].lower()
        for file in files
        if (split := SPLIT.search(file.name))
    }
    if len(files) > 1 and len(splits) > 1:
        raise InputError(
            f"a folder of tables is one split, but {path} has {', '.join(sorted(splits.values()))}"
            "; move each into a folder of its own, or name a file"
        )
    if not files:
        raise InputError(
            f"a table must be a file or a folder of files that end in {', '.join(TABLES)}, but "
            f"{path} is none"
        )
    return tuple(files)


def each_cell_row(
    path: Path, columns: Sequence[str], errors: str = "strict"
) -> Iterator[tuple[str, ...]]:
    """The cells of these columns, row by row; "translation.en" is the field en of the column
    translation. The columns of TMX files and of Moses zips of OPUS are languages.

    A cell without a value is "", and a line break inside a cell becomes a space.

    Args:
        errors: see `each_line`; not for XML.

    Raises:
        InputError: pyarrow is not installed, the file is damaged, or it has no such column of text.
    """
    match Path(path.name.lower().removesuffix(".gz")).suffix:
        case ".csv" | ".jsonl":
            return _record_rows(path, columns, errors)
        case ".zip":
            return _moses_rows(path, columns, errors)
        case ".tmx":
            return _tmx_rows(path, columns)
    return _arrow_rows(path, columns)


def _record_rows(path: Path, columns: Sequence[str], errors: str) -> Iterator[tuple[str, ...]]:
    for place, row in each_record(path, errors):
        _check_columns(place, columns, row)
        yield tuple(row[column] for column in columns)


def _moses_rows(path: Path, languages: Sequence[str], errors: str) -> Iterator[tuple[str, ...]]:
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
                sides.append(decode_lines(lines, names[-1], errors))
            yield from in_step(names, *sides)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise InputError(f"{path} is not a complete zip file: {error}; fetch it again") from error


def _tmx_rows(path: Path, languages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The texts of each unit that has one of the languages; en-GB also stands for a missing en."""
    body = ElementTree.Element("body")
    texts: dict[str, str] = {}
    known = set[str]()
    wanted = [language.lower().replace("_", "-") for language in languages]
    try:
        packed = path.name.lower().endswith(".gz")
        with (gzip.open if packed else open)(path, "rb") as file:
            for event, element in ElementTree.iterparse(file, ("start", "end")):
                match event, element.tag.rpartition("}")[2]:
                    case "start", "body":
                        body = element
                    case "end", code if code in CODES:
                        element.text = ""
                    case "end", "tuv":
                        name = element.get(LANGUAGE) or element.get("lang") or ""
                        name = name.lower().replace("_", "-")
                        segments = chain(*(s.itertext() for s in element.findall("{*}seg")))
                        text = " ".join("".join(segments).split())
                        texts = {name.split("-")[0]: text} | texts | {name: text}
                    case "end", "tu":
                        row = tuple(texts.get(language, "") for language in wanted)
                        if any(row):
                            yield row
                        known |= texts.keys()
                        texts = {}
                        body.clear()  # or all units would stay in memory
    except (SyntaxError, zlib.error, EOFError, OSError, LookupError, ValueError) as error:
        # LookupError and ValueError come from unknown encodings
        raise InputError(
            f"{path} is not a complete TMX file: {error}; fetch it again, or convert it to UTF-8"
        ) from error
    _check_columns(str(path), wanted, sorted(known))


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
            texts = [f.name for f in table.schema if _is_text(f.type)]
            _check_columns(str(path), columns, [name for name in texts if texts.count(name) == 1])
            for row in zip(*(table[column].to_pylist() for column in columns), strict=True):
                yield tuple(NO_TEXT.sub("\ufffd", cell or "").replace("\n", " ") for cell in row)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not a complete Parquet or Arrow file: {error}; fetch it again"
        ) from error


def _is_text(kind: Any) -> bool:
    """Whether a type of Arrow is text, as itself or as categories."""
    from pyarrow.types import is_dictionary

    values = kind.value_type if is_dictionary(kind) else kind
    return str(values) in ("string", "large_string", "string_view")


def _record_batches(path: Path) -> Iterator[Any]:
    from pyarrow import ArrowInvalid, ipc, memory_map, parquet

    if path.suffix.lower() == ".parquet":
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
