"""`transduce generate` and `transduce score perplexity`: texts and scores of language models."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from tyro.conf import Positional, arg

from transduce.arguments import Group, Overrides
from transduce.cli.common import (
    STDIN,
    Count,
    Files,
    Lines,
    Machine,
    OptionalFile,
    Run,
    Runs,
    checked,
    checked_lines,
    chunks,
    each_run,
    lines_or_errors,
    local,
    overridden,
    read_side,
)
from transduce.cli.interactive import check_interactive, interact
from transduce.cli.jobs import Division, Job, carry_out, stream
from transduce.cli.output import open_output
from transduce.cli.workers import Progress, Rows
from transduce.config import Common, from_dict
from transduce.data.text.lines import lines_fingerprint
from transduce.errors import InputError
from transduce.tasks.config import LONGEST, GenerationConfig
from transduce.tasks.formats import plain_output

if TYPE_CHECKING:
    from transduce.tasks.generate import Generator
    from transduce.tasks.perplexity import Perplexity, StridedWindows
else:  # torch takes seconds to import, and --help does without
    Generator = Perplexity = StridedWindows = Any

RULE = "-" * 20 + "\n"
"""Between two texts: they may hold line breaks."""


class GenerationSettings(Overrides):
    """Settings of a generation."""

    CONFIG = GenerationConfig
    WITHOUT = ("forbid",)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to go on, where the run's own way does not suit."""

    forbid: OptionalFile = None
    """Phrases, one a line, that no output holds, where words are wrong or unwanted; a space at
    either end of one is the end of a word."""
    settings: Group[GenerationSettings]


@dataclass(frozen=True, kw_only=True)
class GenerationInput:
    """Prompts that are in no file."""

    prompt: Common[Annotated[tuple[str, ...] | None, arg(metavar="STR [STR ...]")]] = None
    """Texts to go on from, instead of files; what a text shall begin with is its prompt. "" begins
    from nothing."""
    interactive: Common[bool] = False
    """Ask for a prompt, go on from it at once, and ask again; Ctrl-D ends."""

    def __post_init__(self) -> None:
        if self.prompt == ():
            raise InputError(
                '--prompt takes texts, but nothing follows it; --prompt "" begins from nothing'
            )


@dataclass(frozen=True, kw_only=True)
class GenerationOutput:
    """What is written of texts."""

    stream: Common[bool] = False
    """Print text as it comes, one text after the other."""
    format: Common[Literal["text", "json"]] = "text"
    """text: prompt and text, a rule between any two. json: an object per text and line."""
    token_scores: bool = False
    """Put the log-probability of every token, and a confidence of every word, into json, to see
    where the model was unsure. The model's own, without temperature."""


def generate(
    run: Runs,
    files: Files = (),
    *,
    given: Group[GenerationInput],
    output: Group[GenerationOutput],
    generation: Group[GenerationOptions],
    machine: Group[Machine],
    division: Group[Division],
) -> None:
    """Go on from prompts: each is printed with its text, a rule between any two.

    The same seed gives the same texts, whatever the batch. Of an imported model, its own files may
    say other defaults.

    Args:
        files: Prompts, one a line, plain or .gz; - is standard input, as is nothing at all. A blank
            line begins from nothing.
    """
    if output.token_scores and (output.format != "json" or output.stream or given.interactive):
        raise InputError(
            "scores of tokens need --format json and whole texts; add it, and leave out --stream "
            "and --interactive"
        )
    if files and given.prompt:
        raise InputError(
            "prompts come from files or from --prompt, but both are given; leave one out"
        )
    if given.interactive:
        check_interactive({"FILE": files, "--prompt": given.prompt, "--output": division.output})
    # what no run can do is refused before one is loaded
    overridden(GenerationConfig(max_length=LONGEST), generation.settings, None)
    run = local(run)
    decoding = overridden(_own_decoding(run, machine), generation.settings, generation.forbid)
    job = Generation(run=run, machine=machine, decoding=decoding, output=output)
    if given.interactive or output.stream:
        generator: Generator = job.loaded()
        if given.interactive:
            return interact(
                lambda prompt, number: job.print_texts(generator, [prompt], sys.stdout, number)
            )
        with open_output(division.output, files) as out:
            prompts = given.prompt or (
                checked_lines(*files) if files else map(checked, lines_or_errors(STDIN))
            )
            return job.print_texts(generator, prompts, out)
    if given.prompt or files or division.output or division.share():
        items = given.prompt or Lines(*files or [STDIN])
        for item in items:
            checked(item)  # refused before anything is written
        return carry_out(job, items, division, inputs=files or [STDIN])
    lines = chunks(map(checked, lines_or_errors(STDIN)), 1 if sys.stdin.isatty() else job.CHUNK)
    stream(job, lines, None, n_workers=division.workers or 1, quiet=True)


def _own_decoding(runs: Path, machine: Machine) -> GenerationConfig:
    """The way in which the first run generates.

    Raises:
        InputError: it is no language model, or its configuration is not whole.
    """
    from transduce.run import CONFIG, load_run
    from transduce.tasks.generate import Generator

    first = each_run(runs)[0]
    run = load_run(first)
    if run.model.encoder is not None:
        machine.load(Generator, runs)  # raises with the command to use
    return from_dict(
        GenerationConfig, run.experiment.get("decoding", {}), f"decoding in {first / CONFIG}"
    )


