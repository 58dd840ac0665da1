"""`transduce score MEASURE HYP REF ...`: scores of translations and transcripts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from sacrebleu.metrics import CHRF
from tyro.conf import Positional, arg

from transduce.arguments import Group
from transduce.cli.common import OptionalFile, check_stdin, read_side, side_name
from transduce.cli.large_files import check_output
from transduce.config import within
from transduce.data.sound_lists import LIST, NAMES
from transduce.data.tables import each_record
from transduce.errors import InputError, logger
from transduce.score.measures import Tokenization, bleu, chrf, comet, ter, warn_without_words
from transduce.score.score import Lines, Measure, Score, check_lines
from transduce.score.wer import ErrorRate, ErrorRateMeasure, cer, per, wer

TEXT = "text"

Table = dict[str, list[str]]
"""Columns by their names."""

Hypotheses = Positional[
    Annotated[
        Path,
        arg(
            metavar="HYP",
            help="Outputs to score, one a line: a file, plain or .gz, or - for standard input.",
        ),
    ]
]
References = Positional[
    Annotated[
        tuple[Path, ...],
        arg(
            metavar="REF [REF2 ...]",
            help="Reference translations, line by line, or a manifest (.tsv, .csv or .jsonl); "
            "more files are more references.",
            help_behavior_hint="(required)",
        ),
    ]
]
Reference = Positional[
    Annotated[
        Path,
        arg(
            metavar="REF",
            help="Reference texts, line by line: a text file or a manifest (.tsv, .csv or .jsonl).",
        ),
    ]
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every score."""

    paired: Annotated[Path | None, arg(metavar="OTHER_HYP")] = None
    """Another system's output, to compare HYP with."""
    resamples: int = 1000
    """Bootstrap draws for the interval and for --paired; 0 for no interval."""
    column: str = TEXT
    """The column of REF with the text, if REF is a manifest."""


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(Options):
    """Options of scores of translations."""

    lowercase: bool = False
    """Ignore case."""


@dataclass(frozen=True, kw_only=True)
class BleuOptions(TranslationOptions):
    """Options of BLEU."""

    tokenize: Annotated[
        Tokenization | None, arg(help_behavior_hint="(default: by the script of REF)")
    ] = None
    """How text is split into words: 13a for languages with spaces, zh for Chinese, char for any
    script without spaces; ja-mecab and ko-mecab need pip install 'sacrebleu[ja]' and
    'sacrebleu[ko]'. The signature names it."""


@dataclass(frozen=True, kw_only=True)
class ChrfOptions(TranslationOptions):
    """Options of chrF."""

    word_order: int = 0
    """Longest word n-grams that count besides character n-grams; 2 gives chrF++."""


@dataclass(frozen=True, kw_only=True)
class TranscriptOptions(Options):
    """Options of error rates."""

    normalize: bool = False
    """Ignore case, punctuation (except apostrophes inside words) and the width of letters and
    spaces: lower case, Unicode NFKC."""
    english: bool = False
    """Whisper's normalization of English instead: numbers, contractions and spelling too; needs
    pip install whisper-normalizer."""
    by: Annotated[str | None, arg(metavar="COLUMN[:WIDTH]")] = None
    """Print a table of the rates by a column of the manifest, such as speaker; age:10 groups ages
    by tens."""
    manifest: Annotated[Path | None, arg(metavar="M.tsv")] = None
    """The manifest with the column of --by, if REF is a text file."""
    report: OptionalFile = None
    """Write a report to this file: every utterance with errors, aligned, the worst first, and the
    frequent errors."""


def score_bleu(hypotheses: Hypotheses, references: References, scoring: Group[BleuOptions]) -> None:
    """BLEU, with its signature; higher is better."""
    measure = replace(bleu, tokenize=scoring.tokenize, lowercase=scoring.lowercase)
    _score_translations(measure, hypotheses, references, scoring)


def score_chrf(hypotheses: Hypotheses, references: References, scoring: Group[ChrfOptions]) -> None:
    """chrF, the F-score of character n-grams, with its signature; higher is better."""
    within("[0, 100]", word_order=scoring.word_order)
    title = chrf.title + "+" * scoring.word_order
    make = partial(CHRF, word_order=scoring.word_order)
    measure = replace(chrf, title=title, make=make, lowercase=scoring.lowercase)
    _score_translations(measure, hypotheses, references, scoring)


