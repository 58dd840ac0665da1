"""Word, character and phone error rates, with alignments, a report of errors, and signatures."""

import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Literal, NamedTuple

import jiwer
import numpy as np
from jiwer import CharacterOutput, WordOutput

from transduce.errors import InputError, require
from transduce.score.score import (
    Lines,
    Measure,
    Score,
    Statistics,
    Values,
    bootstrap_signature,
    counted,
)

Unit = Literal["word", "char", "phone"]

NOUN: dict[Unit, str] = {"word": "word", "char": "character", "phone": "phone"}

LINE = 100
"""Columns that an aligned line of the report may fill."""


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
        """Errors in percent of the reference; if that is empty, infinite if anything was inserted,
        else 0."""
        if self.n_reference == 0:
            return math.inf if self.insertions else 0.0
        return 100 * self.total / self.n_reference

    def __str__(self) -> str:
        kinds = ("substitution", "insertion", "deletion")
        return ", ".join(map(counted, self, kinds))


def all_errors(parts: Iterable[Errors]) -> Errors:
    """The errors of several utterances together."""
    return Errors(*map(sum, zip(*parts, strict=True)))


def align(
    hypotheses: Sequence[str], references: Sequence[str], *, unit: Unit = "word"
) -> WordOutput | CharacterOutput:
    """Align every line with the fewest errors (Levenshtein distance, by jiwer).

    White space separates words and phones. Characters are Unicode code points, including a space
    between words; any run of white space counts as one space, and as none at the ends of a line.
    """
    process = jiwer.process_characters if unit == "char" else jiwer.process_words
    rights, outputs = (
        [" ".join(line.split()) for line in lines] for lines in (references, hypotheses)
    )
    return process(rights, outputs)


VARIANTS = str.maketrans(dict.fromkeys("’‘ʼʻ׳`´", "'") | {"İ": "i", "\u0640": ""})
"""Variants of the apostrophe; the Turkish İ; and the Arabic tatweel, which only widens a word."""


@dataclass(frozen=True, kw_only=True)
class ErrorRate(Score):
    """Errors in percent of the reference, over `n` utterances; more than 100 is possible."""

    unit: Unit
    utterances: list[Errors] = field(repr=False)
    """The errors of each utterance."""
    hypotheses: Lines = field(repr=False)
    references: Lines = field(repr=False)
    """Both as they were aligned, after normalization."""

    @property
    def errors(self) -> Errors:
        """The errors of all utterances together."""
        return all_errors(self.utterances)

    @property
    def n_right(self) -> int:
        """The number of utterances without an error."""
        return sum(each.total == 0 for each in self.utterances)

    @property
    def description(self) -> str:
        """The counts of errors, and the number of utterances, in two lines."""
        return (
            f"{self.errors} in {counted(self.errors.n_reference, f'reference {NOUN[self.unit]}')}\n"
            f"over {counted(self.n, 'utterance')}, {self.n_right} "
            f"({100 * self.n_right / self.n:.1f} %) wholly right"
        )

    def table(self, by: str, labels: Sequence[str]) -> str:
        """A table of the utterances by their labels, the group with the highest rate first, and all
        together last.

        Args:
            by: what the labels are, such as "speaker".
            labels: one for each utterance.
        """
        groups: dict[str, list[Errors]] = defaultdict(list)
        for label, errors in zip(labels, self.utterances, strict=True):
            groups[label].append(errors)
        worst_first = sorted(
            groups.items(), key=lambda group: (-all_errors(group[1]).rate, group[0])
        )
        rows: list[tuple[str, ...]] = [
            (by, "utterances", f"{NOUN[self.unit]}s", self.name, "S", "I", "D")
        ]
        for label, members in [*worst_first, ("all", self.utterances)]:
            e = all_errors(members)
            counts = (len(members), e.n_reference, f"{e.rate:.2f}", *e[:3])
            rows.append((label, *map(str, counts)))
        first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            f"{label:<{first}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            for label, *cells in rows
        )

    def report(self, names: Sequence[str], *, most: int = 50, worst: int | None = None) -> str:
        """Utterances with errors, aligned, the worst first; then a table of the frequent errors.

        All utterances are aligned again, as stored alignments would take much memory.

        Args:
            names: one for each utterance.
            most: how many different substitutions, insertions and deletions are listed;
                neighbouring ones count as one.
            worst: how many utterances are shown; None: all that have errors.
        """
        aligned = align(self.hypotheses, self.references, unit=self.unit)
        references, hypotheses = (
            [["␣" if token == " " else token for token in tokens] for tokens in side]
            for side in (aligned.references, aligned.hypotheses)
        )
        with_errors = [i for i, each in enumerate(self.utterances) if each.total]
        with_errors.sort(key=lambda i: (-self.utterances[i].rate, -self.utterances[i].total))
        n_wrong = counted(len(with_errors), "utterance")
        blocks = [f"{n_wrong} of {self.n} with errors, the worst first\n"]
        for i in with_errors[:worst]:
            errors = self.utterances[i]
            rate = f"{errors.rate:.2f} % of {counted(errors.n_reference, NOUN[self.unit])}"
            one = replace(
                aligned,
                references=[references[i]],
                hypotheses=[hypotheses[i]],
                alignments=[aligned.alignments[i]],
            )
            page = jiwer.visualize_alignment(one, show_measures=False, line_width=LINE)
            _, _, lines = page.split("\n", 2)
            blocks.append(
                f"{names[i]}: {rate if references[i] else 'nothing said'} ({errors})\n{lines}"
            )
        everything = replace(aligned, references=references, hypotheses=hypotheses)
        return "\n".join([*blocks, jiwer.visualize_error_counts(everything, top_k=most) + "\n"])


