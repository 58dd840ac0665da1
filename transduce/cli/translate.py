"""`transduce translate RUN`: lines in, their translations out."""

import json
import logging
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from transduce.cli.common import (
    LM,
    STDIN,
    Forbid,
    Lines,
    Machine,
    Runs,
    check_columns,
    chunks,
    each_run,
    lines_or_errors,
    local,
    phrases_of,
    search_of,
    search_options,
)
from transduce.cli.interactive import check_interactive, interact
from transduce.cli.jobs import Division, Job, carry_out, stream
from transduce.cli.workers import Progress, Rows, Work
from transduce.errors import InputError
from transduce.tasks.config import SearchConfig
from transduce.tasks.formats import plain_output

if TYPE_CHECKING:
    from transduce.tasks.search import Output
    from transduce.tasks.translate import Translator

Format = Literal["text", "json"]

logger = logging.getLogger("transduce")

PICTURES = 100
"""Lines that have a picture, where they are asked for: each takes a third of a second."""

Search = search_options(
    without=("ctc_weight", "max_seconds", "min_seconds", "margin", "timestamps", "words", "no_speech_threshold")
)


def translate(
    run: Positional[Runs],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILE ...]", help_behavior_hint="")]] = (),
    *,
    scores: bool = False,
    format: Format = "text",
    alignments: Annotated[bool, arg(help_behavior_hint="")] = False,
    alignment_pictures: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    token_scores: Annotated[bool, arg(help_behavior_hint="")] = False,
    interactive: Annotated[bool, arg(help_behavior_hint="")] = False,
    prefix: Annotated[bool, arg(help_behavior_hint="")] = False,
    require: Annotated[bool, arg(help_behavior_hint="")] = False,
    forbid: Forbid = None,
    lm: LM = None,
    search: Annotated[Any, arg(constructor=Search)],
    machine: Machine,
    division: Division,
) -> None:
    """Translate lines: as many out as in, in the same order, a blank line for a blank line.

    A line that is not UTF-8 is named on stderr and gives a blank line; the exit code is then 1.

    Args:
        files: Text to translate, plain or .gz, one after the other; - is standard input, as is none.
        scores: Put the score (log-probability over length penalty) and a tab before each translation.
        format: text: a line per translation. json: an object per line, with its source and its n best outputs.
        alignments: Put a tab and pairs such as 0-0 1-2 behind each translation, or them into json: the number of a source
            word, and that of the word written from it; for carrying markup over, or for seeing what was left out.
        alignment_pictures: Draw where the decoder looks while it writes the best translation of each of the first 100 lines,
            token by token, as DIR/0001.png ...: to see what a word was written from, or why one is missing.
        token_scores: Put the log-probability of every token, and a confidence of every word, into json, to see where the
            model was unsure.
        lm: A language model beside the run: for words and phrases that its training lacked. Another run, of the same
            target tokenizer, or an ARPA file of n-grams whose words are its tokens, as transduce tokenize writes them.
        interactive: Ask for a line, translate it at once, and ask again; Ctrl-D ends.
        prefix: Lines are SOURCE<TAB>PREFIX, and a translation begins with its prefix, where somebody has written its
            beginning; its last word may go on, unless a space ends it.
        require: Lines are SOURCE<TAB>PHRASE<TAB>PHRASE ..., behind a PREFIX if there is one, and a translation holds all
            of its phrases, where terms or names are prescribed; phrases may be inflected. Costs time; takes a wide beam.
    """
    if interactive:
        check_interactive({"FILE": files, "--output": division.output})
    run, lm = local(run), local(lm) if lm else None
    _, decoding = search_of(run, search, forbid=forbid, lm=lm, format=format, token_scores=token_scores)
    if alignment_pictures:
        if len(each_run(run)) > 1:
            raise InputError(
                f"pictures show where one model looks, but {run} are several; name one, or leave out the pictures"
            )
        if alignment_pictures.exists() and not alignment_pictures.is_dir():
            raise InputError(f"pictures go into a folder, but {alignment_pictures} is a file; name another one")
        alignment_pictures.mkdir(parents=True, exist_ok=True)
    job = Translation(
        run=run,
        lm=lm,
        machine=machine,
        decoding=decoding,
        scores=scores,
        format=format,
        alignments=alignments,
        alignment_pictures=alignment_pictures,
        token_scores=token_scores,
        prefix=prefix,
        require=require,
    )
    if interactive:
        work = job.load()
        return interact(lambda line, number: print(work(number, [line], lambda *_: None).text, end="", flush=True))
    if files or division.output or division.share():
        # an output goes on where it was stopped, for which the whole input is needed
        named = files or (STDIN,)
        return carry_out(job, Lines(*named), division, inputs=named)
    some = chunks(lines_or_errors(STDIN), 1 if sys.stdin.isatty() else job.CHUNK)
    stream(job, some, None, n_workers=division.workers or 1, quiet=sys.stdin.isatty())


