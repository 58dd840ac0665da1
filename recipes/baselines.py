"""The model without attention: the next token from the last one alone, by counting."""

import numpy as np
from jaxtyping import Int

from transduce.data.text.stream import Stream


def bigram_cross_entropy(
    train: Stream, valid: Stream, vocab_size: int, *, prior: float = 10.0, limit: int | None = None
) -> float:
    """Nats per token that pairs counted in `train` give to `valid`; its first token is given.

    p(b | a) = (count(a, b) + prior u(b)) / (count(a) + prior), u(b) = (count(b) + 1) / (tokens + vocab_size). The
    counts are of the first `limit` training tokens, or of all; only pairs that `valid` has are kept in memory.

    Raises:
        ValueError: `valid` has no pair, or the prior is not positive.
    Source: MacKay and Peto (1995), A hierarchical Dirichlet language model.
    """
    if len(valid) < 2 or prior <= 0:
        raise ValueError(
            "a bigram needs two validation tokens or more and a positive prior, but "
            f"there are {len(valid)} and prior={prior}"
        )
    asked = np.concatenate([_pairs(chunk, vocab_size) for chunk in valid.chunks(overlap=1)])
    pairs, n_asked = np.unique(asked, return_counts=True)
    single, firsts = np.zeros(vocab_size, dtype=np.int64), np.zeros(vocab_size, dtype=np.int64)
    both = np.zeros(len(pairs), dtype=np.int64)
    single[train.read(0, 1)] += 1  # it follows nothing
    n_tokens = len(train) if limit is None else min(limit, len(train))
    for chunk in train.chunks(overlap=1, limit=n_tokens):
        single += np.bincount(chunk[1:], minlength=vocab_size)
        firsts += np.bincount(chunk[:-1], minlength=vocab_size)
        seen = _pairs(chunk, vocab_size)
        place = np.minimum(np.searchsorted(pairs, seen), len(pairs) - 1)
        both += np.bincount(place[pairs[place] == seen], minlength=len(pairs))
    first, second = np.divmod(pairs, vocab_size)
    unigram = (single[second] + 1) / (n_tokens + vocab_size)
    probability = (both + prior * unigram) / (firsts[first] + prior)
    return float(-(n_asked * np.log(probability)).sum() / n_asked.sum())


def _pairs(ids: Int[np.ndarray, " _"], vocab_size: int) -> Int[np.ndarray, " _"]:
    return ids[:-1] * vocab_size + ids[1:]
