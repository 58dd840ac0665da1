"""`transduce generate RUN` and `transduce score perplexity RUN FILE`: what a decoder alone is asked."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from transduce.cli.common import STDIN, Count, Machine, Run, chunks, read_side, standard_input
from transduce.data.text.corpus import check_text
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
    if stream:
        generation = replace(generation, batch_size=1)
    generator = machine.load(Generator, run)
    prompts: Iterator[str] = iter(prompt) if prompt else standard_input()
    size = 1 if stream or (not prompt and sys.stdin.isatty()) else CHUNK
    write = _Writer()
    done = 0
    for some in chunks(prompts, size):
        if stream and generation.beam_size == 1:
            for k in range(generation.n):
                write.add(some, 0, k, "")
                for text in generator.stream(some[0], generation, prompt_number=done, text_number=k):
                    write.add(some, 0, k, text)
        else:
            found = generator.generate(some, generation, first_prompt=done)
            for i, k in [(i, k) for i, texts in enumerate(found) for k in range(len(texts))]:
                write.add(some, i, k, found[i][k].text)
        done += len(some)
        write.end()


class _Writer:
    """Prints every text behind its prompt, and a rule between any two, however many pieces they come in."""

    def __init__(self) -> None:
        self.now: tuple[int, int] | None = None
        self.any = False

    def add(self, prompts: Sequence[str], i: int, k: int, text: str) -> None:
        """Text k of prompt i, or more of it."""
        if self.now != (i, k):
            self.end()
            print(f"{RULE}\n" * self.any + prompts[i], end="")
            self.now, self.any = (i, k), True
        print(text, end="", flush=True)

    def end(self) -> None:
        """End the line of the text that was begun."""
        if self.now is not None:
            print(flush=True)
        self.now = None


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
    if file != STDIN:
        check_text(file)
    text = "".join(f"{line}\n" for line in read_side(file))
    generator = machine.load(Generator, run)
    model, tokenizer = generator.model, generator.tokenizer
    print(measure_perplexity(model, tokenizer, text, window=window, stride=stride, batch_tokens=batch_tokens))
