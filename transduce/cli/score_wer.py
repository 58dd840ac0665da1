"""`transduce score wer | cer HYP REF`: how good a file of transcripts is, for whom, and where it goes wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from transduce.cli.score import check_hypotheses, check_one_stdin, read_side, side_name, what_it_means
from transduce.score.alignment import NOUN, Unit, counted, error_report
from transduce.score.bleu import check_lines
from transduce.score.wer import ErrorRate, Group, cer, compare, wer

TEXT = "text"

Table = dict[str, list[str]]
"""Columns by their names."""

Hypotheses = Annotated[
    Positional[Path],
    arg(metavar="HYP", help="Transcripts to score, one utterance a line: a file, plain or .gz, or - for stdin."),
]
Reference = Annotated[
    Positional[Path],
    arg(metavar="REF", help="What was said, line by line: a text file, or a manifest (.tsv or .tsv.gz with a header)."),
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to count, and what to show beside the rate."""

    normalize: Annotated[
        bool,
        arg(
            help="Ignore case, punctuation (but for apostrophes inside words) and the width of letters and spaces: "
            "lower case, Unicode NFKC.",
            help_behavior_hint="",
        ),
    ] = False
    by: Annotated[
        str | None,
        arg(
            metavar="COLUMN[:WIDTH]",
            help="A table of the rates by a column of the manifest, such as speaker; age:10 puts ages into tens.",
            help_behavior_hint="",
        ),
    ] = None
    manifest: Annotated[
        Path | None,
        arg(metavar="M.tsv", help="Where --by finds its column, if REF is a text file.", help_behavior_hint=""),
    ] = None
    column: Annotated[str, arg(help="The column of REF that has the text, if REF is a manifest.")] = TEXT
    report: Annotated[
        Path | None,
        arg(
            metavar="FILE",
            help="Write there every utterance with errors, aligned, the worst first, and the frequent errors.",
            help_behavior_hint="",
        ),
    ] = None
    paired: Annotated[
        Path | None,
        arg(metavar="OTHER_HYP", help="Another system's transcripts to compare HYP with.", help_behavior_hint=""),
    ] = None
    resamples: Annotated[int, arg(help="Bootstrap draws for the interval and for --paired; 0 for no interval.")] = 1000


def score_wer(hypotheses: Hypotheses, reference: Reference, scoring: OmitArgPrefixes[Options] = Options()) -> None:
    """Word error rate in percent, lower is better."""
    _score("word", hypotheses, reference, scoring)


def score_cer(hypotheses: Hypotheses, reference: Reference, scoring: OmitArgPrefixes[Options] = Options()) -> None:
    """Character error rate in percent, spaces between words included, lower is better."""
    _score("char", hypotheses, reference, scoring)


def _score(unit: Unit, hypotheses: Path, reference: Path, options: Options) -> None:
    systems = [hypotheses] if options.paired is None else [hypotheses, options.paired]
    check_one_stdin([*systems, reference, *([options.manifest] if options.manifest else [])])
    check_hypotheses(systems)
    right, table = _read_reference(reference, options.column)
    texts = [read_side(path) for path in systems]
    check_lines(dict(zip(map(side_name, [*systems, reference]), [*texts, right], strict=True)))
    if options.manifest is not None:
        table = read_table(options.manifest)
        check_lines({side_name(reference): right, side_name(options.manifest): next(iter(table.values()))})
    labels = [] if options.by is None else _labels(table, options.by, options.manifest or reference)
    measure = {"word": wer, "char": cer}[unit]
    rates = [measure(lines, right, normalize=options.normalize, resamples=options.resamples) for lines in texts]
    verdicts = [what_it_means(compare(rates[0], other, resamples=options.resamples), "lower") for other in rates[1:]]
    counts = _what_was_scored(rates[0], unit, options.resamples)
    for path, rate in zip(systems, rates, strict=True):
        print(rate if options.paired is None else f"{rate}  {side_name(path)}")
    print("\n".join([counts, *verdicts]))
    if options.by is not None:
        print("\n" + _table(options.by, rates[0], labels, unit))
    if options.report is not None:
        ids = [f", {key}" for key in table.get("id", [])] or [""] * rates[0].n
        names = [f"line {i}{key}" for i, key in enumerate(ids, start=1)]
        report = f"{rates[0]}\n{counts}\n\n{error_report(rates[0].alignments, names, unit=unit)}"
        options.report.write_text(report, encoding="utf-8", newline="\n")


