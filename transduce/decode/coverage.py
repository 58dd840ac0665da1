"""The coverage penalty: how much of the source a hypothesis has attended to."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.scorer import Decoder, ModelScorer, Places, Scores, Tokens
from transduce.taps import Taps


class CoverageScorer(ModelScorer):
    """A model's scorer that also sums up the cross-attention of one layer, over its heads.

    Args:
        layer: the number of the decoder's layer, from 0.
    """

    def __init__(
        self, model: Decoder, memory: Any, prompts: Int[Tensor, "B P"] | None = None, *, layer: int
    ) -> None:
        super().__init__(model, memory, prompts=prompts)
        self.layer = layer
        shape, device = memory.states.shape[:2], memory.states.device
        self.padding = torch.zeros(shape, dtype=torch.bool, device=device)
        if memory.lengths is not None:
            self.padding = torch.arange(shape[1], device=device) >= memory.lengths[:, None]
        self.attention: Float[Tensor, "N S"] = torch.zeros(shape, device=device)
        """The sum over all steps so far."""

    def step(self, tokens: Tokens) -> Scores:
        self.taps = Taps(cross_attention=True, layer=self.layer)
        logits = super().step(tokens)
        assert self.taps.cross_attention
        self.attention = self.attention + self.taps.cross_attention[0].mean(dim=1).sum(dim=1).to(
            torch.float32
        )
        return logits

    def coverage(self) -> Float[Tensor, " N"]:
        """The sum over source positions of log(min(1, all attention to it so far)).

        Source: Wu et al. (2016), Google's neural machine translation system, section 7, equation
        14.
        """
        attention = self.attention.clamp(torch.finfo(torch.float32).tiny, 1.0)
        return attention.log().masked_fill(self.padding, 0.0).sum(dim=1)

    def reorder(self, rows: Places) -> None:
        super().reorder(rows)
        self.attention = self.attention[rows]
        self.padding = self.padding[rows]
