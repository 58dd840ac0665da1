"""Text as training data, with different batches in every epoch: pairs of sentences, windows of
running text, and windows for masked language modelling."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Bool, Int, Integer

from transduce.config import at_least
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.batch import IGNORE, Batch, Batches, Epoch, Row, pair_epoch, permuted
from transduce.data.config import MaskingConfig
from transduce.data.language import Stream, smallest_type
from transduce.data.parallel_text import BLOCK, POOL, LargeText, Pair, ParallelText, blocks
from transduce.errors import InputError
from transduce.files import remove_leftovers, replacing
from transduce.process import Bar

Text = ParallelText | LargeText
Encoded = tuple[Integer[np.ndarray, " _"], Integer[np.ndarray, " _"]]
"""Concatenated ids, and the lengths of the rows."""


@dataclass
class TextPairs:
    """Training data for the trainer: the batches of `epoch(n)` are a function of (seed, n).

    The ids are concatenated in one array in memory, or, for a `LargeText`, in a memory-mapped file.
    For a `LargeText`, an epoch is a pool of about POOL pairs from all over the text: epoch n is
    pool n % n_pools of pass n // n_pools, so that a resumed run need not read earlier pools. The
    pairs of a pool are a function of (seed, pass), and in a pass every pair is in one pool. A text
    in memory is one pool.

    Args:
        tokens_per_batch: bound on rows times the longest row, on either side of a batch.
        max_length: pairs with more tokens on a side, EOS included, are left out; `n_long` counts
            them.

    Raises:
        InputError: no pair is left, a tokenizer lacks EOS, or the target tokenizer lacks BOS.
    """

    text: Text
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    _: KW_ONLY
    tokens_per_batch: int
    max_length: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        (self.bos_id,) = self.target_tokenizer.required("bos_id")
        self._ids, self._offsets = encode_pairs(
            self.text, self.source_tokenizer, self.target_tokenizer
        )
        lengths = np.diff(self._offsets).astype(np.int32).reshape(-1, 2)
        longest = lengths.max(axis=1)
        self._short: Bool[np.ndarray, " n"] = longest <= self.max_length
        self.n_pairs = int(self._short.sum())
        self.n_long = len(longest) - self.n_pairs
        if not self.n_pairs:
            raise InputError(
                "max_length must leave a training and a validation pair, but "
                f"max_length={self.max_length} and the shortest of {self.n_long} pairs has "
                f"{longest.min()} tokens"
            )
        n_source, n_target = lengths[self._short].T
        self.n_target = int(n_target.sum())
        self.usual_length = int(np.percentile(n_source, 99)) - 1
        """Tokens, without EOS, that 99 % of the source texts do not exceed."""
        in_memory = isinstance(self.text, ParallelText)
        self.n_pools = 1 if in_memory else -(-self.n_pairs // POOL)

    def __str__(self) -> str:
        if self.n_pools > 1:
            batches = f"in {self.n_pools} pools, each of which is an epoch"
        else:
            first = self.epoch(0)
            batches = (
                f"{len(first)} batches of at most {self.tokens_per_batch} positions a side, "
                f"{first.padding_share:.1%} padding"
            )
        return (
            f"{self.n_pairs:,} pairs, {self.n_target:,} target tokens, {batches}; left out: "
            f"{self.text.n_blank} blank, {self.n_long} too long"
        )

    def epoch(self, n: int) -> Epoch:
        """The batches of epoch n."""
        size = self.tokens_per_batch
        return pair_epoch(
            *self.ids(n), tokens_per_batch=size, seed=self.seed, epoch=n, bos=self.bos_id
        )

    def ids(self, n: int) -> tuple[Sequence[Row], Sequence[Row]]:
        """The ids of both sides in epoch n, in the order of the text, each row ending in EOS."""
        n_pass, pool = divmod(n, self.n_pools)
        n_pairs = len(self._short)
        start, stop = (n_pairs * i // self.n_pools for i in (pool, pool + 1))
        pairs = np.sort(permuted(np.arange(start, stop), n_pairs, (self.seed, n_pass)))
        pairs = pairs[self._short[pairs]]
        borders = zip(*(self._offsets[2 * pairs + i].tolist() for i in range(3)), strict=True)
        rows = [(self._ids[i:j].copy(), self._ids[j:k].copy()) for i, j, k in borders]
        return [source for source, _ in rows], [target for _, target in rows]


def encode_pairs(
    text: Text, source: Tokenizer, target: Tokenizer
) -> tuple[Integer[np.ndarray, " _"], Int[np.ndarray, " _"]]:
    """The concatenated ids of a text, each side with EOS, and the offsets of the sides.

    The source of pair i begins at offset 2i and its target at 2i + 1; the last offset is the end.
    For a large text, ids and offsets are files in its folder, which are written once: their name is
    a hash of the tokenizers, of the languages that these are set to, of the held-out pairs, and of
    whether sources have copies.
    """
    kind = smallest_type(max(source.vocab_size, target.vocab_size))
    encoded = (_encode(block, source, target, kind) for block in blocks(text, BLOCK))
    if isinstance(text, ParallelText):
        ids, lengths = map(np.concatenate, zip(*encoded, strict=True))
        return ids, np.concatenate([[0], np.cumsum(lengths)])
    # the model does not contain the chosen language tag
    languages = [side.with_eos(side.encode(["A"])) for side in (source, target)]
    about = [sorted(text.held_out), languages, *["copies"] * bool(text.copied_as)]
    key = source.model + target.model + json.dumps(about).encode()
    path = text.folder / f"{hashlib.sha256(key).hexdigest()[:16]}.ids"
    offsets = path.with_suffix(".offsets")
    with FileLock(path.with_suffix(".lock")):  # of several processes the first one writes
        if not path.is_file():
            _write_ids(path, offsets, encoded, text.n_pairs * (1 + bool(text.copied_as)))
    # plain arrays: slices of np.memmap are slow
    return np.asarray(np.memmap(path, kind, mode="r")), np.asarray(np.memmap(offsets, "<i8", "r"))


def _write_ids(path: Path, offsets: Path, encoded: Iterator[Encoded], n_pairs: int) -> None:
    """Write ids and offsets, block by block; `path` is the last to get its name."""
    remove_leftovers(path.parent)  # each may be as large as the text
    bar = Bar(desc="tokenizing", total=n_pairs, unit="pair", unit_scale=True)
    with bar, replacing(path) as ids_file, replacing(offsets) as offsets_file:
        ends = np.zeros(1, "<i8")
        offsets_file.write(ends.tobytes())
        for ids, lengths in encoded:
            ends = ends[-1] + np.cumsum(lengths, dtype="<i8")
            ids_file.write(ids.tobytes())
            offsets_file.write(ends.tobytes())
            bar.update(len(lengths) // 2)


def _encode(pairs: list[Pair], source: Tokenizer, target: Tokenizer, kind: np.dtype) -> Encoded:
    """The concatenated ids of source, target, source, ..., each with EOS, and their lengths."""
    sources, targets = zip(*pairs, strict=True)
    sides = source.with_eos(source.encode(sources)), target.with_eos(target.encode(targets))
    rows = [*chain.from_iterable(zip(*sides, strict=True))]
    lengths = np.array([len(row) for row in rows], dtype="<i8")
    return np.fromiter(chain.from_iterable(rows), kind, count=lengths.sum()), lengths


@dataclass(frozen=True, kw_only=True)
class TokenWindows:
    """Training data: batches of `batch_size` windows of `context` tokens, from random places in the
    stream.

    The places are a function of (seed, epoch, batch). An epoch has batches_per_epoch batches, or as
    many as there are tokens for; as the places are random, it does not see every token exactly
    once.
    """

    stream: Stream
    context: int
    batch_size: int
    seed: int = 0
    batches_per_epoch: int | None = None

    def __post_init__(self) -> None:
        at_least(1, self, "context", "batch_size")
        if len(self.stream) <= self.context:
            raise InputError(
                f"a window takes context + 1 tokens, but context={self.context} and the text has "
                f"{len(self.stream)}; give more text or make the context shorter"
            )

    def __str__(self) -> str:
        n = len(self.epoch(0))
        size = f"{self.batch_size} x {self.context}"
        return f"{len(self.stream):,} tokens, {n:,} batches of {size} an epoch"

    def epoch(self, n: int) -> Batches:
        """The batches of epoch n."""

        def batch(i: int) -> Batch:
            rng = np.random.default_rng((self.seed, n, i))
            places = rng.integers(len(self.stream) - self.context, size=self.batch_size)
            return window_batch(
                [self.stream.read(place, place + self.context + 1) for place in places.tolist()]
            )

        return Batches(
            self.batches_per_epoch or max(1, len(self.stream) // (self.batch_size * self.context)),
            batch,
        )


class HeldOutWindows(Batches):
    """Adjacent windows: every token but the first is predicted once. The last window may be
    shorter.

    Args:
        n_windows: take only this many complete windows, evenly spread; None takes all.
    """

    def __init__(
        self, stream: Stream, *, context: int, batch_size: int, n_windows: int | None = None
    ) -> None:
        if len(stream) < 2:
            raise InputError(
                f"a validation text needs two tokens or more, but it has {len(stream)}; give more "
                "text"
            )
        complete = (len(stream) - 1) // context
        n = complete if n_windows is None else min(n_windows, complete)
        starts = (np.arange(n) * complete // max(n, 1) * context).tolist()
        rows = [*blocks(starts, batch_size)]
        if n == complete and complete * context < len(stream) - 1:
            rows.append([complete * context])

        def batch(i: int) -> Batch:
            return window_batch([stream.read(start, start + context + 1) for start in rows[i]])

        super().__init__(len(rows), batch)


def window_batch(rows: Sequence[Int[np.ndarray, " _"]]) -> Batch:
    """One batch of windows of equal length; in each, all tokens but the first are predicted."""
    ids = torch.from_numpy(np.stack(rows))
    target_out = ids[:, 1:].contiguous()
    return Batch(
        target_in=ids[:, :-1].contiguous(),
        target_out=target_out,
        target_lengths=torch.full((len(rows),), target_out.size(1)),
        n_tokens=target_out.numel(),
    )


def mask_id(tokenizer: Tokenizer) -> int:
    """The id of the mask symbol: one more than the tokenizer's last id, so the model's embedding
    has one more row."""
    return tokenizer.vocab_size


def masked_batch(
    text: Batch, masking: MaskingConfig, tokenizer: Tokenizer, rng: np.random.Generator
) -> Batch:
    """A batch whose source is the corrupted target_out of `text`, and whose target_out is the
    chosen tokens.

    target_in stays unchanged, as an encoder-only model does not read it.
    """
    ids = text.target_out.numpy()
    real = ids != IGNORE
    special = [
        i for i in (tokenizer.bos_id, tokenizer.eos_id, *tokenizer.suppressed) if i is not None
    ]
    ordinary = real & ~np.isin(ids, special)
    # padding comes last, special ids before it
    order = (rng.random(ids.shape) + ~ordinary + ~real).argsort(axis=1)
    n_chosen = np.maximum(1, np.rint(masking.mask_probability * ordinary.sum(axis=1)))
    chosen = order.argsort(axis=1) < n_chosen[:, None]
    draw = rng.random(ids.shape)
    masked = chosen & (draw < masking.mask_replace_probability)
    replaced = (
        chosen
        & ~masked
        & (draw < masking.mask_replace_probability + masking.random_replace_probability)
    )
    source = np.where(real, ids, 0)
    source[replaced] = rng.integers(tokenizer.vocab_size, size=replaced.sum())
    source[masked] = mask_id(tokenizer)
    return replace(
        text,
        source=torch.from_numpy(source),
        source_lengths=text.target_lengths,
        target_out=torch.from_numpy(np.where(chosen, ids, IGNORE)),
        n_tokens=int(chosen.sum()),
    )


class MaskedBatches(Batches):
    """Corrupted batches of text; the masks of batch i are a function of (seed, i)."""

    def __init__(
        self,
        texts: Sequence[Batch],
        masking: MaskingConfig,
        tokenizer: Tokenizer,
        *,
        seed: tuple[int, ...] = (0,),
    ) -> None:
        def batch(i: int) -> Batch:
            # 1: other random numbers than those that drew the windows
            rng = np.random.default_rng((*seed, i, 1))
            return masked_batch(texts[i], masking, tokenizer, rng)

        super().__init__(len(texts), batch)
        self.texts = texts


@dataclass(frozen=True, kw_only=True)
class MaskedWindows:
    """Training data: windows of a text, corrupted differently in every batch of every epoch."""

    windows: TokenWindows
    masking: MaskingConfig
    tokenizer: Tokenizer

    def epoch(self, n: int) -> MaskedBatches:
        """The batches of epoch n."""
        return MaskedBatches(
            self.windows.epoch(n), self.masking, self.tokenizer, seed=(self.windows.seed, n)
        )
