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


def exit_code(action: Callable[[], object], *, prefix: str, interrupted: str) -> int:
    """Run `action`: 0 if it went well, 2 if its input was at fault, 130 after Ctrl-C; the reason goes to stderr."""
    try:
        action()
        sys.stdout.flush()  # while a full disk can still be told
    except (FileNotFoundError, NotADirectoryError) as error:
        print(f"{prefix}: {error.filename} does not exist", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read us has seen enough
        _drop_output()
        return 0
    except (ValueError, OSError, FloatingPointError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            where = f", {error.filename}" if error.filename else ""
            print(f"{prefix}: no space is left on the disk{where}; make room, and run it again", file=sys.stderr)
            _drop_output()
        else:
            print(f"{prefix}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    return 0
