"""`transduce score bleu | chrf | ter HYP REF [REF2 ...]`: how good a file of translations is, with its signature."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from transduce.data.text.corpus import decode_lines, read_lines
from transduce.score.bleu import Comparison, MetricName, Score, bleu, check_lines, chrf, compare, ter

STDIN = Path("-")

Hypotheses = Annotated[
    Positional[Path],
    arg(metavar="HYP", help="Translations to score, one a line: a file, plain or .gz, or - for stdin."),
]
References = Annotated[
    Positional[tuple[Path, ...]],
    arg(
        metavar="REF [REF2 ...]",
        help="The right translations, line by line; more files are more references.",
        help_behavior_hint="(required)",
    ),
]
Lowercase = Annotated[bool, arg(help="Ignore case.", help_behavior_hint="")]
Paired = Annotated[
    Path | None,
    arg(metavar="OTHER_HYP", help="Another system's translations to compare HYP with.", help_behavior_hint=""),
]
Resamples = Annotated[int, arg(help="Bootstrap draws for the interval and for --paired; 0 for no interval.")]


def score_bleu(
    hypotheses: Hypotheses,
    references: References,
    lowercase: Lowercase = False,
    paired: Paired = None,
    resamples: Resamples = 1000,
) -> None:
    """BLEU, 0 to 100, higher is better."""
    _report("bleu", hypotheses, references, lowercase, paired, resamples)


def score_chrf(
    hypotheses: Hypotheses,
    references: References,
    lowercase: Lowercase = False,
    paired: Paired = None,
    resamples: Resamples = 1000,
) -> None:
    """chrF2, character n-gram F-score, 0 to 100, higher is better."""
    _report("chrf", hypotheses, references, lowercase, paired, resamples)


def score_ter(
    hypotheses: Hypotheses,
    references: References,
    lowercase: Lowercase = False,
    paired: Paired = None,
    resamples: Resamples = 1000,
) -> None:
    """Translation edit rate, edits per 100 reference words, lower is better."""
    _report("ter", hypotheses, references, lowercase, paired, resamples)


def _report(
    metric: MetricName,
    hypotheses: Path,
    references: Sequence[Path],
    lowercase: bool,
    paired: Path | None,
    resamples: int,
) -> None:
    if not references:
        raise ValueError(f"a score needs a reference, but only {hypotheses} was given; write HYP REF [REF2 ...]")
    check_hypotheses([hypotheses] if paired is None else [hypotheses, paired])
    if paired is None:
        lines, *others = read_sides([hypotheses, *references])
        measure = {"bleu": bleu, "chrf": chrf, "ter": ter}[metric]
        score = measure(lines, others, lowercase=lowercase, resamples=resamples)
        print(score)
        print(_what_was_scored(score, resamples))
    else:
        lines, other, *others = read_sides([hypotheses, paired, *references])
        found = compare(lines, other, others, metric=metric, lowercase=lowercase, resamples=resamples)
        print(f"{found.system}  {side_name(hypotheses)}")
        print(f"{found.other}  {side_name(paired)}")
        print(_what_was_scored(found.system, resamples))
        print(what_it_means(found, "lower" if metric == "ter" else "higher"))


def read_sides(paths: Sequence[Path]) -> list[list[str]]:
    """The lines of every file, - being standard input.

    Raises:
        ValueError: their numbers differ, or - stands for more than one.
    """
    check_one_stdin(paths)
    texts = [read_side(path) for path in paths]
    check_lines(dict(zip(map(side_name, paths), texts, strict=True)))
    return texts


def check_one_stdin(paths: Sequence[Path]) -> None:
    """Raises ValueError where - stands for more than one file."""
    if paths.count(STDIN) > 1:
        raise ValueError(
            f"standard input can be read once, but - stands for {paths.count(STDIN)} files; name the others"
        )


def check_hypotheses(paths: Sequence[Path]) -> None:
    """Raises ValueError where a file is named as one of the formats of `transcribe` that are not a text a line."""
    for path in paths:
        kind = Path(path.name.removesuffix(".gz")).suffix
        if kind.lower() in (".json", ".jsonl", ".srt", ".tsv"):
            raise ValueError(
                f"hypotheses must be text, one utterance or sentence a line, but {path} is named {kind}; "
                "transduce transcribe --format text makes such a file; if it is one, rename it"
            )


def read_side(path: Path) -> list[str]:
    """The lines of one file, or of standard input for -."""
    return decode_lines(sys.stdin.buffer.read(), side_name(path)) if path == STDIN else read_lines(path)


def side_name(path: Path) -> str:
    """What messages call it."""
    return "standard input" if path == STDIN else str(path)


def _what_was_scored(score: Score, resamples: int) -> str:
    interval = f"; in brackets the 95 % interval, {resamples} bootstrap resamples" if resamples else ""
    return f"over {score.n} line{'' if score.n == 1 else 's'}{interval}"


def what_it_means(found: Comparison, better: str) -> str:
    """How to read a comparison; `better` is "lower" or "higher"."""
    return (
        f"difference {found.difference:+.2f} {found.system.name} ({better} is better), p = {found.p_value:.4f}\n"
        f"If both systems were equally good, the choice of lines alone would give such a lead in "
        f"{100 * found.p_value:.1f} % of test sets (paired bootstrap, one-sided).\n"
        f"Below 0.025, the difference is significant at the usual two-sided 5 % level."
    )
