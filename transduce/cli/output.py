"""Where the output of a command goes: standard output, or a file that is whole or not there."""

import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from transduce.errors import InputError

SHOWN = 5
"""Messages of one kind that are shown."""

VARIES = re.compile(r"(['\"]).*?\1|\S*[./]\S+|\d+")
"""What differs between two messages of one kind: what is quoted, paths and numbers."""


@contextmanager
def first_few() -> Iterator[Callable[[str], bool]]:
    """What decides whether a message is shown: the first few of one kind are; in the end stderr says how many more came.

    The same message again is neither shown nor counted.
    """
    counts, last, shown = Counter[str](), dict[str, str](), set[str]()

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
def writing(
    output: Path | None, *, unit: str, total: int | None, quiet: bool = False, inputs: Sequence[Path] = ()
) -> Iterator[tuple[TextIO, "tqdm[None]"]]:
    """The file to write to, standard output for None, and a bar on stderr if that is a terminal and not `quiet`.

    A file is there once it is whole; what an error or Ctrl-C leaves of it is FILE.partial. Where bar and output are the
    same terminal, `bar.clear()` before lines are written lets them begin at its left edge.

    Raises:
        InputError: the file is one of the inputs.
    """
    with ExitStack() as stack:
        out: TextIO = sys.stdout
        if output is not None and is_plain(output):
            check_output(output, inputs)
            raw = stack.enter_context(_saying_what_is_left(output.resolve()))
            out = stack.enter_context(_as_text(raw))
        elif output is not None:
            out = stack.enter_context(output.open("w", encoding="utf-8", newline="\n"))
        stack.enter_context(logging_redirect_tqdm())
        hidden = quiet or not sys.stderr.isatty()
        yield out, stack.enter_context(tqdm(total=total, unit=unit, disable=hidden, dynamic_ncols=True))


@contextmanager
def _saying_what_is_left(path: Path) -> Iterator[Any]:
    """`writing_whole`, and a line on stderr where an error leaves a part of the file."""
    from transduce.files import PARTIAL, writing_whole

    try:
        with writing_whole(path, keep=True) as file:
            yield file
    except BaseException:
        if (part := path.with_name(path.name + PARTIAL)).exists():
            print(f"transduce: what is written so far is in {part}", file=sys.stderr)
        raise


@contextmanager
def _as_text(raw: Any) -> Iterator[TextIO]:
    """A binary file as one of text, which stays open."""
    text = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
    try:
        yield text
    finally:
        text.flush()
        text.detach()


def is_plain(output: Path) -> bool:
    """Whether an output is or becomes a usual file, and no pipe and no device."""
    return output.is_file() or not output.exists()


def check_output(output: Path | None, inputs: Sequence[Path]) -> None:
    """Check that an output, if it is a usual file, has a folder and is none of the inputs, standard input among them.

    Raises:
        InputError: it has none, or it is one.
    """
    if output is not None and output.is_dir():
        raise InputError(f"an output must be a file, but {output} is a directory; name a file in it")
    if output is None or not is_plain(output):
        return
    try:
        folder, there = output.resolve().parent, output.stat() if output.exists() else None
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InputError(f"an output must be a file, but {output} cannot be one: {error}") from error
    if not folder.is_dir():
        raise InputError(f"an output's folder must exist, but {folder} does not; make it, or name another --output")
    if there is None:
        return
    read = {str(path): path.stat() for path in inputs if os.path.exists(path)}
    with suppress(OSError, ValueError, AttributeError):  # no standard input, or one that is no file
        read["standard input"] = os.fstat(sys.stdin.fileno())
    for name, status in read.items():
        if os.path.samestat(status, there):
            raise InputError(f"an output must not replace what is read, but {output} is {name}; name another --output")
