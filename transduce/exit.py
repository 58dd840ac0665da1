"""How a program ends: with an exit code, and the reason on stderr."""

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from transduce.errors import InputError

DEBUG = "TRANSDUCE_DEBUG"
"""The environment variable that shows where an error comes from."""


class _ClosedOutput(io.TextIOBase):
    """Standard output where whoever started this program has closed it."""

    def write(self, text: str) -> int:
        raise InputError("standard output must be open, but it is closed; name a file with --output, or write > FILE")


@contextmanager
def command_process(message_format: str, *, needs_output: bool) -> Iterator[None]:
    """Have warnings on stderr, standard output in UTF-8 unless it is a terminal, and no closed streams, as under cron.

    Afterwards streams and logging are as they were, for whoever calls a command from Python.

    What a terminal, or UTF-8, cannot show comes out as \\u65e5.

    Args:
        needs_output: writing to a closed standard output is an error; otherwise it is lost.
    """
    with ExitStack() as stack:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if getattr(sys, name) is not None:
                continue
            stack.callback(setattr, sys, name, None)
            try:
                os.fstat(number)
            except OSError:  # else a file that is opened later would get its number
                stack.callback(os.close, os.open(os.devnull, os.O_RDWR))
            refuses = name == "stdout" and needs_output
            setattr(sys, name, _ClosedOutput() if refuses else stack.enter_context(open(number, "r+", closefd=False)))
        out = sys.stdout
        if isinstance(out, io.TextIOWrapper):
            stack.callback(out.reconfigure, encoding=out.encoding, errors=out.errors)
            out.reconfigure(encoding=out.encoding if out.isatty() else "utf-8", errors="backslashreplace")
        if not logging.root.handlers:
            stack.callback(logging.root.setLevel, logging.root.level)
            logging.basicConfig(format=message_format, level=logging.WARNING)
            stack.callback(logging.root.removeHandler, logging.root.handlers[0])
        yield


def _drop_output() -> None:
    """Python flushes standard output once more at its end, and would fail there again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: OSError) -> str:
    """The reason and, where one knows it, the way out."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f", {error.filename}" if error.filename else ""
        return f"no space is left on the disk{where}; make room, and run it again"
    if error.filename and isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"{error.filename} does not exist"
    if error.filename and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        told = f"{error.filename} may not be read or written ({error.strerror})"
        return f"{told}; change its permissions, or name another place"
    return str(error)


def exit_code(action: Callable[[], object], *, interrupted: str) -> int:
    """Run `action`: 0 if it went well, 2 if its input was at fault, 130 after Ctrl-C; the reason goes to stderr."""
    try:
        action()
        sys.stdout.flush()  # while a full disk can still be told
    except BrokenPipeError:  # whoever read us has seen enough
        _drop_output()
        return 0
    except OSError as error:
        print(f"transduce: {_told(error)}", file=sys.stderr)
        _drop_output()
        return 2
    except (InputError, FloatingPointError) as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        print(f"transduce: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"transduce: {interrupted}", file=sys.stderr)
        return 130
    return 0
