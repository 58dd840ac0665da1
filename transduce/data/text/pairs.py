"""Parallel text as training data: encoded, filtered by length, and in other batches in every epoch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Integer

from transduce.data.batch import Epoch, Row, pair_epoch
from transduce.data.text.corpus import lines_fingerprint
from transduce.data.text.parallel import POOL, LargeText, ParallelText
from transduce.data.text.prepare import prepare
from transduce.data.text.shards import open_shards
from transduce.data.text.tokenizer import Tokenizer

FEWER = 32
"""A pool has so many times fewer pairs with BPE-dropout, as segmenting them anew takes longer than reading them."""


class Pairs(ABC):
    """Training data for the trainer: the batches of `epoch(n)` are a function of (seed, n).

    Args:
        tokens_per_batch: a bound on rows times the longest row, on either side of a batch.
        bpe_dropout: the probability of skipping a merge, which gives another segmentation in every epoch.
    """

    def __init__(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        tokens_per_batch: int,
        bpe_dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.tokens_per_batch, self.bpe_dropout, self.seed = tokens_per_batch, bpe_dropout, seed
        (self.bos_id,) = target_tokenizer.required("bos_id")

    @property
    @abstractmethod
    def usual_length(self) -> int:
        """The tokens, without EOS, that 99 % of the source texts do not exceed: of longer ones little is learned."""

    @abstractmethod
    def plain(self, n: int) -> tuple[Sequence[Row], Sequence[Row]]:
        """The ids of both sides in epoch n, each row ending in EOS, without dropout."""

    def epoch(self, n: int) -> Epoch:
        """The batches of epoch n."""
        source, target = self.ids(n)
        size, seed = self.tokens_per_batch, self.seed
        return pair_epoch(source, target, tokens_per_batch=size, seed=seed, epoch=n, bos=self.bos_id)

    def ids(self, n: int) -> tuple[Sequence[Row], Sequence[Row]]:
        """The ids of both sides in epoch n; with BPE-dropout they differ between epochs."""
        source, target = self.plain(n)
        if not self.bpe_dropout:
            return source, target
        return (
            self.source_tokenizer.with_dropout(source, dropout=self.bpe_dropout, seed=self._seed(n, 0)),
            self.target_tokenizer.with_dropout(target, dropout=self.bpe_dropout, seed=self._seed(n, 1)),
        )

    def _seed(self, epoch: int, side: int) -> int:
        return (self.seed * 1_000_003 + 2 * epoch + side) % (1 << 32)


class TextPairs(Pairs):
    """Pairs in memory. Every pair is encoded once, and an epoch has all of them.

    `n_long` pairs are left out, as one side has more than max_length tokens, EOS included; `text`, `source` and
    `target` are what is left. For the other arguments see `Pairs`.

    Raises:
        ValueError: no pair is left, or a tokenizer has nothing that ends, or on the target side begins, a text.
    """

    def __init__(
        self,
        text: ParallelText,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        tokens_per_batch: int,
        max_length: int = 256,
        bpe_dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            source_tokenizer, target_tokenizer, tokens_per_batch=tokens_per_batch, bpe_dropout=bpe_dropout, seed=seed
        )
        source = source_tokenizer.with_eos(source_tokenizer.encode(text.source))
        target = target_tokenizer.with_eos(target_tokenizer.encode(text.target))
        kept = [i for i in range(len(text)) if max(len(source[i]), len(target[i])) <= max_length]
        if not kept:
            shortest = min(max(len(s), len(t)) for s, t in zip(source, target, strict=True))
            raise _all_too_long(max_length, len(text), shortest)
        self.text = ParallelText([text.source[i] for i in kept], [text.target[i] for i in kept], text.n_blank)
        self.source, self.target = [source[i] for i in kept], [target[i] for i in kept]
        self.n_long = len(text) - len(kept)

    def __str__(self) -> str:
        first = self.epoch(0)
        n_target = sum(map(len, self.target))
        return (
            f"{len(self.source):,} pairs, {n_target:,} target tokens, {len(first)} batches of at most "
            f"{self.tokens_per_batch} positions a side, {first.padding_share:.1%} padding; "
            f"left out: {self.text.n_blank} blank, {self.n_long} too long"
        )

    @property
    def usual_length(self) -> int:
        return int(np.percentile([len(row) for row in self.source], 99)) - 1

    def plain(self, n: int) -> tuple[Sequence[Row], Sequence[Row]]:
        return self.source, self.target


class StoredPairs(Pairs):
    """Pairs of a large text, as ids in files that are mapped into memory, of which one pool after the other is read.

    A pool has about POOL pairs from all over the text. What trainer and log call an epoch is one pool: epoch n is pool
    n % n_pools of pass n // n_pools, so no resume has to go through what came before. Which pairs are in which pool is a
    function of (seed, pass), and in a pass every pair is in one. For the arguments see `TextPairs`.

    Raises:
        ValueError: no pair is left.
    """

    def __init__(
        self,
        text: LargeText,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        tokens_per_batch: int,
        max_length: int = 256,
        bpe_dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            source_tokenizer, target_tokenizer, tokens_per_batch=tokens_per_batch, bpe_dropout=bpe_dropout, seed=seed
        )
        self.text, self.max_length = text, max_length
        paths = prepare(text, source_tokenizer, target_tokenizer)
        self.parts = open_shards(paths, tokenizer=source_tokenizer.model + target_tokenizer.model).parts
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
            raise _all_too_long(max_length, n, shortest)
        self.n_long = n - n_short
        self._usual_length = int(np.searchsorted(np.cumsum(sources), 0.99 * n_short)) - 1
        self.n_pools = -(-n_short // (POOL // FEWER if bpe_dropout else POOL))
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
    text: ParallelText | LargeText,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    tokens_per_batch: int,
    max_length: int = 256,
    bpe_dropout: float = 0.0,
    seed: int = 0,
) -> TextPairs | StoredPairs:
    """`TextPairs`, or `StoredPairs` of a text that is too large for memory."""
    settings: dict[str, Any] = {"tokens_per_batch": tokens_per_batch, "max_length": max_length}
    settings |= {"bpe_dropout": bpe_dropout, "seed": seed}
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
        ValueError: they are not of a shard with so many ids.
    """
    path = path.with_suffix(".offsets")
    offsets = np.memmap(path, dtype="<i8", mode="r") if path.is_file() and path.stat().st_size else np.zeros(1)
    if len(offsets) % 2 == 0 or offsets[-1] != count:
        raise ValueError(
            f"{path} must end with {count}, the number of ids of its shard, but does not; remove {path.parent}"
        )
    return offsets


def _all_too_long(max_length: int, n: int, shortest: int) -> ValueError:
    return ValueError(
        f"max_length must leave something to train on, but max_length={max_length} and the shortest of {n} pairs has "
        f"{shortest} tokens"
    )


def fingerprint(*texts: ParallelText | LargeText) -> str:
    """SHA-256 of the sentences, which does not depend on where the files are."""
    return lines_fingerprint(line for text in texts for line in text.lines())
