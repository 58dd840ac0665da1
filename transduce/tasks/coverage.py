"""How much of the source a hypothesis has looked at: the coverage penalty."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.scorer import ModelScorer
from transduce.engine.select import Engine
from transduce.model.transformer import Memory
from transduce.taps import Taps


class CoverageScorer(ModelScorer):
    """A model's scorer that also adds up where it looks: by the layer that `Alignment.mean` draws, over its heads."""

    def __init__(self, model: Engine, memory: Memory, prompts: Int[Tensor, "B P"] | None = None) -> None:
        super().__init__(model, memory, prompts=prompts)
        assert model.config.decoder is not None
        self.layer = max(0, model.config.decoder.n_layers - 2)
        places = torch.arange(memory.states.size(1), device=memory.states.device)
        self.outside = torch.zeros(memory.states.shape[:2], dtype=torch.bool, device=places.device)
        """Positions of padding."""
        if memory.lengths is not None:
            self.outside = places >= memory.lengths[:, None]
        self.looked: Float[Tensor, "N S"] = torch.zeros_like(self.outside, dtype=torch.float32)

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        self.taps = Taps(cross_attention=True, layer=self.layer)
        logits = super().step(tokens)
        assert self.taps.cross_attention
        self.looked = self.looked + self.taps.cross_attention[0].mean(dim=1).sum(dim=1).to(self.looked.dtype)
        return logits

    def coverage(self) -> Float[Tensor, " N"]:
        """The sum over source positions of log(min(1, all attention to it so far)).

        Source: Wu et al. (2016), Google's neural machine translation system, section 7, equation 14.
        """
        looked = self.looked.clamp(torch.finfo(self.looked.dtype).tiny, 1.0)
        return looked.log().masked_fill(self.outside, 0.0).sum(dim=1)

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        super().reorder(rows)
        self.looked, self.outside = self.looked[rows], self.outside[rows]