@dataclass(frozen=True, kw_only=True)
class Generation(Job):
    """Prompts to go on from."""

    TASK = "transduce.tasks.generate:Generator"
    UNIT = "prompt"
    CHUNK = 1000

    decoding: GenerationConfig
    output: GenerationOutput

    def loaded(self, task: str = "") -> Generator:
        """Load the run; a flag goes before the run's own setting, also with a default value."""
        generator: Generator = super().loaded(task)
        generator.decoding = self.decoding
        return generator

    def rows(
        self, generator: Generator, start: int, items: list[str | InputError], progress: Progress
    ) -> Rows:
        """Go on from prompts."""
        prompts = [_encodable(generator, checked(item), start + i) for i, item in enumerate(items)]
        texts = generator.generate(
            prompts, self.decoding, first_prompt=start, token_scores=self.output.token_scores
        )
        progress(len(prompts), 0)
        pairs = [
            (prompt, output)
            for prompt, outputs in zip(prompts, texts, strict=True)
            for output in outputs
        ]
        if self.output.format == "json":
            rows = [{"prompt": prompt, **plain_output(output)} for prompt, output in pairs]
            return Rows("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        rule = RULE if start and pairs else ""
        return Rows(rule + RULE.join(f"{prompt}{output.text}\n" for prompt, output in pairs))

    def print_texts(
        self, generator: Generator, prompts: Iterable[str], out: TextIO, first_prompt: int = 0
    ) -> None:
        """Write what follows each prompt, as it comes where that can be."""
        rule = ""
        for number, prompt in enumerate(prompts, start=first_prompt):
            for parts in self._streams(generator, _encodable(generator, prompt, number), number):
                pieces = chain([rule, prompt], parts, ["\n"])
                if self.output.format == "json":
                    pieces = chain(
                        [
                            json.dumps(
                                {"prompt": prompt, "text": "".join(parts)}, ensure_ascii=False
                            ),
                            "\n",
                        ]
                    )
                for piece in filter(None, pieces):
                    out.write(piece)
                    out.flush()
                rule = RULE

    def _streams(self, generator: Generator, prompt: str, number: int) -> Iterator[Iterable[str]]:
        """The texts that follow a prompt, each in parts."""
        if self.decoding.beam_size == 1:
            for k in range(self.decoding.n):
                yield generator.stream(prompt, self.decoding, prompt_number=number, text_number=k)
        else:
            (outputs,) = generator.generate([prompt], self.decoding, first_prompt=number)
            yield from ([output.text] for output in outputs)


def _encodable(generator: Generator, prompt: str, number: int) -> str:
    """Return a prompt that the tokenizer can read, or raise InputError with its number."""
    try:
        generator.tokenizer.encode([prompt])
    except InputError as error:
        raise InputError(f"prompt {number + 1}: {error}") from error
    return prompt


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
    division: Group[Division],
) -> None:
    """Perplexity per token, nats per token and bits per byte of a text, lower is better.

    Args:
        window: Tokens that a prediction can look back on at most; the model's max_positions if not
            given.
        stride: Tokens between the beginnings of two windows; half a window if not given.
        batch_tokens: Positions in one go: speed and memory, never the figures.
    """
    from transduce.run import load_run
    from transduce.tasks.generate import Generator
    from transduce.tasks.perplexity import strided_windows

    text = "".join(f"{line}\n" for line in read_side(file))
    run = local(run)
    contents = load_run(run)
    if contents.model.encoder is not None or contents.target_tokenizer is None:
        machine.load(Generator, run)  # raises
    assert contents.target_tokenizer is not None
    batches, figures = strided_windows(
        contents.model,
        contents.target_tokenizer,
        text,
        window=window,
        stride=stride,
        batch_tokens=batch_tokens,
    )
    digest = lines_fingerprint([text])
    job = Measurement(
        run=run, machine=machine, figures=figures, text=digest, batch_tokens=batch_tokens
    )
    carry_out(job, batches, division, inputs=[file])


@dataclass(frozen=True, kw_only=True)
class Measurement(Job):
    """Batches of windows to predict; a row has the nats of one, in digits that lose nothing."""

    TASK = "transduce.tasks.generate:Generator"
    UNIT = "batch"
    CHUNK = 16

    figures: Perplexity
    """The figures without the nats, which this job measures."""
    text: str
    """A hash of the text."""
    batch_tokens: int

    def name(self, item: object) -> str:
        """Empty: text and sizes decide the batches."""
        return ""

    def rows(
        self, generator: Generator, start: int, batches: list[StridedWindows], progress: Progress
    ) -> Rows:
        """Sum the nats of every batch."""
        rows = []
        for batch in batches:
            rows.append(f"{batch.nats(generator.model)!r}\n")
            progress(1, 0)
        return Rows("".join(rows))

    def written(self, rows: Iterable[str]) -> Iterable[str]:
        """The figures of the whole."""
        return [f"{self.figures.with_nats(map(float, ''.join(rows).split()))}\n"]
