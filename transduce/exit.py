"""How a program ends: with an exit code, and the reason on stderr."""

import errno
import os
import sys
from collections.abc import Callable


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


def exit_code(action: Callable[[], object], *, prefix: str, interrupted: str) -> int:
    """Run `action`: 0 if it went well, 2 if its input was at fault, 130 after Ctrl-C; the reason goes to stderr."""
    try:
        action()
        sys.stdout.flush()  # while a full disk can still be told
    except BrokenPipeError:  # whoever read us has seen enough
        _drop_output()
        return 0
    except OSError as error:
        print(f"{prefix}: {_told(error)}", file=sys.stderr)
        _drop_output()
        return 2
    except (ValueError, FloatingPointError) as error:
        print(f"{prefix}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    return 0
