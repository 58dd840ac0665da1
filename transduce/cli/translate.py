"""`transduce translate`: lines or markup in, translations out."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from transduce.arguments import Group, Overrides
from transduce.cli.common import (
    STDIN,
    Columns,
    Files,
    Flag,
    Lines,
    Machine,
    Runs,
    SearchOptions,
    check_interactive,
    check_token_scores,
    checked,
    interact,
    lines_or_errors,
    local,
    read_side,
    side_name,
)
from transduce.cli.jobs import Progress, Rows, SearchJob
from transduce.cli.large_files import OutputOptions, carry_out
from transduce.config import Common
from transduce.errors import InputError, errors_of
from transduce.tasks.config import SearchConfig
from transduce.tasks.formats import json_line, plain_output

if TYPE_CHECKING:
    from transduce.tasks.outputs import Output
    from transduce.tasks.translate import Translator


class TranslationSettings(Overrides):
    """Settings of the search for translations."""

    CONFIG = SearchConfig
    WITHOUT = (
        "ctc_weight",
        "max_seconds",
        "min_seconds",
        "margin",
        "timestamps",
        "words",
        "alignment_heads",
        "no_speech_threshold",
        "forbid",
        "glossary",
    )
    HINT = "(the run's)"


@dataclass(frozen=True, kw_only=True)
class TranslationSearch(SearchOptions):
    """How to search for translations."""

    settings: Group[TranslationSettings]


@dataclass(frozen=True, kw_only=True)
class TranslationOutput:
    """How translations are written."""

    scores: Common[bool] = False
    """Put its score and a tab before each translation: log-probability, with the bonuses of a
    glossary and of biases, divided by the length penalty."""
    format: Common[Literal["text", "json", "html", "srt", "vtt"]] = "text"
    """text: a line per translation. json: an object per line, with its source and its n best
    outputs. html, srt, vtt: the format of input and output; tags are carried over by alignment, and
    times are kept."""
    alignments: Common[bool] = False
    """Put a tab and word alignments such as 0-0 1-2 after each translation, or put them into json:
    the index of a source word, and that of its target word. They help to carry markup over, or to
    see what was left out."""
    token_scores: bool = False
    """Put the log-probability of every token, and a confidence of every word, into json, to see
    where the model was unsure."""

    def __post_init__(self) -> None:
        check_token_scores(self.token_scores, self.format)

    def row(self, line: str, outputs: "list[Output]") -> str:
        """The text that is written for a line and its outputs."""
        if self.format == "json":
            return json_line({"source": line, "outputs": [plain_output(each) for each in outputs]})
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
    interactive: Flag = False,
    output: Group[TranslationOutput],
    columns: Group[Columns],
    search: Group[TranslationSearch],
    machine: Group[Machine],
    destination: Group[OutputOptions],
) -> None:
    """Translate text line by line, in order; a blank line gives a blank line.

    A line that is not UTF-8 is named on stderr and gives a blank line; the exit code is then 1.

    Args:
        files: Text to translate, plain or .gz, one after the other; - is standard input, which is
            also the default.
        interactive: Ask for a line, translate it at once, and ask again; Ctrl-D ends.
    """
    if interactive:
        output_flags = {f"--{name}": value for name, value in vars(destination).items()}
        check_interactive({"FILE": files} | output_flags)
    texts = files or (STDIN,)
    job = Translation(
        run=local(run),
        lm=search.lm and local(search.lm),
        machine=machine,
        settings=search.overrides(texts),
        output=output,
        columns=columns,
    )
    if output.format in ("html", "srt", "vtt"):
        alone = TranslationOutput(format=output.format)
        others = interactive, columns, search.settings.get("n_best", 1) > 1
        if output != alone or destination != OutputOptions() or any(others):
            raise InputError(
                f"a text in {output.format} is translated in one piece to standard output, so "
                "give --format alone, or with settings of the search"
            )
        return job.print_markup(texts)
    if interactive:
        return interact(partial(job.answer, job.load()))
    # resuming needs the whole input
    lines = Lines(*texts) if files or destination.output else lines_or_errors(STDIN)
    carry_out(job, lines, destination, inputs=[*files, *search.files])


@dataclass(frozen=True, kw_only=True)
class Translation(SearchJob):
    """Lines to translate, each a text or the InputError of a line that cannot be read."""

    TASK = "Translator"
    UNIT = "line"
    UNUSABLE = "lines could not be translated"
    CHUNK = 2000

    output: TranslationOutput
    columns: Columns

    def print_markup(self, files: Sequence[Path]) -> None:
        """Translate files of HTML or subtitles; an InputError names a file that is invalid."""
        from transduce.tasks.markup import translate_markup

        translator = self.load()
        for file in files:
            text = "".join(f"{line}\n" for line in read_side(file))
            with errors_of(side_name(file)):
                sys.stdout.write(translate_markup(translator, text, self.output.format))

    def answer(self, translator: "Translator", line: str, number: int) -> None:
        """Print the translation of a line at once.

        Raises:
            InputError: it cannot be used.
        """
        rows = self.rows(translator, number, [line], lambda *_: None)
        for error in rows.errors:
            raise InputError(error)
        print(rows.text, end="", flush=True)

    def rows(
        self,
        translator: "Translator",
        start: int,
        items: list[str | InputError],
        progress: Progress,
    ) -> Rows:
        """Translate lines; one that cannot be used is blank."""
        from transduce.decode.phrases import required, text_prefix
        from transduce.tasks.base import Details, in_order

        parts = []
        errors = []
        for number, item in enumerate(items, start + 1):
            try:
                line, prefix, phrases = self.columns.split(checked(item), number)
                with errors_of(f"line {number}"):
                    required(translator.tokenizer, [phrases])  # raises for invalid phrases
                    text_prefix(translator.tokenizer, prefix)
                parts.append((line, prefix, phrases))
            except InputError as error:
                parts.append(("", "", []))
                errors.append(str(error))
        lines = [line for line, _, _ in parts]
        outputs = []
        for numbered in translator.stream(
            lines,
            prefix=[prefix for _, prefix, _ in parts],
            require=[phrases for _, _, phrases in parts],
            first_line=start + 1,
            details=Details(
                scores=self.output.scores or self.output.format == "json",
                token_scores=self.output.token_scores,
                alignments=self.output.alignments,
            ),
        ):
            outputs.append(numbered)
            progress(1, 0)
        rows = map(self.output.row, lines, in_order(outputs))
        return Rows("".join(rows), tuple(errors))
