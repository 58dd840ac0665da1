"""`transduce generate`: continue prompts with a language model."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import UseAppendAction, arg

from transduce.arguments import Group, Overrides
from transduce.cli.common import (
    STDIN,
    Files,
    Lines,
    Machine,
    OptionalFile,
    Runs,
    check_interactive,
    check_stdin,
    check_token_scores,
    checked,
    forbidden,
    interact,
    lines_or_errors,
    local,
)
from transduce.cli.jobs import Progress, Rows, SearchJob
from transduce.cli.large_files import OutputOptions, carry_out
from transduce.config import Common, Json
from transduce.errors import InputError, errors_of
from transduce.tasks.config import LONGEST, GenerationConfig
from transduce.tasks.formats import json_line, plain_output

if TYPE_CHECKING:
    from transduce.tasks.generate import Generator

RULE = "-" * 20 + "\n"
"""Separates two texts, which may contain line breaks."""


class GenerationSettings(Overrides):
    """Settings of a generation."""

    CONFIG = GenerationConfig
    WITHOUT = ("forbid",)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Settings of the generation that replace the run's own."""

    forbid: OptionalFile = None
    """Phrases, one a line, that outputs must not contain, such as wrong or unwanted words; a space
    at either end of a phrase also matches the beginning or end of the text."""
    settings: Group[GenerationSettings]

    def overrides(self, files: Sequence[Path]) -> Json:
        """The settings that the command line gives; `files` are those of the input.

        Raises:
            InputError: a setting is invalid for every run, or - is given for two files.
        """
        check_stdin([*files, self.forbid])
        GenerationConfig(max_length=LONGEST).changed(**self.settings)
        return self.settings | forbidden(self.forbid)


@dataclass(frozen=True, kw_only=True)
class GenerationInput:
    """Prompts that do not come from files."""

    prompt: Common[Annotated[tuple[str, ...] | None, arg(metavar="STR [STR ...]")]] = None
    """Prompts to continue, instead of files; an output begins with its prompt. "" is an empty
    prompt."""
    interactive: Common[bool] = False
    """Ask for a prompt, continue it at once, and ask again; Ctrl-D ends."""

    def __post_init__(self) -> None:
        if self.prompt == ():
            raise InputError(
                '--prompt takes texts, but nothing follows it; --prompt "" is an empty prompt'
            )


@dataclass(frozen=True, kw_only=True)
class GenerationOutput:
    """How texts are written."""

    stream: Common[bool] = False
    """Print text as it is generated, one text after the other; not in beam search."""
    stop: UseAppendAction[tuple[str, ...]] = ()
    """Strings that end a text, and remain as its last part: --stop . --stop END; not in beam
    search."""
    format: Common[Literal["text", "json"]] = "text"
    """text: each prompt with its text, and a rule before the next. json: an object per text, one a
    line."""
    token_scores: bool = False
    """Put the log-probability of every token, and a confidence of every word, into json, to see
    where the model was unsure. They are the model's own, without temperature."""


def generate(
    run: Runs,
    files: Files = (),
    *,
    source: Group[GenerationInput],
    output: Group[GenerationOutput],
    generation: Group[GenerationOptions],
    machine: Group[Machine],
    destination: Group[OutputOptions],
) -> None:
    """Continue prompts: each is printed with its text, and a rule before the next.

    The same seed gives the same texts, whatever the batch.

    Args:
        files: Prompts, one a line, plain or .gz; - is standard input, which is also the default. A
            blank line is an empty prompt.
    """
    at_once = output.stream or source.interactive
    if at_once and (output.format == "json" or destination != OutputOptions()):
        raise InputError(
            "text is printed to standard output piece by piece, so leave out --format json, "
            "--output, --workers and --part with --stream and --interactive"
        )
    check_token_scores(output.token_scores, output.format)
    if files and source.prompt:
        raise InputError(
            "prompts come from files or from --prompt, but both are given; leave one out"
        )
    if source.interactive:
        check_interactive({"FILE": files, "--prompt": source.prompt})
    texts = files or (STDIN,)
    # invalid settings are refused before a run is loaded
    settings = generation.overrides(() if source.prompt else texts)
    job = Generation(run=local(run), machine=machine, settings=settings, output=output)
    if source.interactive:
        generator = job.load()
        return interact(lambda prompt, number: job.print_texts(generator, [prompt], number))
    prompts: Iterable[str | InputError] = lines_or_errors(STDIN)
    if source.prompt or files or destination.output:
        prompts = source.prompt or Lines(*texts)
        for prompt in prompts:
            checked(prompt)  # refused before anything is written
    if output.stream:
        return job.print_texts(job.load(), map(checked, prompts))
    read = [*files, *filter(None, [generation.forbid])]
    carry_out(job, prompts, destination, inputs=read)


@dataclass(frozen=True, kw_only=True)
class Generation(SearchJob):
    """Prompts to continue."""

    TASK = "Generator"
    UNIT = "prompt"
    CHUNK = 1000

    output: GenerationOutput

    def rows(
        self, generator: "Generator", start: int, items: list[str | InputError], progress: Progress
    ) -> Rows:
        """Continue prompts."""
        prompts = [_encodable(generator, checked(item), start + i) for i, item in enumerate(items)]
        texts = generator.generate(
            prompts,
            first_prompt=start,
            stop=self.output.stop,
            token_scores=self.output.token_scores,
        )
        progress(len(prompts), 0)
        pairs = [
            (prompt, output)
            for prompt, outputs in zip(prompts, texts, strict=True)
            for output in outputs
        ]
        if self.output.format == "json":
            rows = ({"prompt": prompt, **plain_output(output)} for prompt, output in pairs)
            return Rows("".join(map(json_line, rows)))
        rule = RULE if start and pairs else ""
        return Rows(rule + RULE.join(f"{prompt}{output.text}\n" for prompt, output in pairs))

    def print_texts(
        self, generator: "Generator", prompts: Iterable[str], first_prompt: int = 0
    ) -> None:
        """Print the continuation of each prompt as it is generated.

        Raises:
            InputError: beam_size is above 1: beam search has no text before it ends.
        """
        if (beam_size := generator.decoding.beam_size) > 1:
            raise InputError(
                "a text can be shown as it comes only if it is sampled, but "
                f"beam_size={beam_size}; set it to 1, or leave out --stream and --interactive"
            )
        rule = ""
        for number, prompt in enumerate(prompts, start=first_prompt):
            _encodable(generator, prompt, number)
            for k in range(generator.decoding.n):
                pieces = generator.stream(
                    prompt, prompt_number=number, text_number=k, stop=self.output.stop
                )
                for piece in chain([rule + prompt], pieces, ["\n"]):
                    sys.stdout.write(piece)
                    sys.stdout.flush()
                rule = RULE


def _encodable(generator: "Generator", prompt: str, number: int) -> str:
    """Return a prompt that the tokenizer can read, or raise InputError with its number."""
    with errors_of(f"prompt {number + 1}"):
        generator.encode_uncut(prompt)
    return prompt
