"""Results of a search, and how hypotheses of different lengths are compared."""

from dataclasses import dataclass

LOOP = 24
"""Tokens of repetition that make a loop: more than anybody's "zero zero zero" has."""


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]
    """Without BOS and EOS."""
    log_prob: float
    """Natural log of the product over all tokens, EOS included where it was reached; nan where it
    was not computed. Where the scorer is additive, the sum of its scores."""
    score: float
    """log_prob / length_penalty, by which beam search ranks."""
    finished: bool
    """False when the length bound cut it before EOS."""


def length_penalty(length: int, alpha: float, offset: float = 5.0) -> float:
    """((offset + length) / (offset + 1)) ** alpha; `length` counts EOS, and alpha = 0 is off.

    Source: Wu et al. (2016), Google's neural machine translation system, section 7.
    """
    return ((offset + length) / (offset + 1)) ** alpha


def loops(hypothesis: Hypothesis) -> bool:
    """Whether it was cut, or a span comes three times in a row or more, in LOOP tokens."""
    tokens = hypothesis.tokens
    return not hypothesis.finished or any(
        _longest_repetition(tokens, period) >= max(3 * period, LOOP)
        for period in range(1, len(tokens) // 3 + 1)
    )


def _longest_repetition(tokens: list[int], period: int) -> int:
    """The longest run of tokens that repeat with this period; 0 where there is none."""
    longest = run = 0
    for before, token in zip(tokens, tokens[period:], strict=False):
        run = run + 1 if token == before else 0
        longest = max(longest, run)
    return longest + period if longest else 0
