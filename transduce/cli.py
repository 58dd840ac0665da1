"""The command line: translate, transcribe, generate, score, describe, average, import, export."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from tyro.conf import Positional, arg
from tyro.extras import SubcommandApp

from transduce.checkpoint import WEIGHTS, average, checkpoints, load_run, read_weights, serialise, weights_path
from transduce.cli_generate import generate, score_perplexity
from transduce.cli_interop import export, import_gpt2_run
from transduce.cli_options import with_options
from transduce.cli_score import score_bleu, score_chrf, score_ter
from transduce.cli_score_wer import score_cer, score_wer
from transduce.cli_transcribe import transcribe
from transduce.config import flatten, to_dict
from transduce.data.corpus import decode_line, read_lines
from transduce.decoding import Decoding, Output
from transduce.device import Precision, default_device, dtype_of
from transduce.exit import exit_code
from transduce.files import write_file
from transduce.pipeline import load_as
from transduce.train.log import read_metrics
from transduce.train.state import read_progress
from transduce.translator import Translator

CHUNK = 2000
"""Lines translated, and then written, at a time: sorted by length within, in order without."""

Run = Annotated[Path, arg(metavar="RUN", help="A run directory, as a recipe makes it.")]


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
    translator: Translator, lines: Iterable[str], chunk: int, decoding: Decoding, scores: bool, bar: "tqdm[None]"
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


def describe(run: Positional[Run]) -> None:
    """Tell what a run directory holds: model, tokenizers, training, scores."""
    kept = load_run(run)
    weights = weights_path(run)
    tensors = read_weights(weights)
    print(f"{run}: {sum(t.numel() for t in tensors.values()):,} parameters in {weights.relative_to(run)}")
    names = {"source": kept.source_tokenizer, "target": kept.target_tokenizer}
    for name, tokenizer in names.items():
        if tokenizer is not None:
            print(f"{name} vocabulary: {tokenizer.vocab_size} pieces")
    if kept.front is not None:
        print(f"input: {kept.model.flow}")
    print(f"checkpoints: {', '.join(str(int(path.name)) for path in checkpoints(run)) or 'none'}")
    metrics = run / "metrics.jsonl"
    valid = [line for line in read_metrics(metrics) if line["kind"] == "valid"] if metrics.is_file() else []
    if valid:
        last = {name: value for name, value in valid[-1].items() if name not in ("kind", "skipped")}
        print("last validation: " + ", ".join(f"{name} {value:g}" for name, value in last.items()))
    for title, plain in (("model", to_dict(kept.model)), ("experiment", kept.experiment)):
        print(f"{title}:")
        for name, value in flatten({k: v for k, v in plain.items() if title == "model" or k != "model"}).items():
            print(f"  {name} = {value}")


def average_checkpoints(
    run: Positional[Run], *, last: int | None = None, best: int | None = None, output: Path | None = None
) -> None:
    """Make the mean of checkpoints the run's finished model.

    Args:
        last: Average this many newest checkpoints.
        best: Average this many checkpoints with the best validation score.
        output: Write the weights there, and leave the run's finished model alone.
    """
    if (last is None) == (best is None):
        raise ValueError(f"name --last N or --best N, one of them, but last={last} and best={best}")
    count = last if last is not None else best
    assert count is not None
    there = validated(run)
    chosen = there[-count:] if last is not None else sorted(there, key=lambda each: -each[1])[:count]
    if not 1 <= count <= len(there):
        raise ValueError(
            f"an average takes 1 to all checkpoints, but {count} were asked for and {run} has {len(there)}"
        )
    target = output or run / WEIGHTS
    write_file(target, serialise(average([path / WEIGHTS for path, _ in chosen])))
    print(f"{target}: mean of the updates {', '.join(str(int(path.name)) for path, _ in chosen)}")


def validated(run: Path) -> list[tuple[Path, float]]:
    """The checkpoints of a run that were validated, with their scores, oldest first."""
    load_run(run)
    found = checkpoints(run)
    scores = dict(read_progress(found[-1]).validations) if found else {}
    return [(path, scores[int(path.name)]) for path in found if int(path.name) in scores]


def app() -> SubcommandApp:
    """All commands."""
    score = SubcommandApp()
    for name, command in (("bleu", score_bleu), ("chrf", score_chrf), ("ter", score_ter)):
        score.command(name=name)(command)
    score.command(name="wer")(score_wer)
    score.command(name="cer")(score_cer)
    score.command(name="perplexity")(score_perplexity)
    imports = SubcommandApp()
    imports.command(name="gpt2")(import_gpt2_run)
    commands = SubcommandApp()
    commands.command(translate)
    commands.command(transcribe)
    commands.command(generate)
    commands.command(score, name="score", help="Score translations, transcripts or a language model.")
    commands.command(describe)
    commands.command(name="average")(average_checkpoints)
    commands.command(imports, name="import", help="Make a run of another toolkit's weights.")
    commands.command(export)
    return commands


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 if it went well, 2 if the input was at fault, 130 after Ctrl-C."""
    logging.basicConfig(format="transduce: %(message)s", level=logging.WARNING)
    return exit_code(
        lambda: app().cli(
            prog="transduce",
            description="One Transformer, many transductions.",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        ),
        prefix="transduce",
        interrupted="transduce: stopped; every line written so far is whole",
    )


if __name__ == "__main__":
    sys.exit(main())
