"""Batches of windows of a text, which is one stream of token ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int

from transduce.config import at_least
from transduce.data.batch import Batch, Batches
from transduce.data.text.shards import Stream
from transduce.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Training data: batches of `batch_size` windows of `context` tokens, from random places in the stream.

    The places are a function of (seed, epoch, batch). An epoch has batches_per_epoch batches, or as many as there are
    tokens for; as the places are random, it does not see every token exactly once.
    """

    stream: Stream
    context: int
    batch_size: int
    seed: int = 0
    batches_per_epoch: int | None = None

    def __post_init__(self) -> None:
        at_least(1, context=self.context, batch_size=self.batch_size)
        if len(self.stream) <= self.context:
            raise InputError(
                f"a window takes context + 1 tokens, but context={self.context} and the text has {len(self.stream)}; "
                "give more text or make the context shorter"
            )

    def __str__(self) -> str:
        n = len(self.epoch(0))
        return f"{len(self.stream):,} tokens, {n:,} batches of {self.batch_size} x {self.context} an epoch"

    def epoch(self, n: int) -> Batches:
        """The batches of epoch n."""

        def batch(i: int) -> Batch:
            rng = np.random.default_rng((self.seed, n, i))
            places = rng.integers(len(self.stream) - self.context, size=self.batch_size)
            return window_batch([self.stream.read(place, place + self.context + 1) for place in places.tolist()])

        return Batches(self.batches_per_epoch or max(1, len(self.stream) // (self.batch_size * self.context)), batch)


class HeldOut(Batches):
    """Windows side by side: every token but the first is predicted once. The last window may be shorter.

    Args:
        n_windows: take only so many whole windows, evenly spread; None takes all.
    """

    def __init__(self, stream: Stream, *, context: int, batch_size: int, n_windows: int | None = None) -> None:
        if len(stream) < 2:
            raise InputError(f"a validation text needs two tokens or more, but it has {len(stream)}; give more text")
        whole = (len(stream) - 1) // context
        n = whole if n_windows is None else min(n_windows, whole)
        starts = np.arange(n) * (whole // max(n, 1)) * context
        rows = [starts[i : i + batch_size].tolist() for i in range(0, len(starts), batch_size)]
        if n == whole and whole * context < len(stream) - 1:
            rows.append([whole * context])

        def batch(i: int) -> Batch:
            return window_batch([stream.read(s, min(s + context + 1, len(stream))) for s in rows[i]])

        super().__init__(len(rows), batch)


def window_batch(rows: Sequence[Int[np.ndarray, " _"]]) -> Batch:
    """One batch of windows of equal length; in each, all tokens but the first are predicted."""
    ids = torch.from_numpy(np.stack(rows))
    n_rows, context = len(rows), ids.size(1) - 1
    return Batch(
        target_in=ids[:, :-1].contiguous(),
        target_out=ids[:, 1:].contiguous(),
        target_lengths=torch.full((n_rows,), context),
        n_tokens=n_rows * context,
    )
