"""A table of translation probabilities of words, learned from parallel text alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
AT_ONCE = 1 << 24
"""Pairs of a source and a target token in memory: about 0.5 GB."""


def pairs_of_tokens(
    source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
) -> tuple[Ids, Ids, Ids]:
    """Every source token of a sentence beside every target token: both ids, and the place of the
    target in the text."""
    sentences = list(zip(source, target, strict=True))
    source_ids = np.concatenate([np.tile(np.asarray(s, np.int64), len(t)) for s, t in sentences])
    target_ids = np.concatenate([np.repeat(np.asarray(t, np.int64), len(s)) for s, t in sentences])
    sizes = [len(s) for s, t in sentences for _ in t]
    return source_ids, target_ids, np.repeat(np.arange(len(sizes)), sizes)


def likeliest_translations(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    *,
    source_size: int,
    target_size: int,
    n: int,
    iterations: int = 5,
) -> Ids:
    """The n most probable target tokens of every source token by IBM model 1, of shape
    (source_size, n).

    Where there are fewer, the most probable is repeated; a token that never occurs has itself, or 0
    where there is no such target token. Of long texts as many sentences are read, evenly chosen, as
    fit into memory.

    Source: Brown et al. (1993), The mathematics of statistical machine translation, section 4.1, by
    expectation maximization from equal probabilities.
    """
    cells = sum(len(s) * len(t) for s, t in zip(source, target, strict=True))
    step = max(1, -(-cells // AT_ONCE))
    chosen = [i for i in range(0, len(source), step) if source[i] and target[i]]
    itself = np.arange(source_size)
    itself[itself >= target_size] = 0
    table = np.repeat(itself[:, None], n, axis=1)
    if not chosen:
        return table
    s, t, place = pairs_of_tokens([source[i] for i in chosen], [target[i] for i in chosen])
    keys, cell = np.unique(s * target_size + t, return_inverse=True)
    of_source = keys // target_size
    probability = np.full(len(keys), 1.0)
    for _ in range(iterations):
        weight = probability[cell]
        weight /= np.bincount(place, weight)[place]
        counts = np.bincount(cell, weight, len(keys))
        probability = counts / np.bincount(of_source, counts, source_size)[of_source]
    order = np.lexsort((-probability, of_source))
    sources, starts, sizes = np.unique(of_source[order], return_index=True, return_counts=True)
    ranks = np.arange(n)
    best = order[starts[:, None] + np.where(ranks < sizes[:, None], ranks, 0)]
    table[sources] = keys[best] % target_size
    return table
