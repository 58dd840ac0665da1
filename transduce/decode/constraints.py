"""What may not come next: ids that are never produced, and the end of an n-gram that was there before."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def check_no_repeat_ngram(no_repeat_ngram: int) -> None:
    """Raise ValueError unless it is a number of tokens, or 0."""
    if no_repeat_ngram < 0:
        raise ValueError(f"no_repeat_ngram must be at least 0 (0 = off), but no_repeat_ngram={no_repeat_ngram}")


def rule_out(
    scores: Float[Tensor, "N V"],
    tokens: Int[Tensor, "N L"],
    *,
    suppressed_ids: Int[Tensor, " M"],
    no_repeat_ngram: int,
    eos_id: int,
) -> None:
    """Set to -inf, in place, the banned ids and the tokens that would complete an n-gram for the second time.

    A hypothesis that the block leaves no token may end, even where EOS is banned.

    Args:
        tokens: the hypotheses so far, without BOS.
    """
    ending = scores[:, eos_id].clone() if no_repeat_ngram else None
    scores.index_fill_(1, suppressed_ids, -math.inf)
    if ending is not None:
        suppress_repeats(scores, tokens, no_repeat_ngram)
        stuck = scores.amax(dim=1) == -math.inf
        scores[:, eos_id] = torch.where(stuck, ending, scores[:, eos_id])


def suppress_repeats(scores: Float[Tensor, "N V"], tokens: Int[Tensor, "N L"], n: int) -> None:
    """Set to -inf, in place, the tokens that would complete an n-gram that `tokens` already holds.

    Source: Paulus et al. (2018), A deep reinforced model for abstractive summarization, section 2.5 (there n = 3).
    """
    length = tokens.size(1)
    if length < n:
        return
    grams = tokens.unfold(1, n, 1)  # (N, L - n + 1, n)
    begun = (grams[:, :, :-1] == tokens[:, None, length - n + 1 :]).all(dim=-1)
    loss = torch.zeros_like(begun, dtype=scores.dtype).masked_fill_(begun, -math.inf)
    scores.scatter_add_(1, grams[:, :, -1], loss)
