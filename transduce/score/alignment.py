"""Hypothesis against reference, token by token: counts and a report of errors."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import jiwer
from jiwer import AlignmentChunk, CharacterOutput, WordOutput

from transduce.score.score import counted

Unit = Literal["word", "char", "phone"]

NOUN: dict[Unit, str] = {"word": "word", "char": "character", "phone": "phone"}

LINE = 100
"""Columns that an aligned line of the report may fill."""

CHUNK = 10_000
"""Lines whose alignments are in memory at a time."""


class Errors(NamedTuple):
    """The edits that turn the reference into the hypothesis, in tokens."""

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    hits: int = 0

    @property
    def total(self) -> int:
        """The edit distance."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def n_reference(self) -> int:
        """Tokens of the reference."""
        return self.hits + self.substitutions + self.deletions

    @property
    def rate(self) -> float:
        """Percent of the reference; without one, infinite if anything was inserted, else 0."""
        if self.n_reference == 0:
            return math.inf if self.insertions else 0.0
        return 100 * self.total / self.n_reference

    def __str__(self) -> str:
        parts = (
            (self.substitutions, "substitution"),
            (self.insertions, "insertion"),
            (self.deletions, "deletion"),
        )
        return ", ".join(counted(*part) for part in parts)


def all_errors(parts: Iterable[Errors]) -> Errors:
    """The errors of several utterances together."""
    return Errors(*map(sum, zip(*parts, strict=True)))


def align(
    hypotheses: Sequence[str], references: Sequence[str], *, unit: Unit = "word"
) -> WordOutput | CharacterOutput:
    """Align every line with the fewest errors (Levenshtein distance, by jiwer).

    Words and phones are what white space separates. Characters are Unicode code points, and a space
    between words is one of them; white space counts as one space however wide it is, and as none at
    the ends of a line.
    """
    process = jiwer.process_characters if unit == "char" else jiwer.process_words
    rights, outputs = (
        [" ".join(line.split()) for line in lines] for lines in (references, hypotheses)
    )
    return process(rights, outputs)


def count_errors(chunks: Sequence[AlignmentChunk]) -> Errors:
    """The errors of one aligned utterance."""
    runs = Counter[str]()
    for chunk in chunks:
        runs[chunk.type] += max(
            chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx
        )
    return Errors(runs["substitute"], runs["insert"], runs["delete"], runs["equal"])


def line_errors(hypotheses: Sequence[str], references: Sequence[str], unit: Unit) -> list[Errors]:
    """The errors of every line."""
    errors = list[Errors]()
    for start in range(0, len(references), CHUNK):
        chunk = slice(start, start + CHUNK)
        errors += map(
            count_errors, align(hypotheses[chunk], references[chunk], unit=unit).alignments
        )
    return errors


def error_report(
    aligned: WordOutput | CharacterOutput,
    names: Sequence[str],
    *,
    unit: Unit = "word",
    most: int = 50,
    worst: int | None = None,
) -> str:
    """Utterances with errors, aligned, the worst first; then a table of the frequent errors.

    Args:
        names: of the utterances, one for each.
        most: how many different substitutions, insertions and deletions are listed; neighbouring
            ones count as one.
        worst: how many utterances are shown; None: all that have errors.
    """
    errors = [count_errors(chunks) for chunks in aligned.alignments]
    wrong = [i for i, each in enumerate(errors) if each.total]
    wrong.sort(key=lambda i: (-errors[i].rate, -errors[i].total))
    references, hypotheses = (
        [["␣" if token == " " else token for token in tokens] for tokens in side]
        for side in (aligned.references, aligned.hypotheses)
    )
    blocks = [f"{counted(len(wrong), 'utterance')} of {len(errors)} with errors, the worst first\n"]
    for i in wrong[:worst]:
        rate = f"{errors[i].rate:.2f} % of {counted(errors[i].n_reference, NOUN[unit])}"
        one = replace(
            aligned,
            references=[references[i]],
            hypotheses=[hypotheses[i]],
            alignments=[aligned.alignments[i]],
        )
        _, _, lines = jiwer.visualize_alignment(one, show_measures=False, line_width=LINE).split(
            "\n", 2
        )
        blocks.append(
            f"{names[i]}: {rate if references[i] else 'nothing said'} ({errors[i]})\n{lines}"
        )
    everything = replace(aligned, references=references, hypotheses=hypotheses)
    return "\n".join([*blocks, jiwer.visualize_error_counts(everything, top_k=most) + "\n"])
