"""What search may produce: suppressed tokens, no n-gram twice, and how long a hypothesis may become."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def ids_tensor(ids: Sequence[int], device: torch.device) -> Int[Tensor, " M"]:
    """Token ids or row numbers on the device of the search."""
    return torch.tensor(ids, dtype=torch.long, device=device)


class Constraints:
    """What one search may produce.

    Args:
        max_lengths: bound on the new tokens of each sentence, EOS included, on the device of the search.
        eos_id: None: nothing ends before its bound.
        suppressed: ids never produced.
        no_repeat_ngram: no n-gram of this many new tokens occurs twice in a hypothesis; 0 = off.

    Raises:
        ValueError: a bound is below 1, or no_repeat_ngram negative or without an EOS.
    """

    def __init__(
        self,
        max_lengths: Int[Tensor, " B"],
        *,
        eos_id: int | None,
        suppressed: Sequence[int] = (),
        no_repeat_ngram: int = 0,
    ) -> None:
        if len(max_lengths) and int(max_lengths.min()) < 1:
            raise ValueError(
                f"max_lengths must be at least 1, but the least is {int(max_lengths.min())}; "
                "leave empty sentences out of the batch"
            )
        if no_repeat_ngram < 0 or (no_repeat_ngram and eos_id is None):
            raise ValueError(
                "no_repeat_ngram must be at least 0 (0 = off), and off where no EOS can end what has no token left, "
                f"but no_repeat_ngram={no_repeat_ngram} and eos_id={eos_id}"
            )
        self.max_lengths, self.eos_id, self.no_repeat_ngram = max_lengths, eos_id, no_repeat_ngram
        self.suppressed_ids = ids_tensor(suppressed, max_lengths.device)

    def rule_out(self, scores: Float[Tensor, "N V"], tokens: Int[Tensor, "N L"]) -> None:
        """Set to -inf, in place, suppressed ids and tokens that would complete an n-gram for the second time.

        A hypothesis that the n-gram rule leaves no token may end, even where EOS is suppressed.

        Args:
            tokens: the new tokens of the hypotheses so far.
        """
        ending = scores[:, self.eos_id].clone() if self.no_repeat_ngram else None
        scores.index_fill_(1, self.suppressed_ids, -math.inf)
        if ending is not None:
            suppress_repeats(scores, tokens, self.no_repeat_ngram)
            stuck = scores.amax(dim=1) == -math.inf
            scores[:, self.eos_id] = torch.where(stuck, ending, scores[:, self.eos_id])


def length_bounds(lengths: Int[Tensor, " B"], ratio: float, extra: int, *, limit: int) -> Int[Tensor, " B"]:
    """The most tokens that may come out of sources of these lengths: ratio * length + extra, but never above `limit`."""
    return ((lengths * ratio).long() + extra).clamp(max=limit)


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
