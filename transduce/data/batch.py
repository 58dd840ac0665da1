"""Batches of padded sequences of similar lengths, in an order that is a function of (seed,
epoch)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORE = -100
"""In target_out: a position without a prediction (the value that torch's losses ignore)."""

Lengths = Int[Tensor, " B"]
"""The number of positions of each row that are not padding."""

Row = Sequence[int] | Integer[np.ndarray, " _"]
"""Ids of one example."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The examples of one update, one per row; positions beyond a row's length are padding.

    target_in begins with BOS and target_out ends with EOS; target_lengths are the lengths of both.
    """

    target_in: Int[Tensor, "B T"]
    target_out: Int[Tensor, "B T"]
    target_lengths: Lengths
    source: Shaped[Tensor, "B S *F"] | None = None
    source_lengths: Lengths | None = None
    n_tokens: int
    """Target tokens to predict, EOS included, padding not."""
    host_lengths: tuple[Lengths | None, Lengths] | None = None
    """source_lengths and target_lengths before `to` moved them, for losses that read them on the
    host, such as CTC."""
    ctc_targets: Int[Tensor, "B H"] | None = None
    """Targets of CTC if they are another text than the target: ids, each row with an EOS."""
    ctc_target_lengths: Lengths | None = None
    """Lengths of ctc_targets, with EOS; they stay on the host, where CTC reads them."""
    second_source: Shaped[Tensor, "B S *F"] | None = None
    """The same source with other masks, noise and vocal tract, for consistency regularization: the
    outputs for both should agree."""

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device.

        The copy to a GPU is asynchronous, which takes pinned memory. Pinning takes time, so call
        this in a thread, as the trainer does.
        """
        pinned = device.type == "cuda"
        moved: dict[str, Any] = {}
        for name, tensor in vars(self).items():
            if isinstance(tensor, Tensor) and name != "ctc_target_lengths":
                on_host = tensor.pin_memory() if pinned and tensor.device.type == "cpu" else tensor
                moved[name] = on_host.to(device, non_blocking=pinned)
        return replace(
            self,
            **moved,
            host_lengths=self.host_lengths or (self.source_lengths, self.target_lengths),
        )


def pad(rows: Sequence[Row], value: int) -> tuple[Int[Tensor, "B T"], Lengths]:
    """Rows of ids as one tensor, padded with `value`, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), value, dtype=np.int64)
    for i, row in enumerate(rows):  # pad_sequence takes ten times as long
        ids[i, : len(row)] = row
    return torch.from_numpy(ids), torch.from_numpy(lengths)


def pad_frames(
    rows: Sequence[Float[Tensor, "_ F"]],
) -> tuple[Float[Tensor, "B S F"], Lengths]:
    """Rows of vectors as one tensor, padded with zeros, and their lengths."""
    return pad_sequence(list(rows), batch_first=True), torch.tensor([*map(len, rows)])


