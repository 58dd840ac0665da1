"""Front-ends: ids or frames to vectors. Each says how many positions a row has after it."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.model.front_ends import ConvActivation, Frames, Tokens

ACTIVATIONS: dict[ConvActivation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "glu": partial(F.glu, dim=1),
}
"""What follows a convolution over (N, channels, T)."""


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
        frames = zero_padding(frames, lengths)
        lengths = None if lengths is None else self.frames.out_lengths(lengths)
        frames = F.pad(frames, (0, 0, 0, -frames.size(1) % self.frames.stack))
        vectors = frames.reshape(frames.size(0), -1, self.frames.width)
        return (vectors if self.projection is None else self.projection(vectors)), lengths


class ConvolvedInput(nn.Module):
    """Convolutions over time, each with its nonlinearity, whose strides make positions of frames.

    The features are the channels before the first. A convolution looks to its right, so padding is
    set to zero before each of them, as beyond the end of a row alone.

    Source: Synnaeve et al. (2020), End-to-end ASR, for gated ones; Radford et al. (2022), Whisper,
    section 2.2.
    """

    def __init__(self, frames: Frames, d_model: int, *, bias: bool = True) -> None:
        super().__init__()
        self.frames = frames
        between = [frames.conv_channels or d_model] * (len(frames.conv_strides) - 1)
        sizes = pairwise([frames.n_features, *between, d_model])
        gates = 2 if frames.conv_activation == "glu" else 1
        width = frames.conv_kernel
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, gates * after, width, stride, padding=width // 2, bias=bias)
            for (before, after), stride in zip(sizes, frames.conv_strides, strict=True)
        )
        self.activation = ACTIVATIONS[frames.conv_activation]

    def forward(
        self, frames: Float[Tensor, "N T F"], lengths: Int[Tensor, " N"] | None = None
    ) -> tuple[Float[Tensor, "N U D"], Int[Tensor, " N"] | None]:
        """The vectors, U = frames.out_lengths(T) per row, and their lengths."""
        states = frames
        for convolution, stride in zip(self.convolutions, self.frames.conv_strides, strict=True):
            channels = zero_padding(states, lengths).transpose(1, 2)
            states = self.activation(convolution(channels)).transpose(1, 2)
            lengths = None if lengths is None else -(-lengths // stride)
        return states, lengths


def zero_padding(
    states: Float[Tensor, "N T F"], lengths: Int[Tensor, " N"] | None
) -> Float[Tensor, "N T F"]:
    """Zeros beyond the length of each row."""
    if lengths is None:
        return states
    outside = torch.arange(states.size(1), device=states.device) >= lengths[:, None]
    return states.masked_fill(outside[:, :, None], 0.0)
