"""Batches of windows of a text: all tokens are predicted, or, in masked language modelling, some of
them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Int

from transduce.config import at_least
from transduce.data.base_tokenizer import CharTokenizer, Tokenizer
from transduce.data.batch import IGNORE, Batch, Batches
from transduce.data.config import MaskingConfig
from transduce.data.language import Stream
from transduce.errors import InputError


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
        at_least(1, context=self.context, batch_size=self.batch_size)
        if len(self.stream) <= self.context:
            raise InputError(
                f"a window takes context + 1 tokens, but context={self.context} and the text has "
                f"{len(self.stream)}; "
                "give more text or make the context shorter"
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
    """Windows side by side: every token but the first is predicted once. The last window may be
    shorter.

    Args:
        n_windows: take only so many complete windows, evenly spread; None takes all.
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
        starts = (np.arange(n) * (complete // max(n, 1)) * context).tolist()
        rows = [starts[i : i + batch_size] for i in range(0, n, batch_size)]
        if n == complete and complete * context < len(stream) - 1:
            rows.append([complete * context])

        def batch(i: int) -> Batch:
            return window_batch(
                [stream.read(start, min(start + context + 1, len(stream))) for start in rows[i]]
            )

        super().__init__(len(rows), batch)


Windows, HeldOut = TokenWindows, HeldOutWindows
"""The names of version 0.2, for recipes written with it."""


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
    """The id of the mask symbol: one more than the tokenizer's last id, so the model's table has
    one more row."""
    return tokenizer.vocab_size


def masked_batch(
    text: Batch, masking: MaskingConfig, tokenizer: Tokenizer, rng: np.random.Generator
) -> Batch:
    """A batch whose source is the corrupted target_out of `text`, and whose target_out is the
    chosen tokens.

    target_in stays unchanged, as an encoder alone does not read it.
    """
    ids = text.target_out.numpy()
    real = ids != IGNORE
    special = [
        i for i in (tokenizer.bos_id, tokenizer.eos_id, *tokenizer.suppressed) if i is not None
    ]
    ordinary = real & ~np.isin(ids, special)
    order = (rng.random(ids.shape) + ~ordinary + ~real).argsort(
        axis=1
    )  # padding comes last, special ids before it
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
            rng = np.random.default_rng(
                (*seed, i, 1)
            )  # 1: not the random numbers that drew the windows
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


def encode_masked(tokenizer: Tokenizer, line: str, mask_word: str) -> list[int]:
    """Ids of a line in which every mask word is the mask symbol; with the marks of beginning and
    end, if any.

    The mask word counts where it stands alone: no letter, digit or underscore touches it, so that
    foo_bar has no mask. It includes the space before it, as tokens do. Where every character is a
    token, it counts everywhere, for one character of a word may be masked (Sp_ak); a text that
    holds the mask word itself needs another one.
    """
    by_character = isinstance(tokenizer, CharTokenizer)
    mask = re.escape(mask_word)
    ids: list[int] = []
    parts = re.split(mask if by_character else rf" ?(?<!\w){mask}(?!\w)", line)
    for i, (part, row) in enumerate(zip(parts, tokenizer.encode(parts), strict=True)):
        if i:
            ids.append(mask_id(tokenizer))
            if not by_character and tokenizer.tokens(row[:1]) == ["▁"] and part[:1].strip():
                row = row[1:]  # SentencePiece and its like begin every text with a space
        ids += row
    start, end = tokenizer.bos_id, tokenizer.eos_id
    return ids if start == end else [i for i in (start, *ids, end) if i is not None]


def decode_masked(tokenizer: Tokenizer, ids: Sequence[int], mask_word: str) -> str:
    """The text of ids, with the mask word for every mask symbol.

    `encode_masked` turns it into ids again where every masked token is a word or a sign of its own.
    """
    space = "" if isinstance(tokenizer, CharTokenizer) else " "
    text = ""
    for masked, run in groupby(ids, mask_id(tokenizer).__eq__):
        row = [i for i in run if i not in (tokenizer.bos_id, tokenizer.eos_id)]
        if masked:
            text += (space + mask_word) * len(row)
        else:
            new_word = "".join(tokenizer.tokens(row[:1])).startswith(
                "▁"
            )  # SentencePiece's letter for a space
            text += (space if text and new_word else "") + tokenizer.decode([row])[0]
    return text.removeprefix(space)
