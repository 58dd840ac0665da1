"""`transduce translate RUN`: lines in, their translations out."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from tyro.conf import Positional, arg

from transduce.cli.common import Run, with_options
from transduce.data.text.corpus import decode_line, read_lines
from transduce.device import Precision, default_device, dtype_of
from transduce.tasks.load import load_as
from transduce.tasks.search import Output, SearchConfig
from transduce.tasks.translate import Translator

CHUNK = 2000
"""Lines translated, and then written, at a time: sorted by length within, in order without."""


def translate(
    run: Positional[Run],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILE ...]")]] = (),
    *,
    output: Path | None = None,
    beam_size: int | None = None,
    alpha: float | None = None,
    greedy: bool = False,
    n_best: int = 1,
    scores: bool = False,
    device: str = default_device(),
    batch_tokens: int | None = None,
    precision: Precision = "fp32",
) -> None:
    """Translate lines: as many out as in, in the same order, a blank line for a blank line.

    The search is as the run's own configuration says, where nothing else is named.

    Args:
        files: Text to translate, plain or .gz, one after the other; standard input if none.
        output: Where translations go; standard output if not given.
        beam_size: Hypotheses per sentence.
        alpha: Exponent of the length penalty ((5 + length) / 6)^alpha.
        greedy: Take the likeliest next token each time: --beam-size 1.
        n_best: Translations per line, best first, on as many lines.
        scores: Put the score (log-probability over length penalty) and a tab before each translation.
        device: cpu, cuda, cuda:1, ...
        batch_tokens: Source tokens per batch, padding included: speed and memory, never the output.
        precision: bf16 is faster where the hardware has it; a few outputs change.
    """
    translator = load_as(Translator, run, device, dtype_of(precision))
    options = {"beam_size": beam_size, "alpha": alpha, "n_best": n_best, "batch_tokens": batch_tokens}
    decoding = with_options(translator.decoding, greedy=greedy, **options)
    with ExitStack() as stack:
        out = stack.enter_context(output.open("w", encoding="utf-8", newline="\n")) if output else sys.stdout
        lines: Iterable[str] = _standard_input(sys.stdin.buffer)
        chunk, total = (1 if sys.stdin.isatty() else CHUNK), None
        if files:
            lines = [line for file in files for line in read_lines(file)]
            chunk, total = CHUNK, len(lines)
        quiet = chunk == 1 or not sys.stderr.isatty()
        stack.enter_context(logging_redirect_tqdm())
        bar = stack.enter_context(tqdm(total=total, unit="line", disable=quiet))
        for text in _translations(translator, lines, chunk, decoding, scores, bar):
            out.write(text)
            out.flush()


def _standard_input(stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        yield decode_line(line.removesuffix(b"\n"), "standard input", number)


def _translations(
    translator: Translator, lines: Iterable[str], chunk: int, decoding: SearchConfig, scores: bool, bar: "tqdm[None]"
) -> Iterator[str]:
    """What to write for each chunk of lines."""
    done, rest = 0, iter(lines)
    while some := list(islice(rest, chunk)):
        found = translator.translate(some, decoding, first_line=done + 1, progress=bar.update)
        yield "".join(_line(each, scores) for outputs in found for each in outputs)
        done += len(some)
        bar.update(done - bar.n)  # blank lines pass without a batch


def _line(output: Output, scores: bool) -> str:
    return f"{output.score:.4f}\t{output.text}\n" if scores else f"{output.text}\n"
