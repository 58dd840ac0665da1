"""`transduce score likelihood` and `score perplexity`: score texts with a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from transduce.arguments import Group
from transduce.cli.common import (
    Count,
    Machine,
    Run,
    Runs,
    check_stdin,
    checked,
    each_run,
    lines_or_errors,
    local,
    read_side,
    side_name,
)
from transduce.cli.jobs import Job, Progress, Rows
from transduce.cli.large_files import OutputOptions, carry_out
from transduce.cli.recordings import version_of
from transduce.data.manifest import manifest_audio
from transduce.data.sound_lists import is_list
from transduce.errors import InputError
from transduce.tasks.formats import json_line, plain_tokens

if TYPE_CHECKING:
    from transduce.tasks.outputs import TokenScores


@dataclass(frozen=True, kw_only=True)
class Languages:
    """Languages of the texts, for a multilingual model."""

    source_language: str = ""
    """The language of SRC: en, eng_Latn ..."""
    target_language: str = ""
    """The language of the given outputs."""

    @property
    def settings(self) -> dict[str, str]:
        """The given languages, as settings of a search."""
        return {name: code for name, code in vars(self).items() if code}


def score_likelihood(
    run: Runs,
    files: Positional[
        Annotated[tuple[Path, ...], arg(metavar="[SRC] HYP", help_behavior_hint="(required)")]
    ],
    *,
    format: Literal["text", "json"] = "text",
    languages: Group[Languages],
    machine: Group[Machine],
    destination: Group[OutputOptions],
) -> None:
    """Write the log-probability of each text by a run, and its number of tokens.

    The logarithm is natural. Log-probabilities can be used to filter parallel text.

    A text that cannot be scored is named on stderr and gives a blank line, in json an error; the
    exit code is then 1.

    Args:
        files: The sources, and the texts to score, line by line: files, plain or .gz, or -. For
            sound, SRC is a manifest (.tsv, .csv, .jsonl), or a list of sound files, one a line. A
            language model takes HYP alone.
        format: text: log-probability and number of tokens, a tab between. json: an object per line,
            with the log-probability of every token.
    """
    from transduce.run import load_run

    check_stdin(files)
    run = local(run)
    contents = load_run(each_run(run)[0])
    stacks = [name for name in ("encoder", "decoder") if getattr(contents.model, name)]
    if "decoder" not in stacks or len(files) != len(stacks):
        raise InputError(
            "likelihood takes SRC and HYP for a run with encoder and decoder, or HYP alone for a "
            f"decoder, but got {len(files)} files, and {run} has {' and '.join(stacks)}; name "
            "other files, or another run"
        )
    if languages.settings and "encoder" not in stacks:
        raise InputError(
            f"languages are for a run with an encoder, but {run} is a language model, and got "
            f"{languages.settings}; leave them out"
        )
    job = Likelihood(
        run=run,
        machine=machine,
        is_speech=contents.feature_extractor is not None,
        languages=languages.settings,
        format=format,
    )
    carry_out(job, job.items(*files), destination, inputs=files)


def score_perplexity(
    run: Run,
    file: Positional[
        Annotated[Path, arg(metavar="FILE", help="Text: a file, plain or .gz, or - for stdin.")]
    ],
    *,
    window: Count = None,
    stride: Count = None,
    batch_tokens: int = 4096,
    machine: Group[Machine],
) -> None:
    """Perplexity per token, nats per token and bits per byte of a text, lower is better.

    Args:
        window: Maximum number of tokens of context; by default the model's max_positions.
        stride: Tokens from the start of one window to the next; by default half a window.
        batch_tokens: Positions per batch; changes speed and memory, not the result.
    """
    from transduce.tasks.generate import Generator
    from transduce.tasks.perplexity import measure_perplexity

    text = "".join(f"{line}\n" for line in read_side(file))
    generator = machine.load(Generator, run)
    if (n := len(generator.engines)) > 1:
        raise InputError(f"perplexity is measured for one run, but {run} are {n}; name one of them")
    perplexity = measure_perplexity(
        generator.engine,
        generator.tokenizer,
        text,
        window=window,
        stride=stride,
        batch_tokens=batch_tokens,
    )
    print(perplexity)


Item = tuple[Any, str | InputError]
"""An input (None for a language model) and its text; an InputError if a line is not UTF-8."""


@dataclass(frozen=True, kw_only=True)
class Likelihood(Job):
    """Scores given texts, one for each input."""

    CHUNK = 2000
    UNIT = "line"
    UNUSABLE = "lines could not be scored"

    is_speech: bool
    languages: dict[str, str]
    format: Literal["text", "json"]

    def items(self, *files: Path) -> list[Item]:
        """Every input of the first file with its text in the last one.

        Raises:
            InputError: there are not as many inputs as texts.
        """
        source = files[0]
        lines = list(lines_or_errors(files[-1]))
        if len(files) == 1:
            return [(None, line) for line in lines]
        is_manifest = self.is_speech and is_list(source)
        inputs = list(manifest_audio(source) if is_manifest else lines_or_errors(source))
        if len(inputs) != len(lines):
            raise InputError(
                f"every input has one given text, but there are {len(inputs)} inputs in "
                f"{side_name(source)} and {len(lines)} lines in {side_name(files[-1])}"
            )
        return list(zip(inputs, lines, strict=True))

    def cost(self, item: Item) -> int:
        """1 for a text; 20 for a sound, whose frames need the memory of twenty texts."""
        return 20 if self.is_speech else 1

    def name(self, item: Item) -> str:
        """The input, with the version of a sound file, and its text."""
        return f"{item} {version_of(str(item[0])) if self.is_speech else ''}"

    def load(self) -> Any:
        """Load the run, and check it by scoring an empty list of texts."""
        task = self.machine.load(object, self.run)
        self._scored(task, [])
        return task

    def rows(self, task: Any, start: int, items: list[Item], progress: Progress) -> Rows:
        results = self._scores_or_errors(task, items)
        progress(len(items), 0)
        return Rows(
            "".join(map(self._row, results)),
            tuple(
                f"{self.UNIT} {i}: {each}"
                for i, each in enumerate(results, start + 1)
                if isinstance(each, InputError)
            ),
        )

    def _scores_or_errors(self, task: Any, items: list[Item]) -> "list[TokenScores | InputError]":
        """The score of every text, or its error. If a text has an error, each half of the list is
        tried separately."""
        try:
            return [*self._scored(task, items)]
        except InputError as error:
            if len(items) < 2:
                return [error] * len(items)
            half = len(items) // 2
            return self._scores_or_errors(task, items[:half]) + self._scores_or_errors(
                task, items[half:]
            )

    def _scored(self, task: Any, items: list[Item]) -> "list[TokenScores]":
        from transduce.tasks.generate import Generator

        texts = [checked(text) for _, text in items]
        if isinstance(task, Generator):
            return task.score(texts)
        inputs = [checked(item) for item, _ in items]
        return [*task.score(inputs, texts, **self.languages)]

    def _row(self, result: "TokenScores | InputError") -> str:
        is_text = self.format == "text"
        if isinstance(result, InputError):
            if is_text:
                return "\n"
            return json_line({"log_prob": None, "tokens": [], "error": str(result)})
        if is_text:
            return f"{result.log_prob:.4f}\t{len(result.tokens)}\n"
        return json_line({"log_prob": result.log_prob, "tokens": plain_tokens(result)})
