"""`transduce generate RUN` and `transduce score perplexity RUN FILE`: what a decoder alone is asked."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from transduce.cli.score import STDIN, read_side
from transduce.data.text.corpus import check_text, decode_line
from transduce.device import Precision, default_device, dtype_of
from transduce.tasks.generate import GenerationConfig, Generator
from transduce.tasks.load import load_as
from transduce.tasks.perplexity import measure_perplexity

RULE = "-" * 20
"""Between two texts: they may hold line breaks."""

CHUNK = 1000
"""Prompts answered, and then written, at a time."""

Run = Annotated[Path, arg(metavar="RUN", help="A run directory of a language model.")]


def generate(
    run: Positional[Run],
    *,
    prompt: tuple[str, ...] = (),
    max_length: int = 256,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    beam_size: int = 1,
    alpha: float = 0.6,
    seed: int = 0,
    n: int = 1,
    stream: bool = False,
    batch_size: int = 16,
    device: str = default_device(),
    precision: Precision = "fp32",
) -> None:
    """Go on from prompts: each is printed with what follows it, a rule between any two.

    The same seed gives the same texts, whatever the batch.

    Args:
        prompt: Texts to go on from; without, every line of standard input is one. "" begins from nothing.
        max_length: New tokens at most; text also ends where the model's positions end.
        temperature: Below 1 safer, above 1 bolder, 0 always the likeliest token.
        top_k: Draw among the k likeliest tokens; 0 = off.
        top_p: Draw among the fewest tokens of this probability together; 1 = off.
        repetition_penalty: Above 1, tokens that came before become less likely; 1 = off.
        beam_size: More than 1: the likeliest text that so many beams find, drawing nothing.
        alpha: Exponent of the length penalty ((5 + length) / 6)^alpha of beam search.
        seed: Of all that is drawn.
        n: Texts per prompt.
        stream: Print text as it comes, one text after the other.
        batch_size: Texts (or beams) at a time: speed and memory, never the output.
        device: cpu, cuda, cuda:1, ...
        precision: bf16 is faster where the hardware has it; texts change.
    """
    config = GenerationConfig(
        max_length=max_length, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty, beam_size=beam_size, alpha=alpha, seed=seed, n=n,
        batch_size=1 if stream else batch_size,
    )  # fmt: skip
    generator = load_as(Generator, run, device, dtype_of(precision))
    prompts: Iterator[str] = iter(prompt or _standard_input(sys.stdin.buffer))
    chunk = 1 if stream or (not prompt and sys.stdin.isatty()) else CHUNK
    write = _Writer()
    done = 0
    while some := list(islice(prompts, chunk)):
        on_text = partial(write.add, some) if stream else None
        found = generator.generate(some, config, on_text=on_text, first_prompt=done)
        for i, k in [(i, k) for i, texts in enumerate(found) for k in range(len(texts)) if not stream]:
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
        """Of the text that was begun."""
        if self.now is not None:
            print(flush=True)
        self.now = None


def _standard_input(stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        yield decode_line(line.removesuffix(b"\n"), "standard input", number)


def score_perplexity(
    run: Positional[Run],
    file: Positional[Annotated[Path, arg(metavar="FILE", help="Text: a file, plain or .gz, or - for stdin.")]],
    *,
    window: int | None = None,
    stride: int | None = None,
    device: str = default_device(),
    batch_tokens: int = 4096,
    precision: Precision = "fp32",
) -> None:
    """Perplexity per token, nats per token and bits per byte of a text, lower is better.

    Args:
        window: Tokens that a prediction can look back on at most; the model's max_positions if not given.
        stride: Tokens between the beginnings of two windows; half a window if not given.
        device: cpu, cuda, cuda:1, ...
        batch_tokens: Positions in one go: speed and memory, never the figures.
        precision: bf16 is faster where the hardware has it, and not quite the same.
    """
    if file != STDIN:
        check_text(file)
    text = "".join(f"{line}\n" for line in read_side(file))
    generator = load_as(Generator, run, device, dtype_of(precision))
    print(
        measure_perplexity(
            generator.model, generator.tokenizer, text, window=window, stride=stride, batch_tokens=batch_tokens
        )
    )
