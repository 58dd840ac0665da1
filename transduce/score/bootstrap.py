"""Draws of the lines of a test set with replacement: how far would a score differ on another one?"""

import numpy as np
from jaxtyping import Float

SEED = 12345
"""Of every bootstrap, as sacrebleu has it; it stands in the signatures."""


def resampled_sums(statistics: Float[np.ndarray, "U K"], resamples: int, seed: int | None) -> Float[np.ndarray, "R K"]:
    """The sums of the lines' statistics over as many lines, drawn with replacement, again and again.

    One draw at a time is kept, and as counts: how often lines of these statistics were drawn. The same number of lines
    and seed give the same draws, which are those of sacrebleu.

    Source: Efron (1979), Bootstrap methods.
    """
    rows, kinds = np.unique(statistics, axis=0, return_inverse=True)  # of many lines, most have statistics of another
    kinds = kinds.ravel().astype(np.int32)  # fewer bytes to look up in any order
    rng, n = np.random.default_rng(seed), len(statistics)
    draws = (np.bincount(kinds[rng.integers(n, size=n)], minlength=len(rows)) for _ in range(resamples))
    return np.array([counts.astype(np.float64) @ rows for counts in draws]).reshape(-1, rows.shape[1])


def p_value(difference: float, leads: Float[np.ndarray, " R"]) -> float:
    """How likely a difference like this one, or a larger one, would be between two equally good systems.

    It is the share of draws whose absolute lead exceeds the mean absolute lead by more than the difference, where one more
    draw counts as such, as sacrebleu computes it; 1 where there is no difference.

    Args:
        difference: of the scores of two systems on the whole test set.
        leads: the same on every bootstrap draw of its lines.
    Source: Koehn (2004), Statistical significance tests for machine translation evaluation.
    """
    if difference == 0:
        return 1.0
    leads = np.abs(leads)
    return float(np.sum(leads - leads.mean() > abs(difference)) + 1) / (len(leads) + 1)
