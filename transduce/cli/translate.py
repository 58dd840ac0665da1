"""`transduce translate RUN`: lines in, their translations out."""

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from transduce.arguments import Group, Overrides
from transduce.cli.common import (
    STDIN,
    Columns,
    Files,
    Lines,
    Machine,
    Runs,
    SearchOptions,
    chunks,
    each_run,
    lines_or_errors,
    local,
)
from transduce.cli.interactive import check_interactive, interact
from transduce.cli.jobs import Division, Job, carry_out, stream
from transduce.cli.workers import Progress, Rows
from transduce.config import Common
from transduce.errors import InputError
from transduce.tasks.config import SearchConfig
from transduce.tasks.formats import plain_output

if TYPE_CHECKING:
    from transduce.tasks.search import Output
    from transduce.tasks.translate import Translator

logger = logging.getLogger("transduce")

PICTURES = 100
"""Lines that have a picture, where they are wanted: each takes a third of a second."""


class TranslationSettings(Overrides):
    """Settings of a search among those of a translation."""

    CONFIG = SearchConfig
    WITHOUT = (
        *(
            "ctc_weight",
            "max_seconds",
            "min_seconds",
            "margin",
            "timestamps",
            "words",
            "no_speech_threshold",
        ),
        "forbid",
    )
    HINT = "(the run's)"


@dataclass(frozen=True, kw_only=True)
class TranslationSearch(SearchOptions):
    """How to search for translations."""

    settings: Group[TranslationSettings]


@dataclass(frozen=True, kw_only=True)
class TranslationOutput:
    """What is written of a translation."""

    scores: Common[bool] = False
    """Put the score (log-probability over length penalty) and a tab before each translation."""
    format: Common[Literal["text", "json"]] = "text"
    """text: a line per translation. json: an object per line, with its source and its n best
    outputs."""
    alignments: Common[bool] = False
    """Put a tab and pairs such as 0-0 1-2 behind each translation, or them into json: the number of
    a source word, and that of the word written from it; for carrying markup over, or for seeing
    what was left out."""
    alignment_pictures: Annotated[Path | None, arg(metavar="DIR")] = None
    """Draw where the decoder looks while it writes the best translation of each of the first 100
    lines, token by token, as DIR/0001.png ...: to see what a word was written from, or why one is
    missing."""
    token_scores: bool = False
    """Put the log-probability of every token, and a confidence of every word, into json, to see
    where the model was unsure."""

    def __post_init__(self) -> None:
        check_token_scores(self.token_scores, self.format)

    def make_folder(self, run: Path) -> None:
        """Make the folder of pictures, if they are wanted.

        Raises:
            InputError: there is an ensemble, or a file of this name.
        """
        if not self.alignment_pictures:
            return
        if len(each_run(run)) > 1:
            raise InputError(
                f"pictures show where one model looks, but {run} are several; name one, or leave "
                "out the pictures"
            )
        if self.alignment_pictures.exists() and not self.alignment_pictures.is_dir():
            raise InputError(
                f"pictures go into a folder, but {self.alignment_pictures} is a file; name another "
                "one"
            )
        self.alignment_pictures.mkdir(parents=True, exist_ok=True)

    def row(self, line: str, outputs: "list[Output]") -> str:
        """What is written of a line and its outputs."""
        if self.format == "json":
            plain = {"source": line, "outputs": [plain_output(each) for each in outputs]}
            return json.dumps(plain, ensure_ascii=False) + "\n"
        return "".join(
            f"{each.score:.4f}\t" * self.scores
            + each.text
            + f"\t{each.alignment or ''}" * self.alignments
            + "\n"
            for each in outputs
        )


def translate(
    run: Runs,
    files: Files = (),
    *,
    interactive: Annotated[bool, arg(help_behavior_hint="")] = False,
    output: Group[TranslationOutput],
    columns: Group[Columns],
    search: Group[TranslationSearch],
    machine: Group[Machine],
    division: Group[Division],
) -> None:
    """Translate lines: as many out as in, in order, a blank line for a blank one.

    A line that is not UTF-8 is named on stderr and gives a blank line; the exit code is then 1.

    Args:
        files: Text to translate, plain or .gz, one after the other; - is standard
            input, which is read where none is named.
        interactive: Ask for a line, translate it at once, and ask again; Ctrl-D ends.
    """
    if interactive:
        check_interactive({"FILE": files, "--output": division.output})
    run = local(run)
    lm = search.lm and local(search.lm)
    _, decoding = search.resolve(run)
    output.make_folder(run)
    job = Translation(
        run=run, lm=lm, machine=machine, decoding=decoding, output=output, columns=columns
    )
    if interactive:
        work = job.load()
        return interact(
            lambda line, number: print(
                work(number, [line], lambda *_: None).text, end="", flush=True
            )
        )
    if files or division.output or division.share():
        # an output goes on where it was stopped, for which the whole input is needed
        return carry_out(job, Lines(*files or [STDIN]), division, inputs=files or [STDIN])
    lines = chunks(lines_or_errors(STDIN), 1 if sys.stdin.isatty() else job.CHUNK)
    stream(job, lines, None, n_workers=division.workers or 1, quiet=sys.stdin.isatty())


def check_token_scores(token_scores: bool, format: str) -> None:
    """Raise InputError where scores of tokens have no place."""
    if token_scores and format != "json":
        raise InputError(
            f"scores of tokens need --format json, but it is {format}; add --format json"
        )


@dataclass(frozen=True, kw_only=True)
class Translation(Job):
    """Lines to translate, each a text or the error that there is in place of one."""

    TASK = "transduce.tasks.translate:Translator"
    UNIT = "line"
    UNUSABLE = "lines could not be translated"
    CHUNK = 2000

    decoding: SearchConfig
    output: TranslationOutput
    columns: Columns

    def rows(
        self,
        translator: "Translator",
        start: int,
        items: list[str | InputError],
        progress: Progress,
    ) -> Rows:
        """Translate lines."""
        lines = [item if isinstance(item, str) else "" for item in items]
        errors = [item if isinstance(item, InputError) else None for item in items]
        for i, line in enumerate(lines):
            try:
                self.columns.check(line, start + i + 1, "SOURCE")
            except InputError as error:
                errors[i] = error
                lines[i] = ""
        lines, prefixes, phrases = self.columns.split(lines)
        outputs = translator.translate(
            lines,
            self.decoding,
            prefix=prefixes,
            require=phrases,
            first_line=start + 1,
            progress=lambda n: progress(n, 0),
            token_scores=self.output.token_scores,
            alignments=self.output.alignments,
        )
        if self.output.alignment_pictures:
            self._draw(self.output.alignment_pictures, translator, start, lines, outputs)
        rows = map(self.output.row, lines, outputs)
        return Rows("".join(rows), tuple(str(error) for error in errors if error))

    def _draw(
        self,
        folder: Path,
        translator: "Translator",
        start: int,
        lines: list[str],
        outputs: "list[list[Output]]",
    ) -> None:
        """Draw pictures of the lines whose numbers are small enough; `start` lines came before."""
        for number, (line, best) in enumerate(zip(lines, outputs, strict=True), start=start + 1):
            if number > PICTURES:
                return logger.warning("there are pictures of the first %d lines alone", PICTURES)
            if line.strip():
                try:
                    (look,) = translator.with_decoding(self.decoding).align([line], best[:1])
                except InputError as error:  # too long for learned positions
                    logger.warning("line %d has no picture: %s", number, error)
                else:
                    look.draw(folder / f"{number:04}.png", f"line {number}")