def read_table(path: Path) -> Table:
    """A TSV whose first line names the columns.

    Raises:
        ValueError: no line, or a line with more or fewer cells than the first.
    """
    lines = read_side(path)
    if not lines:
        raise ValueError(f"a manifest must begin with a line that names its columns, but {side_name(path)} is empty")
    header, *rows = (line.split("\t") for line in lines)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(
                f"a line of a manifest must have a cell for each of its {len(header)} columns, "
                f"but {side_name(path)}, line {number}, has {len(row)}"
            )
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _read_reference(path: Path, column: str) -> tuple[list[str], Table]:
    """The text, and the table that it stands in: an empty one for a text file."""
    if path.name.endswith((".tsv", ".tsv.gz")):
        table = read_table(path)
        return _cells(table, column, "--column", path), table
    if column != TEXT:
        raise ValueError(f"--column {column} needs a manifest, but {side_name(path)} is not named .tsv or .tsv.gz")
    return read_side(path), {}


def _cells(table: Table, column: str, option: str, path: Path) -> list[str]:
    if column not in table:
        raise ValueError(
            f"{option} must name a column of {side_name(path)}, but {column!r} is none; it has {', '.join(table)}"
        )
    return table[column]


def _labels(table: Table, by: str, path: Path) -> list[str]:
    """The cells of a column; of "age:10" the spans of ten that its numbers lie in, as "30-39"."""
    if not table:
        raise ValueError(f"--by {by} needs a manifest with that column, but REF is a text file; add --manifest M.tsv")
    column, colon, span = (by, "", "") if by in table else by.partition(":")
    cells = _cells(table, column, "--by", path)
    if not colon:
        return [cell or "(blank)" for cell in cells]
    if not span.isdecimal() or int(span) == 0:
        raise ValueError(f"--by {column}:WIDTH needs a whole number from 1 up, but WIDTH={span!r}; try {column}:10")
    return [_span(cell, int(span), column) for cell in cells]


def _span(cell: str, width: int, column: str) -> str:
    try:
        low = int(float(cell) // width) * width if cell else None
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"--by {column}:{width} needs numbers in that column, but one cell is {cell!r}; use --by {column}"
        ) from error
    if low is None:
        return "(blank)"
    return str(low) if width == 1 else f"{low}-{low + width - 1}"


def _what_was_scored(rate: ErrorRate, unit: Unit, resamples: int) -> str:
    interval = f"; in brackets the 95 % interval, {resamples} bootstrap resamples" if resamples else ""
    share = 100 * rate.n_right / rate.n
    return (
        f"{rate.errors} in {counted(rate.errors.n_reference, f'reference {NOUN[unit]}')}\n"
        f"over {counted(rate.n, 'utterance')}, {rate.n_right} ({share:.1f} %) wholly right{interval}"
    )


def _table(by: str, rate: ErrorRate, labels: Sequence[str], unit: Unit) -> str:
    """The worst group first, all together last."""
    rows: list[tuple[str, ...]] = [(by, "utterances", f"{NOUN[unit]}s", rate.name, "S", "I", "D")]
    for group in [*rate.by_group(labels), Group("all", rate.n, rate.errors)]:
        e = group.errors
        counts = (group.n, e.n_reference, f"{e.rate:.2f}", e.substitutions, e.insertions, e.deletions)
        rows.append((group.label, *map(str, counts)))
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{label:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for label, *cells in rows
    )
