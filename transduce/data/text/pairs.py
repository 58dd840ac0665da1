"""Parallel text as training data: encoded, filtered by length, and in other batches in every epoch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from transduce.data.batch import Epoch, Row, pair_epoch
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.lines import lines_fingerprint
from transduce.data.text.parallel_text import LargeText, ParallelText
from transduce.errors import InputError

TextT = TypeVar("TextT")


class Pairs(ABC, Generic[TextT]):
    """Training data for the trainer: the batches of `epoch(n)` are a function of (seed, n).

    Args:
        max_length: pairs with more tokens on a side, EOS included, are left out.
        tokens_per_batch: a bound on rows times the longest row, on either side of a batch.
        bpe_dropout: the probability of skipping a merge, which gives another segmentation in every epoch.
    """

    def __init__(
        self,
        text: TextT,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        tokens_per_batch: int,
        max_length: int = 256,
        bpe_dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.tokens_per_batch, self.max_length, self.bpe_dropout, self.seed = (
            tokens_per_batch,
            max_length,
            bpe_dropout,
            seed,
        )
        (self.bos_id,) = target_tokenizer.required("bos_id")
        self.take(text)

    @abstractmethod
    def take(self, text: TextT) -> None:
        """Read the text, once."""

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


class TextPairs(Pairs[ParallelText]):
    """Pairs in memory. Every pair is encoded once, and an epoch has all of them.

    `n_long` pairs are left out, as one side has more than max_length tokens, EOS included; `text`, `source` and
    `target` are what is left. For the other arguments see `Pairs`.

    Raises:
        InputError: no pair is left, or a tokenizer has nothing that ends, or on the target side begins, a text.
    """

    def take(self, text: ParallelText) -> None:
        source_tokenizer, target_tokenizer, max_length = self.source_tokenizer, self.target_tokenizer, self.max_length
        source = source_tokenizer.with_eos(source_tokenizer.encode(text.source))
        target = target_tokenizer.with_eos(target_tokenizer.encode(text.target))
        kept = [i for i in range(len(text)) if max(len(source[i]), len(target[i])) <= max_length]
        if not kept:
            shortest = min(max(len(s), len(t)) for s, t in zip(source, target, strict=True))
            raise all_too_long(max_length, len(text), shortest)
        self.text = text.select(kept)
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


def all_too_long(max_length: int, n: int, shortest: int) -> InputError:
    """What to raise where no pair is left."""
    return InputError(
        f"max_length must leave something to train on, but max_length={max_length} and the shortest of {n} pairs has "
        f"{shortest} tokens"
    )


def fingerprint(*texts: ParallelText | LargeText) -> str:
    """SHA-256 of the sentences, which does not depend on where the files are."""
    return lines_fingerprint(line for text in texts for line in text.lines())
