"""`transduce translate RUN`: lines in, their translations out."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from transduce.cli.common import (
    Machine,
    OptionalFile,
    Run,
    chunks,
    read_side,
    search_options,
    standard_input,
    with_options,
    writing,
)
from transduce.cli.interactive import check_interactive, interact

if TYPE_CHECKING:
    from transduce.tasks.search import Output
else:  # torch takes seconds to import, and --help does without
    Output = Any

CHUNK = 2000
"""Lines translated, and then written, at a time: sorted by length within, in order without."""

Search = search_options(without=("ctc_weight", "max_seconds", "min_seconds", "margin"))


def translate(
    run: Positional[Run],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILE ...]", help_behavior_hint="")]] = (),
    *,
    output: OptionalFile = None,
    scores: bool = False,
    interactive: Annotated[bool, arg(help_behavior_hint="")] = False,
    search: Annotated[Any, arg(constructor=Search)],
    machine: Machine,
) -> None:
    """Translate lines: as many out as in, in the same order, a blank line for a blank line.

    Args:
        files: Text to translate, plain or .gz, one after the other; - is standard input, as is none.
        output: Where translations go; standard output if not given.
        scores: Put the score (log-probability over length penalty) and a tab before each translation.
        interactive: Ask for a line, translate it at once, and ask again; Ctrl-D ends.
    """
    if interactive:
        check_interactive({"FILE": files, "--output": output})
    from transduce.tasks.translate import Translator

    translator = machine.load(Translator, run)
    decoding = with_options(translator.decoding, search)

    def answer(line: str, number: int) -> None:
        (outputs,) = translator.translate([line], decoding, first_line=number + 1)
        print("".join(_line(each, scores) for each in outputs), end="", flush=True)

    if interactive:
        return interact(answer)
    lines: Iterable[str] = standard_input()
    size, total = (1 if sys.stdin.isatty() else CHUNK), None
    if files:
        lines = [line for file in files for line in read_side(file)]
        size, total = CHUNK, len(lines)
    done = 0
    with writing(output, unit="line", total=total, quiet=size == 1) as (out, bar):
        for some in chunks(lines, size):
            found = translator.translate(some, decoding, first_line=done + 1, progress=bar.update)
            out.write("".join(_line(each, scores) for outputs in found for each in outputs))
            out.flush()
            done += len(some)
            bar.update(done - bar.n)  # blank lines pass without a batch


def _line(output: Output, scores: bool) -> str:
    return f"{output.score:.4f}\t{output.text}\n" if scores else f"{output.text}\n"
