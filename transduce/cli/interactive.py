"""A line in, its output at once, until the end of input: what --interactive does."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import count

from transduce.data.lines import bounded_lines, decode_line
from transduce.errors import InputError

PROMPT = "> "


def interact(answer: Callable[[str, int], object]) -> None:
    """Answer line after line of standard input, with history and editing on a terminal; Ctrl-D
    ends.

    Ctrl-C stops the answer that is being made, or clears the line that is being typed. An answer
    that raises InputError is shown on stderr, and the next line is read.

    Args:
        answer: called with a line and how many came before it; it prints.
    """
    if sys.stdin.isatty():
        if find_spec("readline"):
            import_module("readline")
        print("a line in, its output at once; Ctrl-C stops an output, Ctrl-D ends", file=sys.stderr)
    for number in count():
        try:
            line = _next_line(number + 1)
            if line is None:
                return
            answer(line, number)
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
        except InputError as error:
            print(f"transduce: {error}", file=sys.stderr)


def check_interactive(others: dict[str, object]) -> None:
    """Check that nothing else is asked for.

    Raises:
        InputError: one of these options is named as well.
    """
    if named := [name for name, value in others.items() if value]:
        raise InputError(
            "--interactive asks for its lines and prints to the terminal, so leave out "
            f"{', '.join(named)}"
        )


def _next_line(number: int) -> str | None:
    """The next line without its end; None at the end of input.

    Raises:
        InputError: it is not UTF-8, or too long.
    """
    if sys.stdin.isatty():
        try:
            return input(PROMPT)
        except EOFError:
            print()
            return None
    raw = next(bounded_lines(sys.stdin.buffer.readline, "standard input"), b"")
    return decode_line(raw.removesuffix(b"\n"), "standard input", number) if raw else None
