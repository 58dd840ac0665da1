"""Word, character and phone error rate; the signature of each rate says how it was computed."""

import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np
from jiwer import CharacterOutput, WordOutput

from transduce.errors import InputError
from transduce.score.alignment import NOUN, Errors, Unit, align, all_errors, line_errors
from transduce.score.bootstrap import bootstrap_signature
from transduce.score.score import Lines, Measure, Score, Statistics, Values, counted

APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ`´", "'"))


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
    def aligned(self) -> WordOutput | CharacterOutput:
        """The alignment of every utterance, computed anew, as it takes much memory."""
        return align(self.hypotheses, self.references, unit=self.unit)

    @property
    def errors(self) -> Errors:
        """The errors of all utterances together."""
        return all_errors(self.utterances)

    @property
    def n_right(self) -> int:
        """The number of utterances without an error."""
        return sum(each.total == 0 for each in self.utterances)

    @property
    def extent(self) -> str:
        """The counts of errors, and the number of utterances, in two lines."""
        return (
            f"{self.errors} in {counted(self.errors.n_reference, f'reference {NOUN[self.unit]}')}\n"
            f"over {counted(self.n, 'utterance')}, {self.n_right} "
            f"({100 * self.n_right / self.n:.1f} %) wholly right"
        )

    def by_group(self, labels: Sequence[str]) -> dict[str, list[Errors]]:
        """The errors of the utterances by their labels, the group with the highest rate first.

        Raises:
            InputError: there are more labels than utterances, or fewer.
        """
        groups: dict[str, list[Errors]] = defaultdict(list)
        for label, errors in zip(labels, self.utterances, strict=True):
            groups[label].append(errors)
        return dict(
            sorted(groups.items(), key=lambda group: (-all_errors(group[1]).rate, group[0]))
        )

    def table(self, by: str, labels: Sequence[str]) -> str:
        """A table of the groups, the worst first, and all together last.

        Args:
            by: what the labels are, such as "speaker".
            labels: of the utterances, one for each.
        """
        rows: list[tuple[str, ...]] = [
            (by, "utterances", f"{NOUN[self.unit]}s", self.name, "S", "I", "D")
        ]
        for label, members in [*self.by_group(labels).items(), ("all", self.utterances)]:
            e = all_errors(members)
            counts = (
                len(members),
                e.n_reference,
                f"{e.rate:.2f}",
                e.substitutions,
                e.insertions,
                e.deletions,
            )
            rows.append((label, *map(str, counts)))
        first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            f"{label:<{first}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            for label, *cells in rows
        )


@dataclass(frozen=True, kw_only=True)
class ErrorRateMeasure(Measure):
    """Substitutions, insertions and deletions in percent of the tokens of the reference.

    A blank hypothesis is all deletions; tokens beside a blank reference are insertions. Bootstrap
    draws without a token in the reference are left out of the interval.

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
        return np.array(line_errors(hypotheses, references[0], self.unit), dtype=np.float64)

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

    def __call__(
        self, hypotheses: Lines, references: Lines, *more: Lines, resamples: int = 1000
    ) -> ErrorRate:
        """The rate of all utterances together, with its 95 % interval; see `Measure`."""
        rate = super().__call__(hypotheses, references, *more, resamples=resamples)
        assert isinstance(rate, ErrorRate)
        return rate


def normalized(text: str) -> str:
    """Text without inaudible differences: case, punctuation, the width of letters and spaces.

    Unicode NFKC and lower case; every punctuation mark becomes a space, except that apostrophes
    inside a word stay (’, ‘, ʼ, ` and ´ all become '); white space is squeezed. Accents, digits and
    symbols such as $ stay.
    """
    text = unicodedata.normalize("NFKC", text.translate(APOSTROPHES)).translate(APOSTROPHES)
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
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError as error:
        raise InputError(
            "Whisper's normalization of English needs the library whisper-normalizer, which is not "
            "installed; "
            "pip install whisper-normalizer, or use --normalize"
        ) from error
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


wer = ErrorRateMeasure(
    name="wer", title="WER", description="word error rate in percent", unit="word"
)
"""Words are separated by white space."""

cer = ErrorRateMeasure(
    name="cer", title="CER", description="character error rate in percent", unit="char"
)
"""Characters are Unicode code points; one space between words counts as a character."""

per = ErrorRateMeasure(
    name="per", title="PER", description="phone error rate in percent", unit="phone"
)
"""Phones are separated by white space."""
