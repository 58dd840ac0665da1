"""Parallel text as training data: encoded, filtered by length, and in other batches in every epoch."""

import numpy as np

from transduce.data.batch import Epoch, pair_epoch
from transduce.data.text.corpus import ParallelText, lines_fingerprint
from transduce.data.text.sentencepiece_bpe import BOS, EOS, SentencePieceTokenizer


class TextPairs:
    """Training data for the trainer: the batches of `epoch(n)` are a function of (seed, n).

    Every pair is encoded once. `n_long` pairs are left out, as one side has more than max_length tokens, EOS included;
    `text`, `source` and `target` are what is left.

    Args:
        tokens_per_batch: a bound on rows times the longest row, on either side of a batch.
        bpe_dropout: the probability of skipping a merge, which gives another segmentation in every epoch.

    Raises:
        ValueError: no pair is left.
    """

    def __init__(
        self,
        text: ParallelText,
        source_tokenizer: SentencePieceTokenizer,
        target_tokenizer: SentencePieceTokenizer,
        *,
        tokens_per_batch: int,
        max_length: int = 256,
        bpe_dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.tokens_per_batch, self.bpe_dropout, self.seed = tokens_per_batch, bpe_dropout, seed
        source = _with_eos(source_tokenizer.encode(text.source))
        target = _with_eos(target_tokenizer.encode(text.target))
        kept = [i for i in range(len(text)) if max(len(source[i]), len(target[i])) <= max_length]
        if not kept:
            shortest = min(max(len(s), len(t)) for s, t in zip(source, target, strict=True))
            raise ValueError(
                f"max_length must leave something to train on, but max_length={max_length} and the shortest of "
                f"{len(text)} pairs has {shortest} tokens"
            )
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
        """The tokens, without EOS, that 99 % of the source texts do not exceed: of longer ones little is learned."""
        return int(np.percentile([len(row) for row in self.source], 99)) - 1

    def epoch(self, n: int) -> Epoch:
        """The batches of epoch n."""
        source, target = self.ids(n)
        return pair_epoch(source, target, tokens_per_batch=self.tokens_per_batch, seed=self.seed, epoch=n, bos=BOS)

    def ids(self, n: int) -> tuple[list[list[int]], list[list[int]]]:
        """The ids of both sides in epoch n, each row ending in EOS; with BPE-dropout they differ between epochs."""
        if not self.bpe_dropout:
            return self.source, self.target
        sides = ((self.source_tokenizer, self.text.source), (self.target_tokenizer, self.text.target))
        source, target = (
            _with_eos(tokenizer.encode_with_dropout(lines, dropout=self.bpe_dropout, seed=self._seed(n, side)))
            for side, (tokenizer, lines) in enumerate(sides)
        )
        return source, target

    def _seed(self, epoch: int, side: int) -> int:
        return (self.seed * 1_000_003 + 2 * epoch + side) % (1 << 32)


def _with_eos(rows: list[list[int]]) -> list[list[int]]:
    return [[*row, EOS] for row in rows]


def fingerprint(*texts: ParallelText) -> str:
    """SHA-256 of the sentences, which does not depend on where the files are."""
    return lines_fingerprint(line for text in texts for side in (text.source, text.target) for line in side)
