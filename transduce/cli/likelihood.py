"""`transduce score likelihood`, `score perplexity` and `rerank`: scores of texts by a run."""

import json
import os
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

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
from transduce.cli.large_files import Division, carry_out
from transduce.data.manifest import manifest_audio
from transduce.errors import InputError
from transduce.tasks.formats import plain_tokens

if TYPE_CHECKING:
    from transduce.run import Run as Contents
    from transduce.tasks.outputs import Output, TokenScores


@dataclass(frozen=True, kw_only=True)
class Languages:
    """Languages of the texts, in a model of many languages."""

    source_language: str = ""
    """The language of SRC: en, eng_Latn ..."""
    target_language: str = ""
    """The language of the given outputs."""

    def settings(self, *, backwards: bool = False) -> dict[str, str]:
        """Those that are named, as settings of a search."""
        names = ["source_language", "target_language"]
        if backwards:
            names.reverse()
        codes = (self.source_language, self.target_language)
        return {name: code for name, code in zip(names, codes, strict=True) if code}


@dataclass(frozen=True, kw_only=True)
class Weighing:
    """How lists are reranked."""

    weight: float = 1.0
    """Weight of the run's score."""
    own_weight: float = 1.0
    """Weight of the score in the list."""
    backwards: bool = False
    """RUN translates the other way: how likely is SRC for each?"""
    all: bool = False
    """Write whole lists, best first, as rerank can read them."""


def score_likelihood(
    run: Runs,
    files: Positional[
        Annotated[tuple[Path, ...], arg(metavar="[SRC] HYP", help_behavior_hint="(required)")]
    ],
    *,
    format: Literal["text", "json"] = "text",
    languages: Group[Languages],
    machine: Group[Machine],
    division: Group[Division],
) -> None:
    """Write the log-probability of each text by a run, and its number of tokens.

    It is natural, to filter pairs by.

    A text that cannot be scored is named on stderr and gives a blank line, in json an error; the
    exit code is then 1.

    Args:
        files: What the texts come from, and the texts, line by line: files, plain or .gz, or -. Of
            sound, SRC is a manifest (.tsv), or has names of files, one a line. A language model
            takes HYP alone.
        format: text: log-probability, a tab, number of tokens. json: an object per line, with the
            log-probability of every token.
    """
    from transduce.run import load_run

    check_stdin(files)
    if len(files) not in (1, 2):
        raise InputError(
            f"likelihood takes SRC and HYP, or of a language model HYP alone, but got {len(files)} "
            "files"
        )
    run = local(run)
    contents = load_run(each_run(run)[0])
    if len(files) == 1 and contents.model.encoder is not None:
        raise InputError(
            f"likelihood takes SRC and HYP of a run with an encoder, as {run} is, but got one "
            "file; name both"
        )
    if len(files) == 2:
        _check_reads_inputs(contents, run)
    job = Likelihood(
        run=run,
        machine=machine,
        is_speech=contents.feature_extractor is not None,
        languages=languages.settings(),
        format=format,
    )
    carry_out(job, job.items(*files), division, inputs=files)


def rerank(
    run: Runs,
    source: Positional[Annotated[Path, arg(metavar="SRC")]],
    lists: Positional[Annotated[Path, arg(metavar="NBEST")]],
    *,
    weighing: Group[Weighing],
    languages: Group[Languages],
    machine: Group[Machine],
    division: Group[Division],
) -> None:
    """Choose among n outputs of every input by the scores of another run.

    It is for a run that is too slow to search with.

    The score of an output is --own-weight times the score that the list has, plus --weight times
    the run's (its log-probability over its length penalty). What cannot be scored is named on
    stderr and gives blank lines; the exit code is then 1.

    Args:
        source: What was translated; sound by names or manifest.
        lists: As translate --n-best N --scores writes it: score, tab, text; N lines for each line
            of SRC.
    """
    from transduce.run import load_run

    check_stdin([source, lists])
    run = local(run)
    contents = load_run(each_run(run)[0])
    _check_reads_inputs(contents, run)
    job = Reranking(
        run=run,
        machine=machine,
        is_speech=contents.feature_extractor is not None,
        languages=languages.settings(backwards=weighing.backwards),
        weighing=weighing,
    )
    items = job.items(source, lists)
    for _, texts in items[:1]:  # a file of another kind has no line that can be used
        _scored(checked(texts[0]))
    carry_out(job, items, division, inputs=[source, lists])