@dataclass(frozen=True, kw_only=True)
class Translation(Job):
    """Lines to translate, each a text or the error that there is in place of one."""

    UNIT = "line"
    UNUSABLE = "lines could not be translated"
    CHUNK = 2000

    decoding: SearchConfig
    scores: bool
    format: Format = "text"
    alignments: bool = False
    alignment_pictures: Path | None = None
    token_scores: bool = False
    prefix: bool = False
    """Whether a line has what its translation begins with behind a tab."""
    require: bool = False
    """Whether a line has what its translation must hold behind tabs."""

    def load(self) -> Work:
        """Load the translator."""
        from transduce.tasks.translate import Translator

        return partial(self._rows, self.machine.load(Translator, self.run, self.lm))

    def _rows(self, translator: "Translator", start: int, items: list[str | InputError], progress: Progress) -> Rows:
        lines = [item if isinstance(item, str) else "" for item in items]
        told: dict[str, Any] = {"first_line": start + 1, "progress": lambda n: progress(n, 0)}
        told |= {"token_scores": self.token_scores, "alignments": self.alignments}
        if self.prefix or self.require:
            flags, items = {"prefix": self.prefix, "require": self.require}, [*items]
            for i, line in enumerate(lines):
                try:
                    check_columns(line, start + i + 1, "SOURCE", **flags)
                except InputError as error:
                    items[i], lines[i] = error, ""
            lines, phrases = phrases_of(lines, **flags)
            told |= phrases
        found = translator.translate(lines, self.decoding, **told)
        if self.alignment_pictures:
            self._draw(self.alignment_pictures, translator, start, lines, found)
        write = self._json if self.format == "json" else self._text
        rows = (write(line, outputs) for line, outputs in zip(lines, found, strict=True))
        return Rows("".join(rows), tuple(str(item) for item in items if isinstance(item, InputError)))

    def _draw(
        self, folder: Path, translator: "Translator", start: int, lines: list[str], found: "list[list[Output]]"
    ) -> None:
        """Make the pictures of those of these lines, the first of which has the number `start`, that get one."""
        for number, (line, outputs) in enumerate(zip(lines, found, strict=True), start=start + 1):
            if number > PICTURES:
                return logger.warning("there are pictures of the first %d lines alone", PICTURES)
            if line.strip():
                try:
                    (look,) = translator.with_decoding(self.decoding).align([line], outputs[:1])
                except InputError as error:  # too long for learned positions
                    logger.warning("line %d has no picture: %s", number, error)
                else:
                    look.draw(folder / f"{number:04}.png", f"line {number}")

    def _text(self, line: str, outputs: "list[Output]") -> str:
        return "".join(
            f"{each.score:.4f}\t" * self.scores + each.text + f"\t{each.alignment or ''}" * self.alignments + "\n"
            for each in outputs
        )

    def _json(self, line: str, outputs: "list[Output]") -> str:
        plain = {"source": line, "outputs": [plain_output(each) for each in outputs]}
        return json.dumps(plain, ensure_ascii=False) + "\n"
