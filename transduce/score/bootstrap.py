"""Draws of the lines of a test set with replacement: how far would a score differ on another one?"""

import numpy as np
from jaxtyping import Float


def resampled_sums(statistics: Float[np.ndarray, "U K"], resamples: int, seed: int | None) -> Float[np.ndarray, "R K"]:
    """The sums of the lines' statistics over as many lines, drawn with replacement, again and again.

    One draw at a time is kept, and as counts: how often each line was drawn. The same number of lines and seed give the
    same draws, which are those of sacrebleu.

    Source: Efron (1979), Bootstrap methods.
    """
    rng, n, columns = np.random.default_rng(seed), len(statistics), np.asfortranarray(statistics)
    draws = (np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(resamples))
    return np.stack([counts.astype(np.float64) @ columns for counts in draws])
