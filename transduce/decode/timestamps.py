"""Tokens of time between tokens of text, as Whisper writes them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

STEP = 0.02
"""Seconds from one token of time to the next."""
FIRST = 50
"""The last token of time that may come first: a text begins within a second."""


class Timestamps:
    """The rule that tokens of time come in pairs, around every segment of text, and never go back.

    Args:
        timestamp_begin_id: the token of 0 seconds. Tokens of later times follow it; the one before
            it stands for none.
        eos_id: the end; tokens of text have lower ids.

    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision,
    section 4.5; rules of its program.
    """

    def __init__(self, timestamp_begin_id: int, eos_id: int) -> None:
        self.timestamp_begin_id = timestamp_begin_id
        self.eos_id = eos_id

    def __call__(self, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        """Set to -inf, in place, the tokens that may not follow; see `Rule`."""
        zero = self.timestamp_begin_id
        scores[:, zero - 1] = -math.inf
        if tokens.size(1) == 0:
            scores[:, :zero] = -math.inf
            scores[:, zero + FIRST + 1 :] = -math.inf
            return scores
        times = tokens >= zero
        last = times[:, -1]
        paired = last & (
            times[:, -2] if tokens.size(1) > 1 else True
        )  # the one that begins a text counts as a pair
        ids = torch.arange(scores.size(1), device=scores.device)
        # behind a pair comes text; behind one time alone, its other one or the end
        forbidden = paired[:, None] & (ids >= zero) | (last & ~paired)[:, None] & (
            ids < self.eos_id
        )
        earliest = tokens.where(times, zero - 1).amax(dim=1) + (paired | ~last)
        forbidden |= (ids >= zero) & (ids < earliest[:, None])
        scores.masked_fill_(forbidden, -math.inf)
        # a time where all of them together are likelier than any text
        likelier = scores[:, zero:].logsumexp(dim=1) > scores[:, :zero].amax(dim=1)
        scores[:, :zero] = scores[:, :zero].masked_fill(likelier[:, None], -math.inf)
        return scores

    def segments(self, tokens: list[int]) -> list[tuple[float, float | None, list[int]]]:
        """Start, end (seconds; None: that of the sound) and tokens of each segment of text."""
        segments: list[tuple[float, float | None, list[int]]] = []
        start = 0.0
        text = list[int]()
        for token in tokens:
            if token < self.timestamp_begin_id:
                text.append(token)
                continue
            seconds = (token - self.timestamp_begin_id) * STEP
            if text:
                segments.append((start, seconds, text))
            start, text = seconds, []
        return [*segments, (start, None, text)] if text else segments
