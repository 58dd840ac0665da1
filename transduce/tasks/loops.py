"""What a search of sound came to, if it ran in a circle."""

from transduce.decode.hypothesis import Hypothesis

LOOP = 24
"""So many tokens of nothing but repetition are a loop: more than anybody's "zero zero zero" has."""

BLOCK = 4
"""What looped is searched again without any n-gram of so many tokens coming twice."""


def loops(hypothesis: Hypothesis) -> bool:
    """Did the search not end by itself, or does a span come three times in a row or more, LOOP tokens in all?"""
    tokens = hypothesis.tokens
    return not hypothesis.finished or any(
        _longest_repetition(tokens, period) >= max(3 * period, LOOP) for period in range(1, len(tokens) // 3 + 1)
    )


def _longest_repetition(tokens: list[int], period: int) -> int:
    """The most tokens in a row of which each is the one `period` before it; 0 where there is none."""
    longest = run = 0
    for before, token in zip(tokens, tokens[period:], strict=False):
        run = run + 1 if token == before else 0
        longest = max(longest, run)
    return longest + period if longest else 0
