"""The best tokens of many rows. On a CPU nothing is sorted, and no second table of the vocabulary's size is made."""

import math
from ctypes import CDLL
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.kernels import library

GROUP = 64
"""Neighbouring tokens that are compared by the largest of their scores first."""
ROWS = 16
"""Rows whose exponentials are in memory at a time: they stay in the CPU's cache."""
SMALL = 1 << 12
"""Scores of a sentence up to which a sort of all is as quick."""
LEAST = -80.0
"""Logits further below the largest add nothing to the sum; their exponentials would be subnormal, which is slow."""


class Continuations(NamedTuple):
    """Tokens with which the hypotheses of every sentence may go on, best first."""

    log_prob: Float[Tensor, "A n"]
    """Of the hypothesis with the token; -inf where there are fewer than n."""
    token: Int[Tensor, "A n"]
    parent: Int[Tensor, "A n"]
    """The hypothesis that the token continues."""


def log_sum_exp(logits: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """log of the sum of exp(logits) of every row; log_softmax is the logits minus it."""
    if (cpp := _in_cpp(logits)) is not None:
        out = logits.new_empty(len(logits))
        cpp.log_sum_exp(logits.data_ptr(), *logits.shape, out.data_ptr(), torch.get_num_threads())
        return out
    if logits.device.type != "cpu" or logits.numel() <= ROWS * GROUP:
        return logits.logsumexp(-1)
    largest, total = logits.amax(-1, keepdim=True), logits.new_empty(len(logits))
    buffer = logits.new_empty(ROWS, logits.size(1))
    for rows, top, out in zip(logits.split(ROWS), largest.split(ROWS), total.split(ROWS), strict=True):
        torch.sum(torch.sub(rows, top, out=buffer[: len(rows)]).clamp_min_(LEAST).exp_(), dim=-1, out=out)
    largest = largest[:, 0]
    return torch.where(largest.isinf(), largest, total.log_().add_(largest))


def top_k(scores: Float[Tensor, "N V"], offset: Float[Tensor, "A K"], n: int) -> Continuations:
    """The n largest of scores + offset among the K rows of every sentence, largest first.

    A token is among the n best only if its group of GROUP tokens is, by the largest of its scores: so the vocabulary is
    read once, and only n groups of it are sorted. The order of equal ones does not depend on the other sentences.

    Args:
        offset: added to the scores of row b * K + k.
    """
    n_sentences, n_rows = offset.shape
    vocab_size = scores.size(1)
    n_groups = -(-vocab_size // GROUP)
    if n == n_rows == 1:
        value, token = scores.max(-1, keepdim=True)  # the first of equal ones
        return Continuations(value + offset, token, torch.zeros_like(token))
    if (cpp := _in_cpp(scores)) is not None:
        values = scores.new_empty(n_sentences, n)
        tokens, rows = (torch.empty(n_sentences, n, dtype=torch.long) for _ in range(2))
        outputs = (each.data_ptr() for each in (values, tokens, rows))
        offset = offset.contiguous()
        size = (n_sentences, n_rows, vocab_size, n)
        cpp.likeliest(scores.data_ptr(), offset.data_ptr(), *size, *outputs, torch.get_num_threads())
        return Continuations(values, tokens, rows)
    few = n_rows * vocab_size <= SMALL or n_rows * n_groups < 2 * n
    if few or scores.device.type != "cpu":
        total = (scores.view(n_sentences, n_rows, vocab_size) + offset[:, :, None]).flatten(1)
        if total.size(1) < n:  # in the first steps with a tiny vocabulary
            total = torch.nn.functional.pad(total, (0, n - total.size(1)), value=-math.inf)
        values, index = total.topk(n)
        return Continuations(values, index % vocab_size, (index // vocab_size).clamp_max(n_rows - 1))
    grouped = vocab_size - vocab_size % GROUP
    tops = scores.new_empty(len(scores), n_groups)
    torch.amax(scores[:, :grouped].unflatten(1, (-1, GROUP)), dim=-1, out=tops[:, : grouped // GROUP])
    if grouped < vocab_size:
        torch.amax(scores[:, grouped:], dim=-1, keepdim=True, out=tops[:, -1:])
    _, best = (tops.view(n_sentences, n_rows, n_groups) + offset[:, :, None]).flatten(1).topk(n, sorted=False)
    row, group = best // n_groups, best % n_groups
    token = group[:, :, None] * GROUP + torch.arange(GROUP)  # (A, n, GROUP)
    first = torch.arange(n_sentences)[:, None] * n_rows
    place = (first + row)[:, :, None] * vocab_size + token.clamp_max(vocab_size - 1)
    total = scores.flatten()[place] + offset.gather(1, row)[:, :, None]
    values, index = total.masked_fill_(token >= vocab_size, -math.inf).flatten(1).topk(n)
    return Continuations(values, token.flatten(1).gather(1, index), row.gather(1, index // GROUP))


def _in_cpp(scores: Tensor) -> CDLL | None:
    """The library of kernels, if it takes tables of this kind."""
    fits = scores.device.type == "cpu" and scores.dtype == torch.float32 and scores.is_contiguous()
    return library() if fits else None
