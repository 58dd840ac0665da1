"""Hypothesis against reference, word by word: which words were substituted, inserted, deleted; and a report of it."""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jiwer
from jiwer import AlignmentChunk

Unit = Literal["word", "char"]

NOUN: dict[Unit, str] = {"word": "word", "char": "character"}

LINE = 96
"""Columns of the terminal that an aligned line of the report may fill."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """What it takes to make the hypothesis of the reference, in words or in characters; `hits` need nothing."""

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    hits: int = 0

    def __post_init__(self) -> None:
        for name, count in vars(self).items():
            if count < 0:
                raise ValueError(f"a count of errors must be 0 or more, but {name}={count}")

    @property
    def total(self) -> int:
        """The edit distance."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def n_reference(self) -> int:
        return self.hits + self.substitutions + self.deletions

    @property
    def n_hypothesis(self) -> int:
        return self.hits + self.substitutions + self.insertions

    @property
    def rate(self) -> float:
        """Percent of the reference; without one, 0 where nothing was inserted, and infinite where something was."""
        if self.n_reference == 0:
            return math.inf if self.insertions else 0.0
        return 100 * self.total / self.n_reference

    def __add__(self, other: "Errors") -> "Errors":
        return Errors(
            substitutions=self.substitutions + other.substitutions,
            insertions=self.insertions + other.insertions,
            deletions=self.deletions + other.deletions,
            hits=self.hits + other.hits,
        )

    def __str__(self) -> str:
        parts = (self.substitutions, "substitution"), (self.insertions, "insertion"), (self.deletions, "deletion")
        return ", ".join(counted(*part) for part in parts)


class Step(NamedTuple):
    """One column of an alignment: a token of the reference beside one of the hypothesis, or a token beside nothing."""

    reference: str | None
    hypothesis: str | None

    @property
    def mark(self) -> str:
        """S, I, D, or nothing where both are the same."""
        if self.reference is None:
            return "I"
        if self.hypothesis is None:
            return "D"
        return "" if self.reference == self.hypothesis else "S"


@dataclass(frozen=True)
class Alignment:
    """One utterance: the tokens on both sides, and the runs of equal, substituted, inserted and deleted ones."""

    reference: list[str]
    hypothesis: list[str]
    chunks: list[AlignmentChunk]

    @property
    def errors(self) -> Errors:
        runs = {"substitute": 0, "insert": 0, "delete": 0, "equal": 0}
        for chunk in self.chunks:
            runs[chunk.type] += max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
        return Errors(
            substitutions=runs["substitute"], insertions=runs["insert"], deletions=runs["delete"], hits=runs["equal"]
        )

    @property
    def steps(self) -> Iterator[Step]:
        for chunk in self.chunks:
            said = self.reference[chunk.ref_start_idx : chunk.ref_end_idx]
            heard = self.hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
            for i in range(max(len(said), len(heard))):
                yield Step(said[i] if said else None, heard[i] if heard else None)


def align(hypotheses: Sequence[str], references: Sequence[str], *, unit: Unit = "word") -> list[Alignment]:
    """Align every line with the fewest errors (Levenshtein distance, by jiwer); several such alignments may exist.

    Words are what white space separates. Characters are Unicode code points, and a space between words is one of them;
    white space counts as one space however wide it is, and as none at the ends of a line.
    """
    tokens = jiwer.ReduceToListOfListOfWords() if unit == "word" else jiwer.ReduceToListOfListOfChars()
    right, found = ([" ".join(line.split()) for line in lines] for lines in (references, hypotheses))
    aligned = jiwer.process_words(right, found, reference_transform=tokens, hypothesis_transform=tokens)
    return [Alignment(*parts) for parts in zip(aligned.references, aligned.hypotheses, aligned.alignments, strict=True)]


def error_report(alignments: Sequence[Alignment], names: Sequence[str], *, unit: Unit = "word", most: int = 50) -> str:
    """Every utterance with errors, the worst first, reference over hypothesis; then which errors are frequent.

    `names` are the utterances'; of substitutions, insertions and deletions the `most` frequent are listed.
    """
    noun = NOUN[unit]
    wrong = [(name, each, each.errors) for name, each in zip(names, alignments, strict=True) if each.errors.total]
    wrong.sort(key=lambda each: (-each[2].rate, -each[2].total))
    lines = [f"{counted(len(wrong), 'utterance')} of {len(alignments)} with errors, the worst first"]
    for name, alignment, errors in wrong:
        share = f"{errors.rate:.2f} % of {counted(errors.n_reference, noun)}" if alignment.reference else "nothing said"
        lines += ["", f"{name}: {share} ({errors})"]
        lines += [f"    {line}" for block in _blocks(alignment, unit) for line in block]
    seen = {mark: Counter[str]() for mark in "SID"}
    for step in (step for _, alignment, _ in wrong for step in alignment.steps if step.mark):
        sides = [_visible(side) for side in step if side is not None]
        seen[step.mark].update([" → ".join(sides)])
    titles = {"S": "Substitutions (reference → hypothesis)", "I": "Insertions", "D": "Deletions"}
    for mark, title in titles.items():
        lines += ["", f"{title}: {seen[mark].total()}, {len(seen[mark])} different", *_frequent(seen[mark], most)]
    return "".join(f"{line}\n" for line in lines)


def counted(count: int, noun: str) -> str:
    """`2, "word"` as "2 words"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _frequent(counts: Counter[str], most: int) -> list[str]:
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    left = len(ordered) - most
    return [f"{count:6}  {what}" for what, count in ordered[:most]] + [f"        and {left} more"] * (left > 0)


def _blocks(alignment: Alignment, unit: Unit) -> Iterator[list[str]]:
    """Three lines (reference, hypothesis, marks) with every token in its column, cut where they would be too long."""
    between = "  " if unit == "word" else ""
    rows: list[list[str]] = [[], [], []]
    filled = 0
    for step in alignment.steps:
        cells = [_visible(side) if step.mark and side is not None else side for side in step]
        width = max(1, *(_width(cell) for cell in cells if cell is not None))
        if rows[0] and filled + width > LINE:
            yield _labelled(rows, between)
            rows, filled = [[], [], []], 0
        for row, cell in zip(rows, [*cells, step.mark], strict=True):
            text = "*" * width if cell is None else cell
            row.append(text + " " * (width - _width(text)))
        filled += width + len(between)
    yield _labelled(rows, between)


def _labelled(rows: list[list[str]], between: str) -> list[str]:
    labels = ("ref  ", "hyp  ", "     ")
    return [(label + between.join(row)).rstrip() for label, row in zip(labels, rows, strict=True)]


def _visible(token: str) -> str:
    return "␣" if token == " " else token


def _width(text: str) -> int:
    """Columns of a terminal: East Asian letters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)
