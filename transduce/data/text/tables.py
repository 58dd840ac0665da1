"""Columns of Parquet and Arrow files, read some thousand rows at a time. pyarrow is loaded where there is such a file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transduce.errors import InputError, require

SUFFIXES = (".parquet", ".arrow", ".feather")
"""The last two are Arrow's own format, as a file or as a stream."""

ROWS = 1 << 14
"""Rows of a Parquet file that are read at a time."""


def table_files(path: Path) -> tuple[Path, ...]:
    """A file, or the files of a directory by name.

    Raises:
        InputError: there is none.
    """
    found = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES) if path.is_dir() else [path]
    if not found or not found[0].is_file() or found[0].suffix not in SUFFIXES:
        raise InputError(
            f"a table must be a file or a folder of files that end in {', '.join(SUFFIXES)}, but {path} is none"
        )
    return tuple(found)


def each_cell_row(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The cells of these columns, row by row; "translation.en" is the field en of the column translation.

    A cell without a value is "", and a line break inside a cell becomes a space.

    Raises:
        InputError: pyarrow is not installed, the file is damaged, or it has no such column of text.
    """
    require("pyarrow", str(path), "arrow")
    import pyarrow

    try:
        for batch in _batches(path):
            cells = [_cells(batch, column, path) for column in columns]
            yield from zip(*cells, strict=True)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no whole Parquet or Arrow file: {error}; fetch it again") from error


def _batches(path: Path) -> Iterator[Any]:
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


def _cells(batch: Any, column: str, path: Path) -> list[str]:
    from pyarrow import compute, types

    names, _, fields = list(batch.schema.names), *column.partition(".")[1:]
    found: Any = None
    if column in names:
        found = batch.column(column)
    elif fields and (name := column.removesuffix(f".{fields}")) in names:
        whole = batch.column(name)
        names = [f"{name}.{field.name}" for field in whole.type] if types.is_struct(whole.type) else names
        found = compute.struct_field(whole, fields) if column in names else None
    if found is None or not (types.is_string(found.type) or types.is_large_string(found.type)):
        raise InputError(
            f"source and target must be columns of text, but {path} has no {column} of that kind; it has "
            f"{', '.join(names)}; name them with --source-column and --target-column"
        )
    return [(cell or "").replace("\n", " ") for cell in found.to_pylist()]
