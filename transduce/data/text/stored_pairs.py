"""Parallel text larger than memory as training data: token ids in mapped files, of which one pool after the other is read."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Integer

from transduce.data.batch import Epoch, Row
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.pairs import Pairs, TextPairs, all_too_long
from transduce.data.text.parallel_text import POOL, LargeText, ParallelText
from transduce.data.text.prepare import prepare
from transduce.data.text.shards import open_shards
from transduce.errors import InputError

FEWER = 32
"""A pool has so many times fewer pairs with BPE-dropout, as segmenting them anew takes longer than reading them."""


class StoredPairs(Pairs[LargeText]):
    """Pairs of a large text, as ids in files that are mapped into memory, of which one pool after the other is read.

    A pool has about POOL pairs from all over the text. What trainer and log call an epoch is one pool: epoch n is pool
    n % n_pools of pass n // n_pools, so no resume has to go through what came before. Which pairs are in which pool is a
    function of (seed, pass), and in a pass every pair is in one. For the arguments see `TextPairs`.

    Raises:
        InputError: no pair is left.
    """

    def take(self, text: LargeText) -> None:
        self.text, max_length = text, self.max_length
        paths = prepare(text, self.source_tokenizer, self.target_tokenizer)
        tokenizers = self.source_tokenizer.model + self.target_tokenizer.model
        self.parts = open_shards(paths, tokenizer=tokenizers).parts
        self.offsets = [open_offsets(path, len(part)) for path, part in zip(paths, self.parts, strict=True)]
        """Of every part, where its rows begin, and its end: row 2i is the source of pair i, row 2i + 1 its target."""
        self.ends = np.cumsum([len(offsets) // 2 for offsets in self.offsets])
        """Of every part, how many pairs it and those before it have."""
        sources = np.zeros(max_length + 1, dtype=np.int64)  # by length
        shortest, self.n_target = 1 << 62, 0
        for offsets in self.offsets:
            source, target = np.diff(offsets[::2]), np.diff(offsets)[1::2]
            source -= target
            longer = np.maximum(source, target)
            shortest, short = min(shortest, int(longer.min())), longer <= max_length
            sources += np.bincount(source[short], minlength=len(sources))
            self.n_target += int(target[short].sum())
        n, n_short = int(self.ends[-1]), int(sources.sum())
        if not n_short:
            raise all_too_long(max_length, n, shortest)
        self.n_long = n - n_short
        self._usual_length = int(np.searchsorted(np.cumsum(sources), 0.99 * n_short)) - 1
        self.n_pools = -(-n_short // (POOL // FEWER if self.bpe_dropout else POOL))
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._next: tuple[int, Future[Epoch]] | None = None

    def __str__(self) -> str:
        return (
            f"{int(self.ends[-1]) - self.n_long:,} pairs, {self.n_target:,} target tokens, in {self.n_pools} pools, each of "
            f"which is an epoch; left out: {self.text.n_blank} blank, {self.n_long} too long"
        )

    @property
    def usual_length(self) -> int:
        return self._usual_length

    def epoch(self, n: int) -> Epoch:
        """The batches of pool n; a thread reads the next pool meanwhile."""
        ahead = self._next
        found = ahead[1].result() if ahead and ahead[0] == n else super().epoch(n)
        self._next = n + 1, self._thread.submit(super().epoch, n + 1)
        return found

    def plain(self, n: int) -> tuple[Sequence[Row], Sequence[Row]]:
        """The pairs of pool n, in the order of the text, which is the order of the disk."""
        n_pass, pool = divmod(n, self.n_pools)
        n_pairs = int(self.ends[-1])
        start, stop = (n_pairs * i // self.n_pools for i in (pool, pool + 1))
        members = np.sort(scattered(np.arange(start, stop), n_pairs, (self.seed, n_pass)))
        cuts = np.searchsorted(members, self.ends)
        rows: list[Integer[np.ndarray, " _"]] = []
        for i, (ids, offsets) in enumerate(zip(self.parts, self.offsets, strict=True)):
            begin = int(self.ends[i]) - len(offsets) // 2
            inside = members[cuts[i - 1] if i else 0 : cuts[i]] - begin
            rows += rows_of(ids, offsets, inside, self.max_length)
        return rows[::2], rows[1::2]


def text_pairs(
    text: ParallelText | LargeText, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, **settings: Any
) -> TextPairs | StoredPairs:
    """`TextPairs`, or `StoredPairs` of a text that is too large for memory; the settings are those of `Pairs`."""
    if isinstance(text, LargeText):
        return StoredPairs(text, source_tokenizer, target_tokenizer, **settings)
    return TextPairs(text, source_tokenizer, target_tokenizer, **settings)


def rows_of(
    ids: Integer[np.ndarray, " _"], offsets: Int[np.ndarray, " _"], pairs: Int[np.ndarray, " n"], max_length: int
) -> list[Integer[np.ndarray, " _"]]:
    """Source, target, source, ... of these pairs, but of those that are longer on a side."""
    middle = offsets[2 * pairs + 1]
    begin, end = offsets[2 * pairs], offsets[2 * pairs + 2]
    short = np.maximum(middle - begin, end - middle) <= max_length
    begin, middle, end = begin[short], middle[short], end[short]
    after = np.cumsum(end - begin)
    before = after - (end - begin)
    found = ids[np.arange(after[-1] if len(after) else 0) + np.repeat(begin - before, end - begin)]
    borders = np.stack([before + middle - begin, after], axis=1).ravel().tolist()
    return [found[a:b] for a, b in zip([0, *borders], borders, strict=False)]


def scattered(indices: Int[np.ndarray, " m"], n: int, seed: tuple[int, ...]) -> Int[np.ndarray, " m"]:
    """Where a pseudorandom permutation of 0 ... n - 1 puts these indices; no table of all n is made.

    A Feistel network permutes the numbers of as many bits as n has, or one more; what it takes beyond n it takes further.

    Source: Black and Rogaway (2002), Ciphers with arbitrary finite domains, "cycle-walking".
    """
    half = np.uint64(max(1, -(-(n - 1).bit_length() // 2)))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.default_rng(seed).integers(1 << 63, size=8, dtype=np.uint64)
    found = indices.astype(np.uint64)
    beyond = np.ones(len(found), dtype=bool)
    while beyond.any():
        left, right = found[beyond] >> half, found[beyond] & mask
        for key in keys:
            mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)  # multiplicative hashing: the upper bits are mixed
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            left, right = right, left ^ (mixed >> np.uint64(32) & mask)
        found[beyond] = left << half | right
        beyond = found >= n
    return found.astype(np.int64)


def open_offsets(path: Path, count: int) -> Int[np.ndarray, " _"]:
    """Where the rows of a shard begin, and its end, mapped into memory.

    Raises:
        InputError: they are not of a shard with so many ids.
    """
    path = path.with_suffix(".offsets")
    offsets = np.memmap(path, dtype="<i8", mode="r") if path.is_file() and path.stat().st_size else np.zeros(1)
    if len(offsets) % 2 == 0 or offsets[-1] != count:
        raise InputError(
            f"{path} must end with {count}, the number of ids of its shard, but does not; remove {path.parent}"
        )
    return offsets
