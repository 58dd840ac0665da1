"""Minimum Bayes risk: the text that agrees best with all that a model finds likely."""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from transduce.tasks.config import SearchConfig
from transduce.tasks.search import Output


def chosen(outputs: list[Output], config: SearchConfig) -> list[Output]:
    """The n_best of the outputs of one source, as they are, or those of the highest expected `config.mbr`.

    The expectation is over all outputs: samples count as often as they were drawn, hypotheses of a beam by their
    probabilities. Outputs of one text are one, the likeliest; `score` is the expected value, of error rates negative.

    Source: Eikema and Aziz (2020), Is MAP decoding all you need?, section 6, for samples; Kumar and Byrne (2004),
    Minimum Bayes-risk decoding for statistical machine translation, for lists of the n best.
    """
    if config.mbr == "none":
        return outputs
    from transduce.score.utility import utilities

    if not config.sample:
        outputs = list({tuple(output.tokens): output for output in outputs}.values())
    log_probs = np.array([0.0 if config.sample else output.log_prob for output in outputs])
    weights, likeliest = defaultdict[str, float](float), dict[str, Output]()
    for output, weight in zip(outputs, np.exp(log_probs - log_probs.max()), strict=True):
        weights[output.text] += float(weight)
        likeliest[output.text] = max(likeliest.get(output.text, output), output, key=lambda each: each.log_prob)
    share = np.array([*weights.values()]) / sum(weights.values())
    expected = utilities(config.mbr, [*weights]) @ share
    ranked = [likeliest[[*weights][i]] for i in (-expected).argsort(kind="stable")]
    found = [replace(output, score=float(value)) for output, value in zip(ranked, -np.sort(-expected), strict=True)]
    return (found + found[-1:] * config.n_best)[: config.n_best]
