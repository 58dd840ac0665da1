"""Bootstrap: how far would a score differ on another test set?"""

import numpy as np
from jaxtyping import Float

SEED = 12345
"""Seed of every bootstrap, as in sacrebleu; signatures contain it."""


def resampled_sums(
    statistics: Float[np.ndarray, "U K"], resamples: int, seed: int | None
) -> Float[np.ndarray, "R K"]:
    """The sums of the lines' statistics over draws of as many lines with replacement.

    One draw at a time is in memory, as counts: how often lines with these statistics were drawn.
    The same number of lines and seed give the same draws, which are those of sacrebleu.

    Source: Efron (1979), Bootstrap methods.
    """
    rows, kinds = np.unique(
        statistics, axis=0, return_inverse=True
    )  # most of many lines share their statistics
    kinds = kinds.ravel().astype(np.int32)
    rng, n = np.random.default_rng(seed), len(statistics)
    draws = (
        np.bincount(kinds[rng.integers(n, size=n)], minlength=len(rows)) for _ in range(resamples)
    )
    return np.array([counts.astype(np.float64) @ rows for counts in draws]).reshape(
        -1, rows.shape[1]
    )


def p_value(difference: float, leads: Float[np.ndarray, " R"]) -> float:
    """The probability of such a difference, or a larger one, between two equally good systems.

    It is the share of draws whose absolute lead exceeds the mean absolute lead by more than the
    difference, with one draw added to both, as in sacrebleu; 1 where there is no difference.

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
