"""Scores, comparisons and the bootstrap; a measure computes a score from the sums of line
statistics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from transduce.config import within
from transduce.errors import InputError

SEED = 12345
"""Seed of every bootstrap, as in sacrebleu; signatures contain it."""


def resampled_sums(
    statistics: Float[np.ndarray, "U K"], resamples: int, seed: int
) -> Float[np.ndarray, "R K"]:
    """The sums of the lines' statistics over draws of as many lines with replacement.

    One draw at a time is in memory, as counts: how often each line was drawn.
    The same number of lines and seed give the same draws, which are those of sacrebleu.

    Source: Efron (1979), Bootstrap methods.
    """
    rng, n = np.random.default_rng(seed), len(statistics)
    draws = (np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(resamples))
    return np.array([counts.astype(np.float64) @ statistics for counts in draws])


def p_value(difference: float, leads: Float[np.ndarray, " R"]) -> float:
    """The probability of such a difference, or a larger one, between two equally good systems.

    It is the share of draws whose absolute lead exceeds the mean absolute lead by more than the
    difference, with one draw added to both, as in sacrebleu; 1 if there is no difference.

    Args:
        difference: between the scores of two systems on the whole test set.
        leads: the differences on every bootstrap draw of its lines.
    Source: Koehn (2004), Statistical significance tests for machine translation evaluation.
    """
    if difference == 0:
        return 1.0
    leads = np.abs(leads)
    return float(np.sum(leads - leads.mean() > abs(difference)) + 1) / (len(leads) + 1)


def bootstrap_signature(resamples: int) -> str:
    """The first fields of the signature of a score with an interval; nothing without one."""
    return f"bs:{resamples}|seed:{SEED}|" if resamples else ""


Lines = Sequence[str]
"""One text per line."""

Statistics = Float[np.ndarray, "n k"]
Values = Float[np.ndarray, " k"]


@dataclass(frozen=True)
class Score:
    """A score over `n` lines; `low` and `high` are the bounds of its 95 % interval, if it has
    one."""

    name: str
    value: float
    signature: str
    n: int
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.name} {self.value:.2f}{interval} {self.signature}"

    @property
    def description(self) -> str:
        """The number of lines, in words."""
        return f"over {counted(self.n, 'line')}"


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same lines; p is one-sided: the probability of such a lead between equal
    systems."""

    system: Score
    other: Score
    p_value: float

    @property
    def difference(self) -> float:
        """The score of `system` minus that of `other`."""
        return self.system.value - self.other.value


