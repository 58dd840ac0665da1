"""Sequences of many lengths to rectangles of few, in an order that is a function of (seed, epoch)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

IGNORE = -100
"""In target_out: no prediction is asked for here (torch's own value for it)."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one update sees. Lengths say what is real; the rest is padding, to the right.

    target_in begins with BOS, target_out ends with EOS, both of target_lengths.
    """

    target_in: Int[Tensor, "B T"]
    target_out: Int[Tensor, "B T"]
    target_lengths: Int[Tensor, " B"]
    source: Shaped[Tensor, "B S *F"] | None = None
    source_lengths: Int[Tensor, " B"] | None = None
    n_tokens: int
    """Target tokens to predict, EOS included, padding not."""

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device.

        To a GPU it is copied without waiting, from pinned memory; from any other, CUDA makes the caller wait. Pinning
        takes time too, so call this in a thread, as the trainer does.
        """
        pinned = device.type == "cuda"
        tensors = {f.name: t for f in fields(self) if isinstance(t := getattr(self, f.name), torch.Tensor)}
        moved: dict[str, Any] = {
            name: (t.pin_memory() if pinned and t.device.type == "cpu" else t).to(device, non_blocking=pinned)
            for name, t in tensors.items()
        }
        return replace(self, **moved)


def pad(rows: Sequence[Sequence[int]], value: int) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """Rows of ids to a rectangle, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), value, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return torch.from_numpy(ids), torch.from_numpy(lengths)


def pad_frames(rows: Sequence[Float[Tensor, "_ F"]]) -> tuple[Float[Tensor, "B S F"], Int[Tensor, " B"]]:
    """Rows of vectors to one box, filled up with zeros, and their lengths."""
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True), torch.tensor([len(row) for row in rows])


def bucket(lengths: Int[np.ndarray, "n k"], tokens_per_batch: int) -> list[Int[np.ndarray, " _"]]:
    """Cut sequences, sorted by length, into batches with rows * longest <= tokens_per_batch on every side.

    A sequence longer than the budget is a batch of its own.

    Args:
        lengths: of every example its k lengths (source and target).
    """
    order = np.lexsort((*lengths.T[:-1], lengths[:, -1], lengths.max(axis=1)))
    batches, start, longest = [], 0, 0
    for stop, index in enumerate(order):
        longest = max(longest, int(lengths[index].max()))
        if stop > start and (stop + 1 - start) * longest > tokens_per_batch:
            batches.append(order[start:stop])
            start, longest = stop, int(lengths[index].max())
    batches.append(order[start:])
    return batches


def padding_share(lengths: Int[np.ndarray, "n k"], batches: list[Int[np.ndarray, " _"]]) -> float:
    """Share of padding among all positions of all batches, all sides together."""
    positions = sum(len(b) * lengths[b].max(axis=0).sum() for b in batches)
    return 1 - lengths.sum() / positions


class Epoch(Sequence[Batch]):
    """The batches of one epoch, each made when asked for.

    Args:
        lengths: of every example its k lengths, in positions.
        make: the batch of these examples.
        tokens_per_batch: bound on rows * longest, on every side.
        short_first: short examples first, for a first epoch that is easy; otherwise a random order.
    """

    def __init__(
        self,
        lengths: Int[np.ndarray, "n k"],
        make: Callable[[list[int]], Batch],
        *,
        tokens_per_batch: int,
        seed: int,
        epoch: int,
        short_first: bool = False,
    ) -> None:
        self.make = make
        rng = np.random.default_rng((seed, epoch))
        shuffled = rng.permutation(len(lengths))  # so that equal lengths meet different neighbours in every epoch
        batches = [shuffled[b] for b in bucket(lengths[shuffled], tokens_per_batch)]
        self.padding_share = padding_share(lengths, batches)
        self.batches = batches if short_first else [batches[i] for i in rng.permutation(len(batches))]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> Batch:  # type: ignore[override]  # no slices
        return self.make(self.batches[i].tolist())

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


def pair_epoch(
    source: list[list[int]], target: list[list[int]], *, tokens_per_batch: int, seed: int, epoch: int, bos: int
) -> Epoch:
    """An epoch of pairs of ids, each ending in EOS."""
    return Epoch(
        np.array([(len(s), len(t)) for s, t in zip(source, target, strict=True)]),
        lambda rows: pair_batch([source[r] for r in rows], [target[r] for r in rows], bos=bos),
        tokens_per_batch=tokens_per_batch,
        seed=seed,
        epoch=epoch,
    )


def pair_batch(source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], *, bos: int) -> Batch:
    """Pairs of ids, each target ending in EOS, to one batch."""
    return batch_of(*pad(source, 0), target, bos=bos)


def batch_of(
    source: Shaped[Tensor, "B S *F"] | None,
    source_lengths: Int[Tensor, " B"] | None,
    target: Sequence[Sequence[int]],
    *,
    bos: int,
) -> Batch:
    """A padded source, or none, and targets that end in EOS, to one batch."""
    target_out, target_lengths = pad(target, IGNORE)
    target_in, _ = pad([[bos, *row[:-1]] for row in target], 0)
    return Batch(
        source=source,
        source_lengths=source_lengths,
        target_in=target_in,
        target_out=target_out,
        target_lengths=target_lengths,
        n_tokens=int(target_lengths.sum()),
    )
