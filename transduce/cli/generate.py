"""`transduce generate RUN` and `transduce score perplexity RUN FILE`: what a decoder alone is asked."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from transduce.cli.common import Count, Machine, Run, chunks, read_side, standard_input
from transduce.tasks.generate import GenerationConfig, Generator
from transduce.tasks.perplexity import measure_perplexity

RULE = "-" * 20
"""Between two texts: they may hold line breaks."""

CHUNK = 1000
"""Prompts answered, and then written, at a time."""


def generate(
    run: Positional[Run],
    *,
    prompt: tuple[str, ...] = (),
    stream: bool = False,
    generation: GenerationConfig,
    machine: Machine,
) -> None:
    """Go on from prompts: each is printed with what follows it, a rule between any two.

    The same seed gives the same texts, whatever the batch.

    Args:
        prompt: Texts to go on from; without, every line of standard input is one. "" begins from nothing.
        stream: Print text as it comes, one text after the other.
    """
    generator = machine.load(Generator, run)
    prompts: Iterator[str] = iter(prompt) if prompt else standard_input()
    size = 1 if stream or (not prompt and sys.stdin.isatty()) else CHUNK
    for number, (asked, parts) in enumerate(_texts(generator, prompts, generation, size, stream=stream)):
        print(f"{RULE}\n" * (number > 0) + asked, end="", flush=True)
        for part in parts:
            print(part, end="", flush=True)
        print(flush=True)


def _texts(
    generator: Generator, prompts: Iterable[str], config: GenerationConfig, size: int, *, stream: bool
) -> Iterator[tuple[str, Iterable[str]]]:
    """Every prompt with a text that follows it: in parts as they come if `stream`, else in one piece."""
    done = 0
    for some in chunks(prompts, size):
        if stream and config.beam_size == 1:
            for k in range(config.n):
                yield some[0], generator.stream(some[0], config, prompt_number=done, text_number=k)
        else:
            for asked, found in zip(some, generator.generate(some, config, first_prompt=done), strict=True):
                yield from ((asked, [output.text]) for output in found)
        done += len(some)


def score_perplexity(
    run: Positional[Run],
    file: Positional[Annotated[Path, arg(metavar="FILE", help="Text: a file, plain or .gz, or - for stdin.")]],
    *,
    window: Count = None,
    stride: Count = None,
    batch_tokens: int = 4096,
    machine: Machine,
) -> None:
    """Perplexity per token, nats per token and bits per byte of a text, lower is better.

    Args:
        window: Tokens that a prediction can look back on at most; the model's max_positions if not given.
        stride: Tokens between the beginnings of two windows; half a window if not given.
        batch_tokens: Positions in one go: speed and memory, never the figures.
    """
    text = "".join(f"{line}\n" for line in read_side(file))
    generator = machine.load(Generator, run)
    model, tokenizer = generator.model, generator.tokenizer
    print(measure_perplexity(model, tokenizer, text, window=window, stride=stride, batch_tokens=batch_tokens))