@dataclass(frozen=True, kw_only=True)
class Measure(ABC):
    """A way to score hypotheses against references, as a value that can be passed on."""

    name: str
    """How a user names it, such as "bleu"."""
    title: str
    """How it is printed, such as "BLEU"."""
    higher_is_better: bool = True

    @property
    def better(self) -> str:
        """Which of two scores is the better one: "higher" or "lower"."""
        return "higher" if self.higher_is_better else "lower"

    def with_sources(self, sources: Lines | None) -> "Measure":
        """The measure for outputs of these sources (None: sound); itself, if it reads none."""
        return self

    def with_references(self, references: Sequence[Lines]) -> "Measure":
        """The measure for outputs with these references; itself, if it does not depend on them.

        Raises:
            InputError: the references cannot be used.
        """
        return self

    def normalized(self, lines: Lines) -> Lines:
        """The lines in the form in which they are compared."""
        return lines

    @abstractmethod
    def statistics(self, hypotheses: Lines, references: Sequence[Lines]) -> Statistics:
        """The numbers of every line that are summed, such as matching n-grams."""

    @abstractmethod
    def value(self, sums: Values) -> float:
        """The score of summed statistics; nan where it is not defined."""

    @abstractmethod
    def signature(self, resamples: int) -> str:
        """How the score was computed last; `resamples` is 0 without an interval."""

    def interval(self, values: Values) -> tuple[float, float]:
        """The 95 % interval of scores of bootstrap draws: their 2.5th and 97.5th percentiles."""
        low, high = np.quantile(values, (0.025, 0.975)).tolist()
        return low, high

    def score(
        self, hypotheses: Lines, references: Lines, statistics: Statistics, resamples: int
    ) -> Score:
        """The score of all lines together, without its interval."""
        name = self.title.partition(",")[0]
        value = self.value(statistics.sum(axis=0))
        return Score(name, value, self.signature(resamples), len(hypotheses))

    def __call__(
        self, hypotheses: Lines, references: Lines, *more: Lines, resamples: int = 1000
    ) -> Score:
        """The score of all lines together, with its 95 % interval.

        Args:
            hypotheses: one string per line; a blank one counts against the score.
            references: the correct text of each line.
            more: other references, for measures that take several.
            resamples: bootstrap draws of the lines for the interval; 0 leaves the interval out.

        Raises:
            InputError: no lines, different numbers of lines, or 0 < `resamples` < 100.
        """
        ((score, _),) = self._scores({"hypotheses": hypotheses}, [references, *more], resamples)
        return score

    def compare(
        self,
        hypotheses: Lines,
        other: Lines,
        references: Lines,
        *more: Lines,
        resamples: int = 1000,
    ) -> Comparison:
        """Test by paired bootstrap whether two systems differ by more than the choice of lines.

        Raises:
            InputError: as for a score, or `resamples` is below 100.
        Source: Koehn (2004), Statistical significance tests for machine translation evaluation.
        """
        systems = {"hypotheses": hypotheses, "other": other}
        (system, ours), (rival, theirs) = self._scores(systems, [references, *more], resamples)
        return Comparison(system, rival, p_value(system.value - rival.value, ours - theirs))

    def _scores(
        self, systems: Mapping[str, Lines], references: Sequence[Lines], resamples: int
    ) -> list[tuple[Score, Values]]:
        """Each system's score, and its scores on the same bootstrap draws of the lines."""
        check_resamples(resamples, compared=len(systems) > 1)
        several = len(references) > 1
        named = {
            f"reference {i}" if several else "references": lines
            for i, lines in enumerate(references, start=1)
        }
        check_lines({**systems, **named})
        references = [self.normalized(lines) for lines in references]
        measure = self.with_references(references)
        texts = [self.normalized(lines) for lines in systems.values()]
        statistics = [measure.statistics(lines, references) for lines in texts]
        scores = [
            measure.score(lines, references[0], rows, resamples)
            for lines, rows in zip(texts, statistics, strict=True)
        ]
        if not resamples:
            return [(score, np.empty(0)) for score in scores]
        sums = resampled_sums(np.hstack(statistics), resamples, SEED)
        results = []
        for score, drawn in zip(scores, np.split(sums, len(systems), axis=1), strict=True):
            values = np.array([measure.value(each) for each in drawn])
            values = values[~np.isnan(values)]
            low, high = measure.interval(values)
            results.append((replace(score, low=low, high=high), values))
        return results


def counted(count: int, noun: str) -> str:
    """The number and its noun: (2, "word") is "2 words"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def check_lines(sides: Mapping[str, Lines]) -> None:
    """Check that line k of one side can belong to line k of every other; keys name sides.

    Raises:
        InputError: a side is one string or empty, or the numbers of lines differ.
    """
    (first, lines), *_ = sides.items()
    for name, side in sides.items():
        if isinstance(side, str) or not side:
            actual = f"is one string, {side[:40]!r}" if side else "has none"
            raise InputError(f"a score needs at least one line, but {name} {actual}")
        if len(side) != len(lines):
            raise InputError(
                f"hypotheses and references must have the same number of lines, but {first} has "
                f"{len(lines)} and {name} has {len(side)}; look for lines lost, added or split on "
                "the way"
            )


def check_resamples(resamples: int, *, compared: bool) -> None:
    """Check a number of bootstrap draws.

    Raises:
        InputError: it is below 100, and not the 0 that leaves out the interval of a single score.
    """
    within("[0, 1000000]", resamples=resamples)
    if resamples < 100 and (compared or resamples != 0):
        zero = "" if compared else ", or 0 for no interval"
        raise InputError(
            f"resamples must be at least 100{zero}, but resamples={resamples}; 1000 is usual"
        )
