"""Front-ends: ids or frames to vectors. Each says how many positions a row has after it."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.model.config import Frames, Tokens


class TokenInput(nn.Module):
    """An embedding table, scaled by sqrt(d_model) where the paper's scaling is on (section 3.4)."""

    def __init__(self, tokens: Tokens, d_model: int, *, scaled: bool) -> None:
        super().__init__()
        self.tokens = tokens
        self.weight = nn.Parameter(torch.empty(tokens.padded_size, d_model))
        self.scale = math.sqrt(d_model) if scaled else 1.0

    def forward(
        self, ids: Int[Tensor, "N T"], lengths: Int[Tensor, " N"] | None = None
    ) -> tuple[Float[Tensor, "N T D"], Int[Tensor, " N"] | None]:
        """The vectors, and the lengths unchanged."""
        return F.embedding(ids, self.weight) * self.scale, lengths


class FrameInput(nn.Module):
    """Stacked frames, straight in where their width is d_model, otherwise through one linear map.

    Padding is set to zero first, so that it cannot enter a row's last stack.
    """

    def __init__(self, frames: Frames, d_model: int, *, bias: bool = True) -> None:
        super().__init__()
        self.frames = frames
        straight = frames.width == d_model and not frames.project
        self.projection = None if straight else nn.Linear(frames.width, d_model, bias=bias)

    def forward(
        self, frames: Float[Tensor, "N T F"], lengths: Int[Tensor, " N"] | None = None
    ) -> tuple[Float[Tensor, "N U D"], Int[Tensor, " N"] | None]:
        """The vectors, U = frames.out_lengths(T) per row, and their lengths."""
        if lengths is not None:
            outside = torch.arange(frames.size(1), device=frames.device) >= lengths[:, None]
            frames = frames.masked_fill(outside[:, :, None], 0.0)
            lengths = self.frames.out_lengths(lengths)
        frames = F.pad(frames, (0, 0, 0, -frames.size(1) % self.frames.stack))
        vectors = frames.reshape(frames.size(0), -1, self.frames.width)
        return (vectors if self.projection is None else self.projection(vectors)), lengths
