"""Minimum Bayes risk: the text that agrees best with all that a model finds likely."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from transduce.score.utility import utilities


class Candidate(Protocol):
    """A text with its natural log-probability."""

    @property
    def text(self) -> str: ...
    @property
    def log_prob(self) -> float: ...


CandidateT = TypeVar("CandidateT", bound=Candidate)


def minimum_bayes_risk(
    candidates: Sequence[CandidateT], measure: str, *, sampled: bool
) -> list[tuple[CandidateT, float]]:
    """Candidates by the expected value of a measure against all of them, best first; error rates are negative.

    Samples count as often as they were drawn, hypotheses of a beam by their probabilities. Candidates of one text are
    one, the likeliest.

    Source: Eikema and Aziz (2020), Is MAP decoding all you need?, section 6, for samples; Kumar and Byrne (2004),
    Minimum Bayes-risk decoding for statistical machine translation, for lists of the n best.
    """
    log_probs = np.array([0.0 if sampled else each.log_prob for each in candidates])
    weights = defaultdict[str, float](float)
    likeliest = dict[str, CandidateT]()
    for each, weight in zip(candidates, np.exp(log_probs - log_probs.max()), strict=True):
        weights[each.text] += float(weight)
        likeliest[each.text] = max(likeliest.get(each.text, each), each, key=lambda one: one.log_prob)
    texts = [*weights]
    expected = utilities(measure, texts) @ (np.array([*weights.values()]) / sum(weights.values()))
    return [(likeliest[texts[i]], float(expected[i])) for i in (-expected).argsort(kind="stable")]
