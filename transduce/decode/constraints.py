"""What search may produce: suppressed tokens, no n-gram twice, and how long a hypothesis may become."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def check_constraints(
    n_sentences: int, max_lengths: Int[Tensor, " B"], *, no_repeat_ngram: int, eos_id: int | None
) -> None:
    """Raise ValueError unless there is a bound of at least 1 per sentence, and the n-gram rule can be kept."""
    if len(max_lengths) != n_sentences:
        raise ValueError(
            f"max_lengths must hold one bound per sentence, but it holds {len(max_lengths)} for {n_sentences} sentences"
        )
    if n_sentences and int(max_lengths.min()) < 1:
        raise ValueError(
            f"max_lengths must be at least 1, but the least is {int(max_lengths.min())}; "
            "leave empty sentences out of the batch"
        )
    if no_repeat_ngram < 0 or (no_repeat_ngram and eos_id is None):
        raise ValueError(
            "no_repeat_ngram must be at least 0 (0 = off), and off where no EOS can end what has no token left, but "
            f"no_repeat_ngram={no_repeat_ngram} and eos_id={eos_id}"
        )


def length_bounds(lengths: Int[Tensor, " B"], *, ratio: float, extra: int, limit: int) -> Int[Tensor, " B"]:
    """The most tokens that may come out of sources of these lengths: ratio * length + extra, but never above `limit`."""
    return ((lengths * ratio).long() + extra).clamp(max=limit)


def ids_tensor(ids: Sequence[int], device: torch.device) -> Int[Tensor, " M"]:
    """Token ids or row numbers on the device of the search."""
    return torch.tensor(ids, dtype=torch.long, device=device)


def rule_out(
    scores: Float[Tensor, "N V"],
    tokens: Int[Tensor, "N L"],
    *,
    suppressed_ids: Int[Tensor, " M"],
    no_repeat_ngram: int,
    eos_id: int | None,
) -> None:
    """Set to -inf, in place, the suppressed ids and the tokens that would complete an n-gram for the second time.

    A hypothesis that the n-gram rule leaves no token may end, even where EOS is suppressed.

    Args:
        tokens: the hypotheses so far, without what they began with.
        no_repeat_ngram: tokens of an n-gram; 0 = off.
    """
    if not no_repeat_ngram:
        scores.index_fill_(1, suppressed_ids, -math.inf)
        return
    ending = scores[:, eos_id].clone()
    scores.index_fill_(1, suppressed_ids, -math.inf)
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
