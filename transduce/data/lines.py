"""Lines of text files, plain or .gz, as UTF-8."""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from unicodedata import category

from transduce.errors import InputError

LONGEST_LINE = 1 << 28
"""The most bytes of a line. A book in one line has fewer; an endless file such as /dev/zero has
more."""

GZIP = b"\x1f\x8b"
"""The first bytes of files that gzip has packed."""

PACKED = (
    b"\xfd7zXZ\0",
    b"PK\x03\x04",
    *(b"BZh%d1A" % i for i in range(1, 10)),
    b"\x28\xb5\x2f\xfd",
)
"""The first bytes of files that xz, zip, bzip2 and zstd have packed."""


INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")
"""Unicode categories of invisible characters: control and format characters, and spaces."""

AROUND = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Format characters that are visible: Unicode's Prepended_Concatenation_Mark, signs around
numbers."""


def is_blank(text: str) -> bool:
    """Whether a text has no visible character."""
    return all(category(c) in INVISIBLE and c not in AROUND for c in text)


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
        InputError: there is no such file, or it is not UTF-8; the message names file and line.
    """
    return list(each_line(Path(path)))


def each_line(path: Path, errors: str = "strict") -> Iterator[str]:
    """The lines of `read_lines`, one after the other, so that a file may be larger than memory.

    With errors="replace", bytes that are not UTF-8, and zero bytes after line 1, become U+FFFD.
    """
    return decode_lines(raw_lines(path), str(path), errors)


def bounded_lines(readline: Callable[[int], bytes], name: str) -> Iterator[bytes]:
    """The undecoded lines of an open file; `name` stands for the file in errors.

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
        packed = start.startswith(GZIP) or path.suffix == ".gz"
        try:
            if packed and not start:  # gzip itself would return an empty text
                raise EOFError("it has no bytes")
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
    if number == 1 and line.startswith((GZIP, *PACKED)):
        raise InputError(
            f"text must be UTF-8, but {name} is packed; send it through zcat, or xzcat"
        )
    # valid in UTF-8, but no text has it; UTF-16 has it from the first line on
    if b"\0" in line and (errors == "strict" or number == 1):
        raise InputError(
            f"text must be UTF-8, but {name}, line {number}, has a zero byte; if the file is "
            "UTF-16, convert it with iconv -f utf-16 -t utf-8 (utf-16be, if wrong letters come "
            "out); if not, remove the byte with tr -d '\\0'"
        )
    try:
        text = line.removesuffix(b"\r").decode("utf-8", errors).replace("\0", "\ufffd")
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
    """Yield line i of one file with line i of the other; `names` stand for the files in errors.

    Raises:
        InputError: their line counts differ.
    """
    for n, (s, t) in enumerate(zip_longest(*sides)):
        if s is None or t is None:
            longer = n + 1 + sum(1 for _ in sides[s is None])
            counts = (n, longer) if s is None else (longer, n)
            raise InputError(
                f"parallel files must have the same number of lines, but {names[0]} has "
                f"{counts[0]} and {names[1]} has {counts[1]}"
            )
        yield s, t
