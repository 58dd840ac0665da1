"""`transduce translate RUN`: lines in, their translations out."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from transduce.cli.common import (
    STDIN,
    Forbid,
    Machine,
    Run,
    chunks,
    lines_or_errors,
    search_options,
    standard_input_or_errors,
    with_options,
)
from transduce.cli.interactive import check_interactive, interact
from transduce.cli.jobs import Division, Job, carry_out, stream
from transduce.cli.workers import Progress, Rows, Work
from transduce.tasks.config import SearchConfig

if TYPE_CHECKING:
    from transduce.tasks.translate import Translator

Search = search_options(without=("ctc_weight", "max_seconds", "min_seconds", "margin"))


def translate(
    run: Positional[Run],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILE ...]", help_behavior_hint="")]] = (),
    *,
    scores: bool = False,
    interactive: Annotated[bool, arg(help_behavior_hint="")] = False,
    prefix: Annotated[bool, arg(help_behavior_hint="")] = False,
    require: Annotated[bool, arg(help_behavior_hint="")] = False,
    forbid: Forbid = None,
    search: Annotated[Any, arg(constructor=Search)],
    machine: Machine,
    division: Division,
) -> None:
    """Translate lines: as many out as in, in the same order, a blank line for a blank line.

    A line that is not UTF-8 is named on stderr and gives a blank line; the exit code is then 1.

    Args:
        files: Text to translate, plain or .gz, one after the other; - is standard input, as is none.
        scores: Put the score (log-probability over length penalty) and a tab before each translation.
        interactive: Ask for a line, translate it at once, and ask again; Ctrl-D ends.
        prefix: Lines are SOURCE<TAB>PREFIX, and a translation begins with its prefix, where somebody has written its
            beginning; its last word may go on, unless a space ends it.
        require: Lines are SOURCE<TAB>PHRASE<TAB>PHRASE ..., behind a PREFIX if there is one, and a translation holds all
            of its phrases, where terms or names are prescribed; phrases may be inflected. Costs time; takes a wide beam.
    """
    if interactive:
        check_interactive({"FILE": files, "--output": division.output})
    from transduce.run import load_run
    from transduce.tasks.load import own_decoding

    decoding = with_options(own_decoding(run, load_run(run)), search, forbid)
    job = Translation(run=run, machine=machine, decoding=decoding, scores=scores, prefix=prefix, require=require)
    if interactive:
        work = job.load()
        return interact(lambda line, number: print(work(number, [line], lambda *_: None).text, end="", flush=True))
    if files or division.share():
        return carry_out(job, [line for file in files or [STDIN] for line in lines_or_errors(file)], division)
    some = chunks(standard_input_or_errors(), 1 if sys.stdin.isatty() else job.CHUNK)
    stream(job, some, division.output, n_workers=division.workers or 1, quiet=sys.stdin.isatty())


@dataclass(frozen=True, kw_only=True)
class Translation(Job):
    """Lines to translate, each a text or the error that there is in place of one."""

    UNIT = "line"
    UNUSABLE = "lines could not be translated"
    CHUNK = 2000

    decoding: SearchConfig
    scores: bool
    prefix: bool = False
    """Whether a line has what its translation begins with behind a tab."""
    require: bool = False
    """Whether a line has what its translation must hold behind tabs."""

    def load(self) -> Work:
        """Load the translator."""
        from transduce.tasks.translate import Translator

        return partial(self._rows, self.machine.load(Translator, self.run))

    def _rows(self, translator: "Translator", start: int, items: list[str | ValueError], progress: Progress) -> Rows:
        lines = [item if isinstance(item, str) else "" for item in items]
        told: dict[str, Any] = {"first_line": start + 1, "progress": lambda n: progress(n, 0)}
        if self.prefix or self.require:
            columns, items = [line.split("\t") for line in lines], [*items]
            if not self.require:
                wrong = "line {} must be SOURCE<TAB>PREFIX, but it has {} columns; remove tabs"
                for i, row in enumerate(columns):
                    if len(row) > 2:
                        items[i], columns[i] = ValueError(wrong.format(start + i + 1, len(row))), [""]
            lines, first = [row[0] for row in columns], 1 + self.prefix
            told["prefix"] = [row[1] if self.prefix and len(row) > 1 else "" for row in columns]
            told["require"] = [[phrase for phrase in row[first:] if phrase.strip()] for row in columns]
        found = translator.translate(lines, self.decoding, **told)
        rows = (f"{each.score:.4f}\t" * self.scores + each.text + "\n" for outputs in found for each in outputs)
        return Rows("".join(rows), tuple(str(item) for item in items if isinstance(item, ValueError)))
