"""BLEU, chrF and TER by sacrebleu: how they are counted is written in the signature that each score carries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

MetricName = Literal["bleu", "chrf", "ter"]


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


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same lines; `p_value` is one-sided: the chance of such a lead between equally good ones."""

    system: Score
    other: Score
    p_value: float

    @property
    def difference(self) -> float:
        """What `system` scores above `other`."""
        return self.system.value - self.other.value


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    resamples: int = 1000,
) -> Score:
    """Corpus BLEU of plain, untokenized text, 0 to 100, higher is better: 13a tokens, exponential smoothing.

    `hypotheses` has one string per line, and each of `references` is another whole translation, line by line; a blank
    hypothesis counts against the score. The interval is sacrebleu's: `resamples` bootstrap draws of the lines, from
    the 2.5th to the 97.5th percentile, centred on their mean; 0 leaves it out. The seed is sacrebleu's own (12345, or
    the environment's SACREBLEU_SEED).

    Raises:
        ValueError: no lines, no references, different numbers of lines, or 0 < `resamples` < 100.
    Source: Papineni et al. (2002), BLEU; Post (2018), A call for clarity; Koehn (2004) for the interval.
    """
    return _score("bleu", hypotheses, references, lowercase, resamples)


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    resamples: int = 1000,
) -> Score:
    """chrF2, 0 to 100, higher is better: the F-score of character 1- to 6-grams. The rest is as in `bleu`.

    Raises:
        ValueError: as `bleu`.
    Source: Popović (2015), chrF.
    """
    return _score("chrf", hypotheses, references, lowercase, resamples)


def ter(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    resamples: int = 1000,
) -> Score:
    """Translation edit rate, edits per 100 reference words, lower is better. The rest is as in `bleu`.

    Case counts unless `lowercase`, as in `bleu`; the sacrebleu command ignores case here unless told otherwise.

    Raises:
        ValueError: as `bleu`.
    Source: Snover et al. (2006), A study of translation edit rate.
    """
    return _score("ter", hypotheses, references, lowercase, resamples)


def compare(
    hypotheses: Sequence[str],
    other: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metric: MetricName = "bleu",
    lowercase: bool = False,
    resamples: int = 1000,
) -> Comparison:
    """Whether `hypotheses` and `other` differ by more than the choice of lines explains: paired bootstrap.

    Raises:
        ValueError: as `bleu`, or `resamples` is below 100.
    Source: Koehn (2004), Statistical significance tests for machine translation evaluation.
    """
    check_lines({"hypotheses": hypotheses, "other": other} | _numbered(references))
    if resamples < 100:
        raise ValueError(f"a comparison needs at least 100 resamples, but resamples={resamples}; 1000 is usual")
    # sacrebleu tests every later system against the first one
    (baseline, _), (system, p_value) = _bootstrap(metric, [other, hypotheses], references, lowercase, resamples)
    # it counts the resamples that exceed the difference, and so calls two equal systems different (p = 0.001)
    return Comparison(system, baseline, 1.0 if system.value == baseline.value else p_value)


def check_lines(sides: Mapping[str, Sequence[str]]) -> None:
    """See that line k of one side can belong to line k of every other; the keys name the sides in the error.

    Raises:
        ValueError: a side is one string or empty, or their numbers of lines differ.
    """
    (first, lines), *_ = sides.items()
    for name, side in sides.items():
        if isinstance(side, str) or not side:
            found = f"one string, {side[:40]!r}" if side else "empty"
            raise ValueError(f"every side of a score must be a list of at least one line, but {name} is {found}")
        if len(side) != len(lines):
            raise ValueError(
                f"hypotheses and references must have the same number of lines, but {first} has {len(lines)} "
                f"and {name} has {len(side)}; look for lines lost, added or split on the way"
            )


def _numbered(references: Sequence[Sequence[str]]) -> dict[str, Sequence[str]]:
    if not references:
        raise ValueError("a score needs at least one reference translation, but references is empty")
    return {f"reference {i}": lines for i, lines in enumerate(references, start=1)}


def _metric(name: MetricName, lowercase: bool) -> Metric:
    if name == "bleu":
        return BLEU(lowercase=lowercase)
    return CHRF(lowercase=lowercase) if name == "chrf" else TER(case_sensitive=not lowercase)


def _score(
    name: MetricName, hypotheses: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool, resamples: int
) -> Score:
    check_lines({"hypotheses": hypotheses} | _numbered(references))
    if resamples != 0 and resamples < 100:
        raise ValueError(f"resamples must be 0 (no interval) or at least 100, but resamples={resamples}")
    if resamples:
        ((score, _),) = _bootstrap(name, [hypotheses], references, lowercase, resamples)
        return score
    metric = _metric(name, lowercase)
    got = metric.corpus_score(hypotheses, references)
    return Score(got.name, got.score, str(metric.get_signature()), len(hypotheses))


def _bootstrap(
    name: MetricName,
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    lowercase: bool,
    resamples: int,
) -> list[tuple[Score, float]]:
    """Each system's score with its interval, and the p-value of its difference from the first (1 for the first)."""
    named = [(str(i), system) for i, system in enumerate(systems)]
    signatures, results = PairedTest(named, {name: _metric(name, lowercase)}, references, "bs", n_samples=resamples)()
    ((label, signature),) = signatures.items()
    found = []
    for result in results[label]:
        assert isinstance(result, Result) and result.mean is not None and result.ci is not None
        low, high = float(result.mean - result.ci), float(result.mean + result.ci)
        score = Score(label, result.score, str(signature), len(systems[0]), low, high)
        found.append((score, 1.0 if result.p_value is None else result.p_value))
    return found
