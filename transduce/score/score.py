"""What a score, a comparison of two systems and a measure are."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transduce.config import within
from transduce.errors import InputError

Lines = Sequence[str]
"""One text per line."""


@dataclass(frozen=True)
class Score:
    """A score over `n` lines; `low` and `high` end its 95 % interval and are None where none was asked for."""

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
    def extent(self) -> str:
        """What was scored, in words."""
        return f"over {counted(self.n, 'line')}"


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same lines; `p_value` is one-sided: the chance of such a lead between equally good ones."""

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
    """How it is asked for, such as "bleu"."""
    title: str
    """How it is printed, such as "BLEU"."""
    description: str
    """What is counted, in a few words."""
    higher_is_better: bool = True

    @property
    def better(self) -> str:
        """Which of two scores is the better one: "higher" or "lower"."""
        return "higher" if self.higher_is_better else "lower"

    def of(self, sources: Lines | None) -> "Measure":
        """The measure for outputs of these sources, None being sound: itself, where sources are not looked at."""
        return self

    @abstractmethod
    def __call__(self, hypotheses: Lines, references: Lines, *, resamples: int = 1000) -> Score:
        """The score of all lines together, with its 95 % interval.

        Args:
            hypotheses: one string per line; a blank one counts against the score.
            references: what each line should be.
            resamples: bootstrap draws of the lines for the interval; 0 leaves the interval out.

        Raises:
            InputError: no lines, different numbers of lines, or 0 < `resamples` < 100.
        """

    @abstractmethod
    def compare(self, hypotheses: Lines, other: Lines, references: Lines, *, resamples: int = 1000) -> Comparison:
        """Tell whether `hypotheses` and `other` differ by more than the choice of lines explains: paired bootstrap.

        Raises:
            InputError: as for a score, or `resamples` is below 100.
        Source: Koehn (2004), Statistical significance tests for machine translation evaluation.
        """


def counted(count: int, noun: str) -> str:
    """The number and its noun: (2, "word") is "2 words"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def check_lines(sides: Mapping[str, Lines]) -> None:
    """Check that line k of one side can belong to line k of every other; the keys name the sides in the error.

    Raises:
        InputError: a side is one string or empty, or the numbers of lines differ.
    """
    (first, lines), *_ = sides.items()
    for name, side in sides.items():
        if isinstance(side, str) or not side:
            found = f"one string, {side[:40]!r}" if side else "empty"
            raise InputError(f"every side of a score must be a list of at least one line, but {name} is {found}")
        if len(side) != len(lines):
            raise InputError(
                f"hypotheses and references must have the same number of lines, but {first} has {len(lines)} "
                f"and {name} has {len(side)}; look for lines lost, added or split on the way"
            )


def check_resamples(resamples: int, *, compared: bool) -> None:
    """Check a number of bootstrap draws.

    Raises:
        InputError: it is below 100, and not the 0 that leaves out the interval of a single score.
    """
    within("[0, 1000000]", resamples=resamples)
    if resamples < 100 and (compared or resamples != 0):
        zero = "" if compared else ", or 0 for no interval"
        raise InputError(f"resamples must be at least 100{zero}, but resamples={resamples}; 1000 is usual")
