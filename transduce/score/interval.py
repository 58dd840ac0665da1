"""Bootstrap: how much a score of a test set owes to the choice of its lines."""

import numpy as np
from jaxtyping import Float, Int

SEED = 12345
"""Of every bootstrap here, so that a score comes out the same twice; it stands in the signature."""


def resample_sums(counts: Int[np.ndarray, "U K"], *, resamples: int) -> Int[np.ndarray, "R K"]:
    """The K column sums of U utterances, for each of R = `resamples` draws of U utterances with replacement.

    The same U and R draw the same utterances, so two systems are resampled as pairs.

    Source: Efron (1979), Bootstrap methods.
    """
    rng = np.random.default_rng(SEED)
    draws = (rng.integers(len(counts), size=len(counts)) for _ in range(resamples))  # one at a time: U x R is large
    return np.stack([counts[draw].sum(axis=0) for draw in draws])


def percentile_interval(values: Float[np.ndarray, " R"]) -> tuple[float, float]:
    """The 2.5th and the 97.5th percentile."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
