"""Baselines without attention: predict a token from its neighbours by counting pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from transduce.errors import InputError

if TYPE_CHECKING:
    from transduce.data.language import Stream
    from transduce.data.text_batches import MaskedBatches


def bigram_cross_entropy(
    train: Stream, valid: Stream, vocab_size: int, *, prior: float = 10.0, limit: int | None = None
) -> float:
    """Cross-entropy on `valid`, in nats per token, of a bigram model of `train`; the first token is given.

    p(b | a) = (count(a, b) + prior u(b)) / (count(a) + prior), u(b) = (count(b) + 1) / (tokens + vocab_size). The
    counts are of the first `limit` training tokens, or of all; see `Neighbours`.

    Raises:
        InputError: `valid` has no pair, or the prior is not positive.
    Source: MacKay and Peto (1995), A hierarchical Dirichlet language model.
    """
    if len(valid) < 2 or prior <= 0:
        raise InputError(
            "a bigram needs two validation tokens or more and a positive prior, but there are "
            f"{len(valid)} and prior={prior}"
        )
    model = Neighbours(train, vocab_size, prior=prior, limit=limit)
    known, counts = np.append(model.pairs, vocab_size**2), np.append(model.counts, 0.0)  # so that every place is valid
    nats = 0.0
    for chunk in valid.chunks(overlap=1):
        pairs = _pairs(chunk, vocab_size)
        places = np.searchsorted(known, pairs)
        seen = np.where(known[places] == pairs, counts[places], 0.0)
        nats -= np.log((seen + model.unigram[chunk[1:]]) / model.total[chunk[:-1]]).sum()
    return float(nats / (len(valid) - 1))


def _pairs(ids: Int[np.ndarray, " _"], vocab_size: int) -> Int[np.ndarray, " _"]:
    """A number for each pair of a token and the next one."""
    return ids[:-1] * vocab_size + ids[1:]


class Neighbours:
    """Predicts a masked token from the one before it and the one after it, by counting pairs.

    p(x | a, b) is proportional to p(x | a) p(b | x), each p as in `bigram_cross_entropy`. This is exact for a text
    that is a Markov chain. Only pairs that occur are kept in memory.

    Args:
        limit: count only this many first training tokens.
        prior: weight of the single tokens beside the pairs.
    """

    def __init__(self, train: Stream, vocab_size: int, *, prior: float = 10.0, limit: int | None = None) -> None:
        single = np.bincount(train.read(0, 1), minlength=vocab_size)  # the first token has no predecessor
        counted = []
        for chunk in train.chunks(overlap=1, limit=limit):
            single = single + np.bincount(chunk[1:], minlength=vocab_size)
            counted.append(np.unique(_pairs(chunk, vocab_size), return_counts=True))
        pairs, counts = map(np.concatenate, zip(*counted, strict=True))
        self.pairs, places = np.unique(pairs, return_inverse=True)
        self.counts = np.bincount(places, weights=counts)
        self.first, self.second = np.divmod(self.pairs, vocab_size)
        self.unigram = prior * (single + 1) / (single.sum() + vocab_size)
        self.total = prior + np.bincount(self.first, weights=self.counts, minlength=vocab_size)
        ids = np.arange(vocab_size + 1)
        self.after = np.searchsorted(self.first, ids)
        self.by_second = self.second.argsort(kind="stable")
        self.before = np.searchsorted(self.second[self.by_second], ids)

    def __call__(self, left: int, right: int | None) -> np.ndarray:
        """The probability of every token between these two; `right` is None where the text ends."""
        p = self.unigram.copy()
        pairs = slice(self.after[left], self.after[left + 1])
        p[self.second[pairs]] += self.counts[pairs]
        if right is not None:
            q = np.full(len(p), self.unigram[right])
            places = self.by_second[self.before[right] : self.before[right + 1]]
            q[self.first[places]] += self.counts[places]
            p *= q / self.total
        return p / p.sum()

    def scores(self, batches: MaskedBatches) -> tuple[float, float]:
        """Nats per chosen token, and the share of chosen tokens whose most probable token is the right one.

        The true neighbours are given, even where the model sees them masked.
        """
        from transduce.data.batch import IGNORE

        nats, right = 0.0, 0
        for text, batch in zip(batches.texts, batches, strict=True):
            for row, t in (batch.target_out != IGNORE).nonzero().tolist():
                row_ids, wanted = text.target_out[row], int(text.target_out[row, t])
                after = int(row_ids[t + 1]) if t + 1 < text.target_lengths[row] else None
                p = self(int(text.target_in[row, t]), after)
                nats -= float(np.log(p[wanted]))
                right += int(p.argmax()) == wanted
        n_tokens = sum(batch.n_tokens for batch in batches)
        return nats / n_tokens, right / n_tokens