@dataclass(frozen=True, kw_only=True)
class ErrorRateMeasure(Measure):
    """Substitutions, insertions and deletions in percent of the tokens of the reference.

    A blank hypothesis gives only deletions, and a blank reference only insertions. Bootstrap draws
    without a token in the reference are left out of the interval.

    Source: Bisani and Ney (2004), Bootstrap estimates for confidence intervals in ASR performance
    evaluation.
    """

    higher_is_better: bool = False
    unit: Unit
    normalize: bool = False
    """Both sides pass through `normalized` first."""
    english: bool = False
    """Both sides pass through Whisper's normalization of English first (`english_normalizer`)."""

    def __post_init__(self) -> None:
        if self.normalize and self.english:
            raise InputError(
                "text is normalized in one way, but normalize=True and english=True; leave one of "
                "them out"
            )

    def normalized(self, lines: Lines) -> Lines:
        if not self.normalize and not self.english:
            return lines
        normalizer = english_normalizer() if self.english else normalized
        return [normalizer(line) for line in lines]

    def with_references(self, references: Sequence[Lines]) -> "ErrorRateMeasure":
        """Itself.

        Raises:
            InputError: no reference has a token.
        """
        (lines,) = references
        if not any(map(str.strip, lines)):
            after = " after normalization" if self.normalize or self.english else ""
            raise InputError(
                f"an error rate needs at least one {NOUN[self.unit]} in the references, "
                f"but all {len(lines)} are blank{after}; look for a wrong file or column"
            )
        return self

    def statistics(self, hypotheses: Lines, references: Sequence[Lines]) -> Statistics:
        """The fields of the `Errors` of every utterance."""
        pairs = zip(hypotheses, references[0], strict=True)
        each = (align([output], [right], unit=self.unit) for output, right in pairs)
        rows = [(a.substitutions, a.insertions, a.deletions, a.hits) for a in each]
        return np.array(rows, dtype=np.float64)

    def value(self, sums: Values) -> float:
        errors = Errors(*map(int, sums))
        return errors.rate if errors.n_reference else math.nan

    def signature(self, resamples: int) -> str:
        letters = "case:lc|norm:nfkc-nopunct" if self.normalize else "case:mixed|norm:no"
        if self.english:
            letters = f"case:lc|norm:whisper-en-{version('whisper-normalizer')}"
        space = "|space:yes" if self.unit == "char" else ""
        unit = f"{letters}|unit:{self.unit}{space}|jiwer:{version('jiwer')}"
        return bootstrap_signature(resamples) + unit

    def score(
        self, hypotheses: Lines, references: Lines, statistics: Statistics, resamples: int
    ) -> ErrorRate:
        return ErrorRate(
            **vars(super().score(hypotheses, references, statistics, resamples)),
            unit=self.unit,
            utterances=[Errors(*map(int, row)) for row in statistics],
            hypotheses=hypotheses,
            references=references,
        )


def normalized(text: str) -> str:
    """Text without inaudible differences: case, punctuation, the width of letters and spaces.

    Unicode NFKC and lower case; every punctuation mark becomes a space, except that apostrophes
    inside a word stay (’, ‘, ʼ, ʻ, ׳, ` and ´ all become '); white space is squeezed. Format
    characters, such as marks of direction and joiners, are removed. Accents, digits and symbols
    such as $ stay.
    """
    text = "".join(c for c in text.translate(VARIANTS) if unicodedata.category(c) != "Cf")
    text = unicodedata.normalize("NFKC", text).translate(VARIANTS)
    text = unicodedata.normalize("NFKC", text.lower())
    bare = "".join(" " if unicodedata.category(c).startswith("P") and c != "'" else c for c in text)
    return " ".join(filter(None, (word.strip("'") for word in bare.split())))


def english_normalizer() -> Callable[[str], str]:
    """Whisper's normalization of English: case, punctuation, fillers, numbers, spelling.

    Raises:
        InputError: the library whisper-normalizer is not installed.
    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision,
    appendix C.
    """
    feature = "Whisper's normalization of English"
    require("whisper_normalizer", feature, "english", ", or use --normalize")
    from whisper_normalizer.english import EnglishTextNormalizer

    normalizer = EnglishTextNormalizer()

    def normalize(text: str) -> str:
        try:
            return str(normalizer(text))
        except Exception as error:  # it fails on some numbers, in many ways
            raise InputError(
                f"Whisper's normalization fails on {text!r:.60} ({type(error).__name__}); use "
                "--normalize"
            ) from error

    return normalize


wer = ErrorRateMeasure(name="wer", title="WER", unit="word")
"""Words are separated by white space."""

cer = ErrorRateMeasure(name="cer", title="CER", unit="char")
"""Characters are Unicode code points; one space between words counts as a character."""

per = ErrorRateMeasure(name="per", title="PER", unit="phone")
"""Phones are separated by white space."""
