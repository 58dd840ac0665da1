"""What search returns, what it is asked, and how hypotheses of unlike length are compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]
    """Without BOS and EOS."""
    log_prob: float
    """Natural log of the product over all tokens, EOS included where it was reached; nan where it was not asked for.
    Where the scorer is additive, the sum of its scores."""
    score: float
    """log_prob / length_penalty: what beam search ranks by."""
    finished: bool
    """False when the length bound cut it before EOS."""


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6) ** alpha; `length` counts EOS. alpha = 0 compares plain log-probabilities.

    Source: Wu et al. (2016), Google's neural machine translation system, section 7.
    """
    return ((5 + length) / 6) ** alpha


def check_bounds(n_sentences: int, max_lengths: Int[Tensor, " B"]) -> None:
    """Raise ValueError unless there is one bound per sentence, each at least 1."""
    if len(max_lengths) != n_sentences:
        raise ValueError(
            f"max_lengths must hold one bound per sentence, but it holds {len(max_lengths)} for {n_sentences} sentences"
        )
    if n_sentences and int(max_lengths.min()) < 1:
        raise ValueError(
            f"max_lengths must be at least 1, but the least is {int(max_lengths.min())}; "
            "leave empty sentences out of the batch"
        )


def ids_tensor(ids: Sequence[int], device: torch.device) -> Int[Tensor, " M"]:
    """Ids or row numbers on the device of the search."""
    return torch.tensor(ids, dtype=torch.long, device=device)
