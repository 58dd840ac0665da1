"""Minimum Bayes risk: the text that agrees best with all that a model finds likely."""

from collections.abc import Sequence

import numpy as np

from transduce.score.utility import utilities


def minimum_bayes_risk(
    texts: Sequence[str], log_probs: Sequence[float], measure: str, *, sampled: bool
) -> list[tuple[int, float]]:
    """Texts by the expected value of a measure against all; error rates are negative.

    Samples count as often as they were drawn, hypotheses of a beam by their probabilities.

    Returns:
        Of every distinct text, the place of the likeliest that is equal, and the expected value.
    Source: Eikema and Aziz (2020), Is MAP decoding all you need?, section 6, for samples; Kumar and
    Byrne (2004), Minimum Bayes-risk decoding for statistical machine translation, for lists of the
    n best.
    """
    weights = np.ones(len(texts)) if sampled else np.exp(np.array(log_probs) - max(log_probs))
    places: dict[str, list[int]] = {text: [] for text in texts}
    for i, text in enumerate(texts):
        places[text].append(i)
    mass = [sum(weights[same].tolist()) for same in places.values()]
    expected = utilities(measure, [*places]) @ (np.array(mass) / sum(mass))
    likeliest = [max(same, key=log_probs.__getitem__) for same in places.values()]
    return [(likeliest[i], float(expected[i])) for i in (-expected).argsort(kind="stable")]
