"""Word and character error rate; how they are counted is written in the signature that each rate carries."""

import importlib.metadata
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from transduce.score.alignment import NOUN, Alignment, Errors, Unit, align
from transduce.score.bleu import Comparison, Score, check_lines
from transduce.score.interval import SEED, percentile_interval, resample_sums

APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ`´", "'"))


@dataclass(frozen=True)
class Group:
    """The `n` utterances that share a label, and their errors together."""

    label: str
    n: int
    errors: Errors


@dataclass(frozen=True, kw_only=True)
class ErrorRate(Score):
    """Errors in percent of the reference, over `n` utterances; lower is better, and more than 100 is possible."""

    errors: Errors
    alignments: list[Alignment] = field(repr=False)

    @property
    def n_right(self) -> int:
        """Utterances without an error."""
        return sum(each.errors.total == 0 for each in self.alignments)

    def by_group(self, labels: Sequence[str]) -> list[Group]:
        """The utterances sorted into groups, one label for each, and the groups by their rates: the worst first.

        Raises:
            ValueError: there are more labels than utterances, or fewer.
        """
        if len(labels) != self.n:
            raise ValueError(f"every utterance needs a label, but there are {self.n} utterances, {len(labels)} labels")
        members: dict[str, list[Errors]] = defaultdict(list)
        for label, alignment in zip(labels, self.alignments, strict=True):
            members[label].append(alignment.errors)
        groups = [Group(label, len(each), sum(each, Errors())) for label, each in members.items()]
        return sorted(groups, key=lambda group: (-group.errors.rate, group.label))


def wer(
    hypotheses: Sequence[str], references: Sequence[str], *, normalize: bool = False, resamples: int = 1000
) -> ErrorRate:
    """Word error rate: substitutions, insertions and deletions in percent of the words of the reference.

    Line i of both sides is one utterance, and white space separates words. A blank hypothesis is all deletions; words
    beside a blank reference are insertions. With `normalize`, both sides pass through `normalized` first. The interval
    has 95 %: percentiles of `resamples` bootstrap draws of the utterances, with the fixed seed that the signature
    names; draws without a word in the reference are left out, and `resamples=0` leaves out the interval.

    Raises:
        ValueError: no lines, different numbers of lines, no word in any reference, or 0 < `resamples` < 100.
    Source: Bisani and Ney (2004), Bootstrap estimates for confidence intervals in ASR performance evaluation.
    """
    return _rate("word", hypotheses, references, normalize, resamples)


def cer(
    hypotheses: Sequence[str], references: Sequence[str], *, normalize: bool = False, resamples: int = 1000
) -> ErrorRate:
    """Character error rate: the same over Unicode code points. One space between words counts as a character.

    Raises:
        ValueError: as `wer`.
    """
    return _rate("char", hypotheses, references, normalize, resamples)


def compare(system: ErrorRate, other: ErrorRate, *, resamples: int = 1000) -> Comparison:
    """Whether two rates on the same references differ by more than the choice of utterances explains.

    The paired bootstrap; the p-value is one-sided: the share of draws whose lead exceeds the mean lead of all draws by
    at least the lead itself, where one draw more counts as such. `difference` below 0 means that `system` is better.

    Raises:
        ValueError: different references, another way to count, or `resamples` is below 100.
    Source: Bisani and Ney (2004); Koehn (2004), Statistical significance tests for machine translation evaluation.
    """
    if resamples < 100:
        raise ValueError(f"a comparison needs at least 100 resamples, but resamples={resamples}; 1000 is usual")
    if system.signature != other.signature or _references(system) != _references(other):
        raise ValueError(
            "two rates can be compared if they were counted in the same way on the same references, "
            f"but they are {system.signature} over {system.errors.n_reference} and {other.signature} over "
            f"{other.errors.n_reference} in {system.n} and {other.n} utterances; score both against one file"
        )
    difference = system.value - other.value
    if difference == 0:
        return Comparison(system, other, 1.0)
    lead = (_resampled(system, resamples) - _resampled(other, resamples)) * np.sign(difference)
    p_value = (np.sum(lead - lead.mean() >= abs(difference)) + 1) / (len(lead) + 1)
    return Comparison(system, other, float(p_value))


def normalized(text: str) -> str:
    """Text without what a listener cannot hear: case, punctuation, the width of letters and spaces.

    Unicode NFKC and lower case; every punctuation mark becomes a space, except that apostrophes inside a word stay
    (’, ‘, ʼ, ` and ´ all become '); white space is squeezed. Accents, digits and symbols such as $ stay.
    """
    text = unicodedata.normalize("NFKC", text.translate(APOSTROPHES)).translate(APOSTROPHES)
    text = unicodedata.normalize("NFKC", text.lower())
    spoken = "".join(" " if unicodedata.category(c).startswith("P") and c != "'" else c for c in text)
    return " ".join(filter(None, (word.strip("'") for word in spoken.split())))


def _rate(
    unit: Unit, hypotheses: Sequence[str], references: Sequence[str], normalize: bool, resamples: int
) -> ErrorRate:
    check_lines({"hypotheses": hypotheses, "references": references})
    if resamples != 0 and resamples < 100:
        raise ValueError(f"resamples must be 0 (no interval) or at least 100, but resamples={resamples}")
    if normalize:
        hypotheses, references = ([normalized(line) for line in lines] for lines in (hypotheses, references))
    alignments = align(hypotheses, references, unit=unit)
    errors = sum((each.errors for each in alignments), Errors())
    if errors.n_reference == 0:
        after = " after normalization" if normalize else ""
        raise ValueError(
            f"an error rate needs at least one {NOUN[unit]} in the references, "
            f"but all {len(references)} are blank{after}; look for a wrong file or column"
        )
    rate = ErrorRate(
        name="WER" if unit == "word" else "CER",
        value=errors.rate,
        signature=_signature(unit, normalize, resamples),
        n=len(alignments),
        errors=errors,
        alignments=alignments,
    )
    return _with_interval(rate, resamples) if resamples else rate


def _signature(unit: Unit, normalize: bool, resamples: int) -> str:
    bootstrap = f"bs:{resamples}|seed:{SEED}|" if resamples else ""
    letters = "case:lc|norm:nfkc-nopunct" if normalize else "case:mixed|norm:no"
    counted = "unit:word" if unit == "word" else "unit:char|space:yes"
    return f"{bootstrap}{letters}|{counted}|jiwer:{importlib.metadata.version('jiwer')}"


def _with_interval(rate: ErrorRate, resamples: int) -> ErrorRate:
    low, high = percentile_interval(_resampled(rate, resamples))
    return replace(rate, low=low, high=high)


def _resampled(rate: ErrorRate, resamples: int) -> Float[np.ndarray, " R"]:
    """The rate in percent on every draw that has a word in its references."""
    counts = np.array([(each.errors.total, each.errors.n_reference) for each in rate.alignments])
    errors, words = resample_sums(counts, resamples=resamples).T
    return 100 * errors[words > 0] / words[words > 0]


def _references(rate: ErrorRate) -> list[list[str]]:
    return [each.reference for each in rate.alignments]