def score_ter(
    hypotheses: Hypotheses, references: References, scoring: Group[TranslationOptions]
) -> None:
    """TER, the translation edit rate, with its signature; lower is better."""
    measure = replace(ter, lowercase=scoring.lowercase)
    _score_translations(measure, hypotheses, references, scoring)


def _score_translations(
    measure: Measure,
    hypotheses: Path,
    references: Sequence[Path],
    scoring: Options,
    sources: Sequence[Path] = (),
) -> None:
    if not references:
        raise InputError(
            f"a score needs a reference, but only {hypotheses} was given; write HYP REF [REF2 ...]"
        )
    systems = _systems(hypotheses, scoring, [*references, *sources])
    reference_texts = [_read_reference(path, scoring.column)[0] for path in references]
    warn_without_words(measure.name, reference_texts[0])
    _print_score(measure, systems, references, reference_texts, scoring.resamples)


def score_comet(
    hypotheses: Hypotheses,
    reference: Reference,
    *,
    source: Annotated[Path, arg(metavar="SRC", help="What was translated, line by line.")],
    scoring: Group[Options],
) -> None:
    """COMET, which reads the sources too; higher is better.

    Needs unbabel-comet (pip install '.[comet]' in a clone).
    """
    measure = comet.with_sources(read_side(source))
    _score_translations(measure, hypotheses, [reference], scoring, [source])


def score_wer(
    hypotheses: Hypotheses, reference: Reference, scoring: Group[TranscriptOptions]
) -> None:
    """WER, the word error rate in percent, with its signature and counts; lower is better."""
    _score_transcripts(wer, hypotheses, reference, scoring)


def score_cer(
    hypotheses: Hypotheses, reference: Reference, scoring: Group[TranscriptOptions]
) -> None:
    """CER, the character error rate in percent, with its signature and counts; lower is better."""
    _score_transcripts(cer, hypotheses, reference, scoring)


def score_per(
    hypotheses: Hypotheses, reference: Reference, scoring: Group[TranscriptOptions]
) -> None:
    """PER, the phone error rate in percent, with its signature and counts; lower is better."""
    _score_transcripts(per, hypotheses, reference, scoring)


def _score_transcripts(
    measure: ErrorRateMeasure, hypotheses: Path, reference: Path, scoring: TranscriptOptions
) -> None:
    tables = [reference, *filter(None, [scoring.manifest])]
    systems = _systems(hypotheses, scoring, tables)
    if scoring.report is not None:
        check_output(scoring.report, [*systems, *tables], option="--report")
    texts, table = _read_reference(reference, scoring.column)
    warn_without_words(measure.name, texts)
    if scoring.manifest is not None:
        table = _read_table(scoring.manifest)
        check_lines(
            {side_name(reference): texts, side_name(scoring.manifest): next(iter(table.values()))}
        )
    labels = [] if scoring.by is None else _labels(table, scoring.by)
    measure = replace(measure, normalize=scoring.normalize, english=scoring.english)
    rate = _print_score(measure, systems, [reference], [texts], scoring.resamples)
    assert isinstance(rate, ErrorRate)
    _warn_of_ids(rate)
    if scoring.by is not None:
        print("\n" + rate.table(scoring.by, labels))
    if scoring.report is not None:
        ids = [f", {key}" for key in table.get("id", [])] or [""] * rate.n
        names = [f"line {i}{key}" for i, key in enumerate(ids, start=1)]
        head = f"{rate}\n{_extent(rate, scoring.resamples)}\n\n"
        scoring.report.write_text(head + rate.report(names), encoding="utf-8", newline="\n")


def _warn_of_ids(rate: ErrorRate) -> None:
    """Warn if all lines seem to begin or end with an id, as in Kaldi's text and sclite's trn."""
    pairs = [*zip(rate.hypotheses, rate.references, strict=True)]
    for place, name in ((0, "first"), (-1, "last")):
        words = [{(line.split() or [""])[place] for line in pair} for pair in pairs]
        if len(pairs) >= 20 and len(set[str]().union(*words)) == sum(map(len, words)) == len(pairs):
            logger.warning(
                "the %s word, such as %r, is right in every line and different in each, so it "
                "seems to be an id, but counts as a word; remove it from both files",
                name,
                *words[0],
            )


