"""How a program ends: with an exit code, and the reason on stderr."""

import os
import sys
from collections.abc import Callable


def exit_code(action: Callable[[], object], *, prefix: str, interrupted: str) -> int:
    """Run `action`: 0 if it went well, 2 if its input was at fault, 130 after Ctrl-C; the reason goes to stderr."""
    try:
        action()
    except (FileNotFoundError, NotADirectoryError) as error:
        print(f"{prefix}: {error.filename} does not exist", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"{prefix}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    return 0
