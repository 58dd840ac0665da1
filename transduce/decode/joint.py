"""Two Scorers as one: joint CTC/attention search, or a model and any other judge of the same tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.scorer import Scorer, log_probs


class JointScorer:
    """(1 - weight) * one's log-probabilities + weight * the other's. A share of 0 is not computed at all.

    With CTC, attention's freedom to skip and repeat is checked against the frames.

    Raises:
        ValueError: weight is not in [0, 1], or the two have not the same number of sentences.
    Source: Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech recognition.
    """

    additive = True

    def __init__(self, scorer: Scorer, other: Scorer, *, weight: float) -> None:
        if not 0 <= weight <= 1:
            raise ValueError(f"weight must lie in [0, 1], but weight={weight}")
        if scorer.n_sentences != other.n_sentences:
            raise ValueError(
                "two scorers must have the same sentences, "
                f"but one has {scorer.n_sentences} and the other {other.n_sentences}"
            )
        self.parts = [(share, part) for share, part in ((1 - weight, scorer), (weight, other)) if share]

    @property
    def n_sentences(self) -> int:
        """B, the sentences still being searched."""
        return self.parts[0][1].n_sentences

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Append one token to every row; the weighted sum of what the next would add."""
        return torch.stack([share * log_probs(part, tokens) for share, part in self.parts]).sum(dim=0)

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        for _, part in self.parts:
            part.reorder(rows)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        for _, part in self.parts:
            part.keep(sentences)