def bucket(lengths: Int[np.ndarray, "n k"], tokens_per_batch: int) -> list[Int[np.ndarray, " _"]]:
    """Indices of sequences, sorted by length, in batches with rows * longest <= tokens_per_batch on
    every side.

    A sequence longer than the budget is a batch of its own.

    Args:
        lengths: the k lengths of every example (source and target).
    """
    longest = lengths.max(axis=1)
    order = np.lexsort((*lengths.T, longest))
    longest = longest[order]
    batches = []
    start = 0
    while start < len(order):
        # an upper bound on the rows, as the first one is the shortest
        most = min(max(1, tokens_per_batch // int(longest[start])), len(order) - start)
        size = longest[start : start + most] * np.arange(1, most + 1)
        stop = start + max(1, int(np.searchsorted(size, tokens_per_batch, side="right")))
        batches.append(order[start:stop])
        start = stop
    return batches


def padding_share(lengths: Int[np.ndarray, "n k"], batches: list[Int[np.ndarray, " _"]]) -> float:
    """The share of padding among the positions of all batches, all sides together."""
    positions = sum(len(b) * lengths[b].max(axis=0).sum() for b in batches)
    return 1 - lengths.sum() / positions


@dataclass(eq=False)
class Batches(Sequence[Batch]):
    """A sequence of n batches; batch i is make(i), which is called at every access."""

    n: int
    make: Callable[[int], Batch]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Batch:  # type: ignore[override]  # no slices
        return self.make(range(self.n)[i])


class Epoch(Batches):
    """The batches of one epoch; the examples of a batch have similar lengths.

    Args:
        lengths: the k lengths of every example, in positions.
        make: makes the batch of the examples with these indices.
        tokens_per_batch: bound on rows * longest, on every side.
        short_first: whether short examples come first, which makes the first epoch easy; otherwise
            the order of the batches is random.
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
        rng = np.random.default_rng((seed, epoch))
        # so that equal lengths meet different neighbours in every epoch
        shuffled = rng.permutation(len(lengths))
        batches = [shuffled[batch] for batch in bucket(lengths[shuffled], tokens_per_batch)]
        self.padding_share = padding_share(lengths, batches)
        if not short_first:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        self.batches = batches
        """The indices of every batch's examples."""
        # without self: a reference cycle would keep the examples in memory until garbage collection
        super().__init__(len(batches), lambda i: make(batches[i].tolist()))


def pair_epoch(
    source: Sequence[Row],
    target: Sequence[Row],
    *,
    tokens_per_batch: int,
    seed: int,
    epoch: int,
    bos: int,
) -> Epoch:
    """An epoch of pairs of ids; every side ends in EOS."""
    return Epoch(
        np.array([(len(s), len(t)) for s, t in zip(source, target, strict=True)]),
        lambda rows: pair_batch([source[r] for r in rows], [target[r] for r in rows], bos=bos),
        tokens_per_batch=tokens_per_batch,
        seed=seed,
        epoch=epoch,
    )


def pair_batch(source: Sequence[Row], target: Sequence[Row], *, bos: int) -> Batch:
    """One batch of pairs of ids; every target ends in EOS."""
    return batch_of(*pad(source, 0), target, bos=bos)


def batch_of(
    source: Shaped[Tensor, "B S *F"] | None,
    source_lengths: Lengths | None,
    target: Sequence[Row],
    *,
    bos: int,
) -> Batch:
    """One batch of a padded source, or without source, and of targets that end in EOS."""
    target_out, target_lengths = pad(target, IGNORE)
    target_in = torch.full_like(target_out, bos)
    target_in[:, 1:] = torch.where(target_out[:, 1:] == IGNORE, 0, target_out[:, :-1])
    return Batch(
        source=source,
        source_lengths=source_lengths,
        target_in=target_in,
        target_out=target_out,
        target_lengths=target_lengths,
        n_tokens=int(target_lengths.sum()),
    )


def permuted(
    indices: Int[np.ndarray, " m"], n: int, seed: tuple[int, ...]
) -> Int[np.ndarray, " m"]:
    """The images of these indices in a pseudorandom permutation of 0 ... n - 1; no table of all n
    is made.

    A Feistel network permutes the numbers of as many bits as n has, or one more, and is applied
    again to images that are not below n.

    Source: Black and Rogaway (2002), Ciphers with arbitrary finite domains, "cycle-walking".
    """
    half = np.uint64(max(1, -(-(n - 1).bit_length() // 2)))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.default_rng(seed).integers(1 << 63, size=8, dtype=np.uint64)
    images = indices.astype(np.uint64)
    beyond = np.ones(len(images), dtype=bool)
    while beyond.any():
        left = images[beyond] >> half
        right = images[beyond] & mask
        for key in keys:
            # multiplicative hashing: the upper bits are mixed
            mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            left, right = right, left ^ (mixed >> np.uint64(32) & mask)
        images[beyond] = left << half | right
        beyond = images >= n
    return images.astype(np.int64)