def _systems(hypotheses: Path, scoring: Options, others: Sequence[Path]) -> list[Path]:
    """The file to score, and the one to compare it with, if any.

    Raises:
        InputError: - is given for more than one of these and the `others`, or a file has the suffix
            of a format of `transcribe` that is not one text a line.
    """
    systems = [*filter(None, (hypotheses, scoring.paired))]
    check_stdin([*systems, *others])
    for path in systems:
        kind = Path(path.name.removesuffix(".gz")).suffix
        if kind.lower() in (".json", ".jsonl", ".srt", ".tsv", ".vtt"):
            raise InputError(
                f"hypotheses must be text, one utterance or sentence a line, but {path} is named "
                f"{kind}; transduce transcribe --format text makes such a file; if it is one, "
                "rename it"
            )
    return systems


def _print_score(
    measure: Measure,
    systems: Sequence[Path],
    references: Sequence[Path],
    reference_texts: Sequence[Lines],
    resamples: int,
) -> Score:
    """Score one system, or compare two; print and return the score of the first."""
    sides = [*map(read_side, systems), *reference_texts]
    check_lines(dict(zip(map(side_name, [*systems, *references]), sides, strict=True)))
    if len(systems) == 1:
        score = measure(*sides, resamples=resamples)
        print(f"{score}\n{_extent(score, resamples)}")
        return score
    comparison = measure.compare(*sides, resamples=resamples)
    for score, path in zip((comparison.system, comparison.other), systems, strict=True):
        print(f"{score}  {side_name(path)}")
    p = comparison.p_value
    print(
        f"{_extent(comparison.system, resamples)}\n"
        f"difference {comparison.difference:+.2f} {comparison.system.name} ({measure.better} is "
        f"better), p = {p:.4f}\n"
        f"If both systems were equally good, the choice of lines alone would give such a lead in "
        f"{100 * p:.1f} % of test sets (paired bootstrap, one-sided).\n"
        f"Below 0.025, the difference is significant at the usual two-sided 5 % level."
    )
    return comparison.system


def _extent(score: Score, resamples: int) -> str:
    return score.description + (
        f"; in brackets the 95 % interval, {resamples} bootstrap resamples" if resamples else ""
    )


def _read_table(path: Path) -> Table:
    rows = [row for _, row in each_record(path)]
    if not rows:
        raise InputError(f"a manifest must have recordings, but {path} has none")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, "") for row in rows] for name in names}


def _read_reference(path: Path, column: str) -> tuple[list[str], Table]:
    """The text, and the table that contains it; an empty table for a text file."""
    if LIST.fullmatch(path.name):
        table = _read_table(path)
        return _cells(table, column, "--column"), table
    if column != TEXT:
        raise InputError(
            f"--column {column} needs a manifest, but {side_name(path)} is not named .tsv, .csv or "
            ".jsonl"
        )
    return read_side(path), {}


def _cells(table: Table, column: str, option: str) -> list[str]:
    """A column, under its own name or the names that other tools use."""
    for name in (column, *NAMES.get(column, ())):
        if name in table:
            return table[name]
    names = ", ".join(table) or "no column, as REF is a text file; add --manifest M.tsv"
    raise InputError(
        f"{option} must name a column of the manifest, but {column!r} is none; it has {names}"
    )


def _labels(table: Table, by: str) -> list[str]:
    """The cells of a column; for "age:10" the spans of ten years, such as "30-39"."""
    column, _, width = (by, "", "") if by in table else by.partition(":")
    cells = _cells(table, column, "--by")
    if not width:
        return [cell or "(blank)" for cell in cells]
    try:
        n = int(width)
        within("[1, inf)", WIDTH=n)
        lows = [int(float(cell) // n) * n if cell else None for cell in cells]
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"--by COLUMN:WIDTH needs numbers in that column, and a whole WIDTH from 1 up, but it "
            f"is {by!r}, and: {error}; leave :WIDTH out"
        ) from error
    return ["(blank)" if low is None else f"{low}-{low + n - 1}" for low in lows]
