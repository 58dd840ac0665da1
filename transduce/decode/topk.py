"""The best tokens of many rows, in C++ on a CPU without a sort or a second table."""

import math
from ctypes import CDLL
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.kernels import library


class Continuations(NamedTuple):
    """Tokens with which the hypotheses of every sentence may go on, best first."""

    log_prob: Float[Tensor, "A n"]
    """Of the hypothesis with the token; -inf where there are fewer than n."""
    token: Int[Tensor, "A n"]
    parent: Int[Tensor, "A n"]
    """The hypothesis that the token continues."""


def log_sum_exp(logits: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """log of the sum of exp(logits) of every row; log_softmax is the logits minus it."""
    if (cpp := in_cpp(logits)) is not None:
        out = logits.new_empty(len(logits))
        cpp.log_sum_exp(logits.data_ptr(), *logits.shape, out.data_ptr(), torch.get_num_threads())
        return out
    return logits.logsumexp(-1)


def top_k(scores: Float[Tensor, "N V"], offset: Float[Tensor, "A K"], n: int) -> Continuations:
    """The n largest of scores + offset among the K rows of every sentence, largest first.

    The order of equal ones does not depend on the other sentences.

    Args:
        offset: added to the scores of row b * K + k.
    """
    n_sentences, n_rows = offset.shape
    vocab_size = scores.size(1)
    if (cpp := in_cpp(scores)) is not None:
        values = scores.new_empty(n_sentences, n)
        tokens, rows = (torch.empty(n_sentences, n, dtype=torch.long) for _ in range(2))
        outputs = (each.data_ptr() for each in (values, tokens, rows))
        offset = offset.contiguous()
        size = (n_sentences, n_rows, vocab_size, n)
        cpp.top_k(scores.data_ptr(), offset.data_ptr(), *size, *outputs, torch.get_num_threads())
        return Continuations(values, tokens, rows)
    if n == n_rows == 1:
        value, token = scores.max(-1, keepdim=True)  # the first of equal ones
        return Continuations(value + offset, token, torch.zeros_like(token))
    total = (scores.view(n_sentences, n_rows, vocab_size) + offset[:, :, None]).flatten(1)
    if total.size(1) < n:  # in the first steps with a tiny vocabulary
        total = torch.nn.functional.pad(total, (0, n - total.size(1)), value=-math.inf)
    values, index = total.topk(n)
    return Continuations(values, index % vocab_size, (index // vocab_size).clamp_max(n_rows - 1))


def in_cpp(scores: Tensor) -> CDLL | None:
    """The library of kernels, if it takes tables of this kind."""
    fits = scores.device.type == "cpu" and scores.dtype == torch.float32 and scores.is_contiguous()
    return library() if fits else None
