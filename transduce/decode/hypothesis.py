"""What search returns, and how hypotheses of different lengths are compared."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]
    """Without BOS and EOS."""
    log_prob: float
    """Natural log of the product over all tokens, EOS included where it was reached; nan where it was not asked for.
    Where the scorer is additive, the sum of its scores."""
    score: float
    """log_prob / length_penalty: what beam search ranks by."""
    finished: bool
    """False when the length bound cut it before EOS."""


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6) ** alpha; `length` counts EOS. alpha = 0 compares plain log-probabilities.

    Source: Wu et al. (2016), Google's neural machine translation system, section 7.
    """
    return ((5 + length) / 6) ** alpha
