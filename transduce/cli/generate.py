"""`transduce generate`: prompts in, texts out that go on from them."""

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
from transduce.cli.large_files import Division, carry_out
from transduce.config import Common, Json
from transduce.errors import InputError, errors_of
from transduce.tasks.config import LONGEST, GenerationConfig
from transduce.tasks.formats import json_line, plain_output

if TYPE_CHECKING:
    from transduce.tasks.generate import Generator

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
    either end of one is also the beginning or end of the text."""
    settings: Group[GenerationSettings]

    def overrides(self, files: Sequence[Path]) -> Json:
        """The settings that the command line names, beside files of the input.

        Raises:
            InputError: no run can have them, or - stands for two files.
        """
        check_stdin([*files, self.forbid])
        GenerationConfig(max_length=LONGEST).changed(**self.settings)
        return self.settings | forbidden(self.forbid)


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
    """Print text as it comes, one text after the other; not in beam search."""
    stop: UseAppendAction[tuple[str, ...]] = ()
    """Strings that end a text, as its last part: --stop . --stop END; not in beam search."""
    format: Common[Literal["text", "json"]] = "text"
    """text: prompt and text, a rule between any two. json: an object per text and line."""
    token_scores: bool = False
    """Put the log-probability of every token, and a confidence of every word, into json, to see
    where the model was unsure. The model's own, without temperature."""


def generate(
    run: Runs,
    files: Files = (),
    *,
    source: Group[GenerationInput],
    output: Group[GenerationOutput],
    generation: Group[GenerationOptions],
    machine: Group[Machine],
    division: Group[Division],
) -> None:
    """Go on from prompts: each is printed with its text, a rule between any two.

    The same seed gives the same texts, whatever the batch.

    Args:
        files: Prompts, one a line, plain or .gz; - is standard input, as is nothing at all. A blank
            line begins from nothing.
    """
    at_once = output.stream or source.interactive
    if at_once and (output.format == "json" or division != Division()):
        raise InputError(
            "text comes on standard output piece by piece, so leave out --format json, --output, "
            "--workers and --part with --stream and --interactive"
        )
    check_token_scores(output.token_scores, output.format)
    if files and source.prompt:
        raise InputError(
            "prompts come from files or from --prompt, but both are given; leave one out"
        )
    if source.interactive:
        check_interactive({"FILE": files, "--prompt": source.prompt})
    texts = files or (STDIN,)
    # what no run can do is refused before one is loaded
    settings = generation.overrides(() if source.prompt else texts)
    job = Generation(run=local(run), machine=machine, settings=settings, output=output)
    if source.interactive:
        generator = job.load()
        return interact(lambda prompt, number: job.print_texts(generator, [prompt], number))
    prompts: Iterable[str | InputError] = lines_or_errors(STDIN)
    if source.prompt or files or division.output:
        prompts = source.prompt or Lines(*texts)
        for prompt in prompts:
            checked(prompt)  # refused before anything is written
    if output.stream:
        return job.print_texts(job.load(), map(checked, prompts))
    read = [*files, *filter(None, [generation.forbid])]
    carry_out(job, prompts, division, inputs=read)


@dataclass(frozen=True, kw_only=True)
class Generation(SearchJob):
    """Prompts to go on from."""

    TASK = "Generator"
    UNIT = "prompt"
    CHUNK = 1000

    output: GenerationOutput

    def rows(
        self, generator: "Generator", start: int, items: list[str | InputError], progress: Progress
    ) -> Rows:
        """Go on from prompts."""
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
        """Print what follows each prompt, as it comes.

        Raises:
            InputError: there is a beam, which knows no text before its end.
        """
        if (beam_size := generator.decoding.beam_size) > 1:
            raise InputError(
                f"a text is shown as it is sampled, but beam_size={beam_size}; set it to 1, or "
                "leave out --stream and --interactive"
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
        generator.tokenizer.encode([prompt])
    return prompt
