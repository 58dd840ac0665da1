"""`transduce generate RUN` and `transduce score perplexity RUN FILE`: what a decoder alone is asked."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from transduce.cli.common import (
    STDIN,
    Count,
    Forbid,
    Machine,
    OptionalFile,
    Run,
    Runs,
    checked_lines,
    chunks,
    each_of,
    local,
    read_side,
    search_options,
    with_options,
)
from transduce.cli.interactive import check_interactive, interact
from transduce.cli.jobs import Division, Job, carry_out
from transduce.cli.output import open_output
from transduce.cli.workers import Progress, Rows, Work
from transduce.data.text.lines import lines_fingerprint
from transduce.errors import InputError
from transduce.tasks.config import LONGEST, GenerationConfig
from transduce.tasks.formats import plain_output

if TYPE_CHECKING:
    from transduce.tasks.generate import Generator
    from transduce.tasks.perplexity import Perplexity, StridedWindows
else:  # torch takes seconds to import, and --help does without
    Generator = Perplexity = StridedWindows = Any

RULE = "-" * 20
"""Between two texts: they may hold line breaks."""

Format = Literal["text", "json"]

CHUNK = 1000
"""Prompts answered, and then written, at a time."""


Options = search_options(GenerationConfig)


def generate(
    run: Positional[Runs],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILE ...]", help_behavior_hint="")]] = (),
    *,
    prompt: Annotated[tuple[str, ...] | None, arg(metavar="STR [STR ...]", help_behavior_hint="")] = None,
    stream: Annotated[bool, arg(help_behavior_hint="")] = False,
    interactive: Annotated[bool, arg(help_behavior_hint="")] = False,
    format: Format = "text",
    token_scores: Annotated[bool, arg(help_behavior_hint="")] = False,
    output: OptionalFile = None,
    forbid: Forbid = None,
    generation: Annotated[Any, arg(constructor=Options)],
    machine: Machine,
) -> None:
    """Go on from prompts: each is printed with what follows it, a rule between any two.

    The same seed gives the same texts, whatever the batch. Of an imported model, its own files may say other defaults.

    Args:
        files: Prompts, one a line, plain or .gz; - is standard input, as is nothing at all. A blank line begins from
            nothing.
        prompt: Texts to go on from, instead of files; what a text shall begin with is its prompt. "" begins from nothing.
        stream: Print text as it comes, one text after the other.
        interactive: Ask for a prompt, go on from it at once, and ask again; Ctrl-D ends.
        format: text: prompt and text, a rule between any two. json: an object per text and line.
        token_scores: Put the log-probability of every token, and a confidence of every word, into json, to see where the
            model was unsure. The model's own, without temperature.
        output: Where texts go; standard output if not given.
    """
    if token_scores and (format != "json" or stream or interactive):
        raise InputError(
            "scores of tokens need --format json and whole texts; add it, and leave out --stream and --interactive"
        )
    if prompt == ():
        raise InputError('--prompt takes texts, but nothing follows it; --prompt "" begins from nothing')
    if files and prompt:
        raise InputError("prompts come from files or from --prompt, but both are given; leave one out")
    if interactive:
        check_interactive({"FILE": files, "--prompt": prompt, "--output": output})
    from transduce.tasks.generate import Generator

    with_options(GenerationConfig(max_length=LONGEST), generation)  # what no run can do is told before one is loaded
    generator = machine.load(Generator, local(run))
    config = generator.decoding = with_options(generator.decoding, generation, forbid)
    if interactive:
        return interact(partial(_answer, generator, config, format))
    prompts: Iterable[str] = prompt or checked_lines(*files)
    size = 1 if stream else CHUNK
    if not prompt and not files:
        prompts, size = each_of(STDIN), 1 if sys.stdin.isatty() else size
    prompts = _encodable(generator, prompts)
    with open_output(output, files) as out:
        whole = format == "json" and not stream
        texts = _texts(generator, prompts, config, size, stream=stream)
        objects = _objects(generator, prompts, config, size, token_scores=token_scores)
        for part in objects if whole else _told(texts, format):
            out.write(part)
            out.flush()


def _encodable(generator: Generator, prompts: Iterable[str]) -> Iterator[str]:
    """The prompts as they come.

    Raises:
        InputError: the tokenizer cannot read one of them, whose number the message has.
    """
    for number, prompt in enumerate(prompts, start=1):
        try:
            generator.tokenizer.encode([prompt])
        except InputError as error:
            raise InputError(f"prompt {number}: {error}") from error
        yield prompt


def _answer(generator: Generator, config: GenerationConfig, format: Format, line: str, number: int) -> None:
    """Print what follows one prompt, as it comes where that can be."""
    generator.tokenizer.encode([line])  # what cannot be read is told before anything is printed
    for part in _told(_texts(generator, [line], config, 1, stream=True, first_prompt=number), format):
        print(part, end="", flush=True)


def _told(texts: Iterable[tuple[str, Iterable[str]]], format: Format) -> Iterator[str]:
    """What is written of prompts and texts, in parts as they come."""
    for number, (prompt, parts) in enumerate(texts):
        if format == "json":
            yield json.dumps({"prompt": prompt, "text": "".join(parts)}, ensure_ascii=False) + "\n"
        else:
            yield f"{RULE}\n" * (number > 0) + prompt
            yield from parts
            yield "\n"


def _objects(
    generator: Generator, prompts: Iterable[str], config: GenerationConfig, size: int, *, token_scores: bool
) -> Iterator[str]:
    """A line of JSON for every text that follows a prompt."""
    for done, some in chunks(prompts, size):
        found = generator.generate(some, config, first_prompt=done, token_scores=token_scores)
        for asked, outputs in zip(some, found, strict=True):
            for output in outputs:
                yield json.dumps({"prompt": asked, **plain_output(output)}, ensure_ascii=False) + "\n"


def _texts(
    generator: Generator,
    prompts: Iterable[str],
    config: GenerationConfig,
    size: int,
    *,
    stream: bool,
    first_prompt: int = 0,
) -> Iterator[tuple[str, Iterable[str]]]:
    """Every prompt with a text that follows it: in parts as they come if `stream`, else in one piece."""
    for done, some in chunks(prompts, size, first_prompt):
        if stream and config.beam_size == 1:
            for k in range(config.n):
                yield some[0], generator.stream(some[0], config, prompt_number=done, text_number=k)
        else:
            for asked, found in zip(some, generator.generate(some, config, first_prompt=done), strict=True):
                yield from ((asked, [output.text]) for output in found)


def score_perplexity(
    run: Positional[Run],
    file: Positional[Annotated[Path, arg(metavar="FILE", help="Text: a file, plain or .gz, or - for stdin.")]],
    *,
    window: Count = None,
    stride: Count = None,
    batch_tokens: int = 4096,
    machine: Machine,
    division: Division,
) -> None:
    """Perplexity per token, nats per token and bits per byte of a text, lower is better.

    Args:
        window: Tokens that a prediction can look back on at most; the model's max_positions if not given.
        stride: Tokens between the beginnings of two windows; half a window if not given.
        batch_tokens: Positions in one go: speed and memory, never the figures.
    """
    from transduce.run import load_run
    from transduce.tasks.generate import Generator
    from transduce.tasks.perplexity import strided_windows

    text = "".join(f"{line}\n" for line in read_side(file))
    found = load_run(run := local(run))
    if found.model.encoder is not None or found.target_tokenizer is None:
        machine.load(Generator, run)  # it says what is wrong
    assert found.target_tokenizer is not None
    batches, figures = strided_windows(
        found.model, found.target_tokenizer, text, window=window, stride=stride, batch_tokens=batch_tokens
    )
    digest = lines_fingerprint([text])
    job = Measurement(run=run, machine=machine, figures=figures, text=digest, batch_tokens=batch_tokens)
    carry_out(job, batches, division, inputs=[file])


@dataclass(frozen=True, kw_only=True)
class Measurement(Job):
    """Batches of windows to predict; a row has the nats of one, in digits that lose nothing."""

    UNIT = "batch"
    CHUNK = 16

    figures: Perplexity
    """Whose nats are to be found."""
    text: str
    """A hash of it."""
    batch_tokens: int

    def name(self, item: object) -> str:
        """Nothing: text and sizes say what the batches are."""
        return ""

    def load(self) -> Work:
        """Load the model."""
        from transduce.tasks.generate import Generator

        return partial(self._rows, self.machine.load(Generator, self.run))

    def _rows(self, generator: Generator, start: int, batches: list[StridedWindows], progress: Progress) -> Rows:
        rows = []
        for batch in batches:
            rows.append(f"{batch.nats(generator.model)!r}\n")
            progress(1, 0)
        return Rows("".join(rows))

    def written(self, rows: Iterable[str]) -> Iterable[str]:
        """The figures of the whole."""
        return [f"{self.figures.with_nats(map(float, ''.join(rows).split()))}\n"]
