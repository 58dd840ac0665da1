"""Where the output of a command goes: standard output, or a file that is whole or not there."""

import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from transduce.errors import InputError

SHOWN = 5
"""Messages of one kind that are shown."""

VARIES = re.compile(r"(['\"]).*?\1|\S*[./]\S+|\d+")
"""What differs between two messages of one kind: what is quoted, paths and numbers."""


@contextmanager
def first_few() -> Iterator[Callable[[str], bool]]:
    """Decide which messages are shown: the first few of one kind; in the end stderr counts the
    others.

    The same message again is neither shown nor counted.
    """
    counts = Counter[str]()
    last: dict[str, str] = {}
    shown: set[str] = set()

    def is_shown(message: str) -> bool:
        if message in shown:
            return False
        kind = VARIES.sub("", message)
        counts[kind] += 1
        last[kind] = message
        if few := counts[kind] <= SHOWN:
            shown.add(message)
        return few

    yield is_shown
    for kind, message in last.items():
        if (n := counts[kind] - SHOWN) > 0:
            tqdm.write(f"transduce: {n} more of this kind, the last: {message}", file=sys.stderr)


@contextmanager
def progress_bar(*, unit: str, total: int | None, quiet: bool = False) -> Iterator["tqdm[None]"]:
    """A bar on stderr, if that is a terminal and not `quiet`; warnings are written around it.

    Where output goes to the same terminal, `bar.clear()` before a line lets it begin at the left
    edge.
    """
    hidden = quiet or not sys.stderr.isatty()
    with (
        logging_redirect_tqdm(),
        tqdm(total=total, unit=unit, disable=hidden, dynamic_ncols=True) as bar,
    ):
        yield bar


@contextmanager
def open_output(output: Path | None, inputs: Sequence[Path] = ()) -> Iterator[TextIO]:
    """Open the file to write to, standard output for None.

    A usual file appears once it is whole; an error or Ctrl-C leaves FILE.partial, which stderr
    names.

    Raises:
        InputError: the file is one of the inputs.
    """
    if output is None:
        yield sys.stdout
    elif not is_plain(output):
        with output.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    else:
        check_output(output, inputs)
        with _whole_file(output.resolve()) as file:
            yield file


@contextmanager
def _whole_file(path: Path) -> Iterator[TextIO]:
    from transduce.files import PARTIAL, writing_whole

    try:
        with writing_whole(path, keep=True) as raw, ExitStack() as stack:
            text = io.TextIOWrapper(cast(BinaryIO, raw), encoding="utf-8", newline="\n")
            stack.callback(text.detach)  # `raw` stays open
            stack.callback(text.flush)
            yield text
    except BaseException:
        if (part := path.with_name(path.name + PARTIAL)).exists():
            print(f"transduce: what is written so far is in {part}", file=sys.stderr)
        raise


def is_plain(output: Path) -> bool:
    """Whether an output is or becomes a usual file, and no pipe and no device."""
    return output.is_file() or not output.exists()


def check_output(output: Path | None, inputs: Sequence[Path]) -> None:
    """Check that an output, if it is a usual file, has a folder and is no input, standard input
    among them.

    Raises:
        InputError: it has none, or it is one.
    """
    if output is not None and output.is_dir():
        raise InputError(
            f"an output must be a file, but {output} is a directory; name a file in it"
        )
    if output is None or not is_plain(output):
        return
    try:
        folder = output.resolve().parent
        status = output.stat() if output.exists() else None
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InputError(
            f"an output must be a file, but {output} cannot be one: {error}"
        ) from error
    if not folder.is_dir():
        raise InputError(
            f"an output's folder must exist, but {folder} does not; make it, or name another "
            "--output"
        )
    if status is None:
        return
    read = {str(path): path.stat() for path in inputs if os.path.exists(path)}
    with suppress(OSError, ValueError, AttributeError):  # no standard input, or one that is no file
        read["standard input"] = os.fstat(sys.stdin.fileno())
    for name, input_status in read.items():
        if os.path.samestat(input_status, status):
            raise InputError(
                f"an output must not replace what is read, but {output} is {name}; name another "
                "--output"
            )
