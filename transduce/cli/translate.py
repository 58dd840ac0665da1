"""`transduce translate RUN`: lines in, their translations out."""

import json
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
    Machine,
    Runs,
    check_lm,
    chunks,
    each_run,
    lines_or_errors,
    plain_output,
    search_options,
    standard_input_or_errors,
    with_options,
)
from transduce.cli.interactive import check_interactive, interact
from transduce.cli.jobs import Division, Job, carry_out, stream
from transduce.cli.workers import Progress, Rows, Work
from transduce.tasks.config import SearchConfig

if TYPE_CHECKING:
    from transduce.tasks.search import Output
    from transduce.tasks.translate import Translator

Format = Literal["text", "json"]

Search = search_options(without=("ctc_weight", "max_seconds", "min_seconds", "margin"))


def translate(
    run: Positional[Runs],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILE ...]", help_behavior_hint="")]] = (),
    *,
    scores: bool = False,
    format: Format = "text",
    alignments: Annotated[bool, arg(help_behavior_hint="")] = False,
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
    if token_scores and format != "json":
        raise ValueError(f"scores of tokens need --format json, but it is {format}; add --format json")
    if interactive:
        check_interactive({"FILE": files, "--output": division.output})
    from transduce.run import load_run
    from transduce.tasks.load import own_decoding

    decoding = with_options(own_decoding(first := each_run(run)[0], load_run(first)), search, forbid)
    check_lm(lm, decoding)
    job = Translation(
        run=run,
        lm=lm,
        machine=machine,
        decoding=decoding,
        scores=scores,
        format=format,
        alignments=alignments,
        token_scores=token_scores,
        prefix=prefix,
        require=require,
    )
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
    format: Format = "text"
    alignments: bool = False
    token_scores: bool = False
    prefix: bool = False
    """Whether a line has what its translation begins with behind a tab."""
    require: bool = False
    """Whether a line has what its translation must hold behind tabs."""

    def load(self) -> Work:
        """Load the translator."""
        from transduce.tasks.translate import Translator

        return partial(self._rows, self.machine.load(Translator, self.run, self.lm))

    def _rows(self, translator: "Translator", start: int, items: list[str | ValueError], progress: Progress) -> Rows:
        lines = [item if isinstance(item, str) else "" for item in items]
        told: dict[str, Any] = {"first_line": start + 1, "progress": lambda n: progress(n, 0)}
        told |= {"token_scores": self.token_scores, "alignments": self.alignments}
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
        write = self._json if self.format == "json" else self._text
        rows = (write(line, outputs) for line, outputs in zip(lines, found, strict=True))
        return Rows("".join(rows), tuple(str(item) for item in items if isinstance(item, ValueError)))

    def _text(self, line: str, outputs: "list[Output]") -> str:
        return "".join(
            f"{each.score:.4f}\t" * self.scores + each.text + f"\t{each.alignment or ''}" * self.alignments + "\n"
            for each in outputs
        )

    def _json(self, line: str, outputs: "list[Output]") -> str:
        plain = {"source": line, "outputs": [plain_output(each) for each in outputs]}
        return json.dumps(plain, ensure_ascii=False) + "\n"
