"""Errors that users can correct, as opposed to bugs; how errors end a program; warnings."""

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

logger = logging.getLogger("transduce")
"""Receives the package's warnings; commands write them to stderr."""


class InputError(ValueError):
    """An argument, a setting or a file that cannot be used; the message gives rule, value and way
    out.

    Commands and recipes print it as one line and end with 2. Any other exception is a bug of this
    package, and shows a traceback.
    """


@contextmanager
def errors_of(name: object) -> Iterator[None]:
    """Put a name, such as a file's, before the message of an InputError raised inside the
    `with`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def require(library: str, feature: str, extra: str, way_out: str = "") -> None:
    """Raise InputError unless a library that a feature needs is installed.

    Args:
        library: the name of its module.
        extra: the extra in pyproject.toml that brings it.
        way_out: what else helps; it follows the install command.
    """
    if find_spec(library) is None:
        raise InputError(
            f"{feature} needs the library {library}, but it is not installed; in a clone of "
            f"transduce: pip install '.[{extra}]'{way_out}"
        )


DEBUG = "TRANSDUCE_DEBUG"
"""The environment variable that makes errors show their traceback."""


@contextmanager
def command_process(message_format: str, *, needs_output: bool) -> Iterator[None]:
    """Set up streams and logging of a command, and restore them for a caller in Python.

    Warnings go to stderr; standard output is UTF-8 unless it is a terminal; characters that it
    cannot show become \\u65e5; what is written to a closed stream is lost.

    Args:
        needs_output: writing to a closed standard output raises io.UnsupportedOperation instead.
    """
    with ExitStack() as stack:
        for name in ("stdin", "stdout", "stderr"):
            if getattr(sys, name) is None:
                mode = "r" if name == "stdout" and needs_output else "r+"
                setattr(sys, name, stack.enter_context(open(os.devnull, mode)))
                stack.callback(setattr, sys, name, None)
        out = sys.stdout
        if isinstance(out, io.TextIOWrapper):
            stack.callback(out.reconfigure, encoding=out.encoding, errors=out.errors)
            encoding = out.encoding if out.isatty() else "utf-8"
            out.reconfigure(encoding=encoding, errors="backslashreplace")
        if not logging.root.handlers:
            stack.callback(logging.root.setLevel, logging.root.level)
            logging.basicConfig(format=message_format, level=logging.WARNING)
            stack.callback(logging.root.removeHandler, logging.root.handlers[0])
        yield


def _drop_output() -> None:
    """Discard buffered output, which Python would flush again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def os_error_message(error: OSError) -> str:
    """The reason for an OSError and, if known, the way out."""
    if isinstance(error, io.UnsupportedOperation):
        return "output needs a place, but standard output is closed; open it, or name a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f", {error.filename}" if error.filename else ""
        return f"no space is left on the disk{place}; make room, and run it again"
    if error.filename and isinstance(error, FileNotFoundError):
        return f"{error.filename} does not exist"
    if error.filename and isinstance(error, FileExistsError | NotADirectoryError):
        place = error.filename
        while place and not os.path.exists(place):
            place = os.path.dirname(place)
        if os.path.isfile(place):
            return f"{place} is a file, where a folder must be; name another place"
    if error.filename and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        # of what does not exist, such as a temporary file, it is the folder that refuses
        exists = os.path.exists(error.filename)
        place = error.filename if exists else os.path.dirname(error.filename) or "."
        return (
            f"{place} may not be read or written ({error.strerror}); change its "
            "permissions, or name another place"
        )
    return str(error)


def exit_code(action: Callable[[], object], *, interrupted: str) -> int:
    """Run `action`: 0 on success, 2 for unusable input, 130 after Ctrl-C; stderr says why."""
    try:
        action()
        sys.stdout.flush()  # while a full disk can still be reported
    except BrokenPipeError:  # the reader of standard output has ended
        _drop_output()
        return 0
    except OSError as error:
        print(f"transduce: {os_error_message(error)}", file=sys.stderr)
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