def _check_reads_inputs(contents: "Contents", run: Path) -> None:
    """Raise InputError unless a run has an encoder for inputs and a decoder for their texts."""
    for name in ("encoder", "decoder"):
        if getattr(contents.model, name) is None:
            raise InputError(
                "a text is scored with its input by a run with encoder and decoder, but "
                f"{run} has no {name}; name another run (score likelihood scores HYP alone by a "
                "language model)"
            )


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
        window: Tokens that a prediction can look back on at most; by default the model's
            max_positions.
        stride: Tokens between the beginnings of two windows; by default half a window.
        batch_tokens: Positions in one go: speed and memory, never the figures.
    """
    from transduce.tasks.generate import Generator
    from transduce.tasks.outputs import measure_perplexity

    text = "".join(f"{line}\n" for line in read_side(file))
    generator = machine.load(Generator, run)
    perplexity = measure_perplexity(
        generator.model,
        generator.tokenizer,
        text,
        window=window,
        stride=stride,
        batch_tokens=batch_tokens,
    )
    print(perplexity)


Item = tuple[Any, list[str | InputError]]
"""An input, None for a language model, and its given texts; an error stands for a line that is not
UTF-8."""


@dataclass(frozen=True, kw_only=True)
class Scoring(Job):
    """Given texts to score."""

    CHUNK = 2000
    TEXTS: ClassVar[str]
    """What every input has."""

    is_speech: bool
    languages: dict[str, str]

    def items(self, *files: Path) -> list[Item]:
        """Every input of the first file with its texts in the last one.

        Raises:
            InputError: the inputs have not equally many texts, or likelihood more than one.
        """
        source = files[0]
        lines = list(lines_or_errors(files[-1]))
        if len(files) == 1:
            return [(None, [line]) for line in lines]
        is_manifest = self.is_speech and source.suffix == ".tsv"
        inputs = list(manifest_audio(source) if is_manifest else lines_or_errors(source))
        n, rest = divmod(len(lines), len(inputs) or 1)
        if rest or (inputs and not n) or (n > 1 and isinstance(self, Likelihood)):
            raise InputError(
                f"every input has {self.TEXTS}, but there are {len(inputs)} inputs in "
                f"{side_name(source)} and {len(lines)} lines in {side_name(files[-1])}"
            )
        return [(item, lines[i * n : i * n + n]) for i, item in enumerate(inputs)]

    def cost(self, item: Item) -> int:
        """Texts; the frames of a sound need the memory of twenty."""
        return len(item[1]) * (20 if self.is_speech else 1)

    def name(self, item: Item) -> str:
        """The input, with the length of a sound file, and its texts."""
        size = os.path.getsize(item[0]) if self.is_speech and os.path.isfile(item[0]) else ""
        return f"{item} {size}"

    def load(self) -> Any:
        """Load the run, and check it with no text at all."""
        task = self.machine.load(object, self.run)
        self.scored(task, [])
        return task

    def rows(self, task: Any, start: int, items: list[Item], progress: Progress) -> Rows:
        results = self.each(task, items)
        progress(len(items), 0)
        rows = (self.row(each, len(texts)) for each, (_, texts) in zip(results, items, strict=True))
        return Rows(
            "".join(rows),
            tuple(
                f"{self.UNIT} {i}: {each}"
                for i, each in enumerate(results, start + 1)
                if isinstance(each, InputError)
            ),
        )

    def each(self, task: Any, items: list[Item]) -> list[Any]:
        """The result of every item, or its error: a list with an error is halved and tried
        again."""
        try:
            return list(self.scored(task, items))
        except InputError as error:
            if len(items) < 2:
                return [error] * len(items)
            half = len(items) // 2
            return self.each(task, items[:half]) + self.each(task, items[half:])

    @abstractmethod
    def scored(self, task: Any, items: list[Item]) -> Iterable[Any]:
        """The result of every item.

        Raises:
            InputError: one of them cannot be scored.
        """

    @abstractmethod
    def row(self, result: Any, n: int) -> str:
        """What is written of an item of n texts, or of its error."""


@dataclass(frozen=True, kw_only=True)
class Likelihood(Scoring):
    """Given texts, one for each input."""

    UNIT = "line"
    UNUSABLE = "lines could not be scored"
    TEXTS = "one given text"

    format: Literal["text", "json"]

    def scored(self, task: Any, items: list[Item]) -> Iterable["TokenScores"]:
        from transduce.tasks.generate import Generator

        texts = [checked(text) for _, (text,) in items]
        if isinstance(task, Generator):
            return task.score(texts)
        inputs = [checked(item) for item, _ in items]
        scores: list[TokenScores] = task.score(inputs, texts, **self.languages)
        return scores

    def row(self, result: "TokenScores | InputError", n: int) -> str:
        plain: dict[str, object]
        if isinstance(result, InputError):
            if self.format == "text":
                return "\n"
            plain = {"log_prob": None, "tokens": [], "error": str(result)}
        elif self.format == "text":
            return f"{result.log_prob:.4f}\t{len(result.tokens)}\n"
        else:
            plain = {"log_prob": result.log_prob, "tokens": plain_tokens(result)}
        return json.dumps(plain, ensure_ascii=False) + "\n"


@dataclass(frozen=True, kw_only=True)
class Reranking(Scoring):
    """Lists of outputs to bring into another order, the best first."""

    UNIT = "list"
    UNUSABLE = "lists could not be reranked"
    TEXTS = "equally many texts, as translate --n-best N --scores writes them"

    weighing: Weighing

    def scored(self, task: Any, items: list[Item]) -> Iterable["list[Output]"]:
        from transduce.tasks.outputs import Output

        inputs = [checked(item) for item, _ in items]
        rows = [[_scored(checked(text)) for text in texts] for _, texts in items]
        lists = [[Output(text, score=score) for score, text in row] for row in rows]
        weighing = self.weighing
        reranked: list[list[Output]] = task.rerank(
            inputs,
            lists,
            weight=weighing.weight,
            own_weight=weighing.own_weight,
            backwards=weighing.backwards,
            **self.languages,
        )
        return reranked

    def row(self, result: "list[Output] | InputError", n: int) -> str:
        if isinstance(result, InputError):
            return "\n" * (n if self.weighing.all else 1)
        if not self.weighing.all:
            return f"{result[0].text}\n"
        return "".join(f"{output.score:.4f}\t{output.text}\n" for output in result)


def _scored(line: str) -> tuple[float, str]:
    """The score and the text of a line of a list.

    Raises:
        InputError: there is no score.
    """
    score, tab, text = line.partition("\t")
    try:
        return float(score if tab else "no tab"), text
    except ValueError as error:
        raise InputError(
            "a line of a list is a score, a tab and a text, as translate --n-best 5 --scores "
            f"writes it, but it is {line!r:.60}"
        ) from error
