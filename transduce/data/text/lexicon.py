"""Which words translate which: a table of translation probabilities, learned from parallel text alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
AT_ONCE = 1 << 24
"""Pairs of a source and a target token, in memory at a time: about 0.5 GB."""


def pairs_of_tokens(source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> tuple[Ids, Ids, Ids]:
    """Every source token of a sentence beside every target token: both ids, and the place of the target in the text."""
    n_source, n_target = (np.array([len(row) for row in side]) for side in (source, target))
    s, t = (np.concatenate([np.asarray(row, dtype=np.int64) for row in side]) for side in (source, target))
    first = np.repeat(np.cumsum(n_source) - n_source, n_target)  # of each target token's sentence
    each = np.repeat(n_source, n_target)
    place = np.repeat(np.arange(len(t)), each)
    within = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    return s[np.repeat(first, each) + within], t[place], place


def likeliest_translations(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    *,
    source_size: int,
    target_size: int,
    n: int,
    iterations: int = 5,
) -> Ids:
    """The n likeliest target tokens of every source token by IBM model 1, of shape (source_size, n).

    Where there are fewer, the likeliest is repeated; a token that never occurs has itself, or 0 where there is no such
    target token. Of long texts as many sentences are read, evenly chosen, as fit into memory.

    Source: Brown et al. (1993), The mathematics of statistical machine translation, section 4.1, by expectation
    maximization from equal probabilities.
    """
    cells = np.cumsum([len(s) * len(t) for s, t in zip(source, target, strict=True)])
    every = max(1, -(-int(cells[-1]) // AT_ONCE)) if len(cells) else 1
    kept = [i for i in range(0, len(source), every) if source[i] and target[i]]
    found = np.arange(source_size)
    found[found >= target_size] = 0
    table = np.repeat(found[:, None], n, axis=1)
    if not kept:
        return table
    s, t, place = pairs_of_tokens([source[i] for i in kept], [target[i] for i in kept])
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
