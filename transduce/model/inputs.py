"""The input of a stack: vectors of ids or frames, and positional encodings."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.errors import InputError
from transduce.model.config import Activation, Sinusoids, TransformerConfig
from transduce.model.front_ends import ConvActivation, Frames, Tokens
from transduce.model.linear import Linear

States = Float[Tensor, "N T D"]
"""The vectors of T positions of N rows, as they come into a stack and out of its layers."""
Lengths = Int[Tensor, " N"]
"""The number of positions of each row that are not padding."""

ACTIVATIONS: dict[Activation | ConvActivation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "glu": partial(F.glu, dim=1),
}
"""The nonlinearities of feed-forwards and of convolutions over (N, channels, T)."""


class TokenInput(nn.Module):
    """An embedding table, scaled by sqrt(d_model) where the paper's scaling is on (section 3.4)."""

    def __init__(self, tokens: Tokens, d_model: int, *, scaled: bool) -> None:
        super().__init__()
        self.tokens = tokens
        self.weight = nn.Parameter(torch.empty(tokens.padded_size, d_model))
        self.scale = math.sqrt(d_model) if scaled else 1.0

    def forward(
        self, ids: Int[Tensor, "N T"], lengths: Lengths | None = None
    ) -> tuple[States, Lengths | None]:
        """The vectors, and the lengths unchanged."""
        return F.embedding(ids, self.weight) * self.scale, lengths


class FrameInput(nn.Module):
    """Stacked frames; one linear map projects them if `project` is on or the width is not d_model.

    Padding is set to zero first, so that it cannot enter a row's last stack.
    """

    def __init__(self, frames: Frames, d_model: int, *, bias: bool = True) -> None:
        super().__init__()
        self.frames = frames
        straight = frames.width == d_model and not frames.project
        self.projection = nn.Identity() if straight else Linear(frames.width, d_model, bias=bias)

    def forward(
        self, frames: Float[Tensor, "N T F"], lengths: Lengths | None = None
    ) -> tuple[Float[Tensor, "N U D"], Lengths | None]:
        """The vectors, U = frames.out_lengths(T) per row, and their lengths."""
        frames = zero_padding(frames, lengths)
        lengths = None if lengths is None else self.frames.out_lengths(lengths)
        frames = F.pad(frames, (0, 0, 0, -frames.size(1) % self.frames.stack))
        vectors = frames.reshape(frames.size(0), -1, self.frames.width)
        return self.projection(vectors), lengths


class ConvolvedInput(nn.Module):
    """Strided convolutions over time, each followed by its nonlinearity.

    The features are the input channels of the first one. A convolution also sees frames to the
    right, so padding is set to zero before each, as if the row were alone in the batch.

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
        self, frames: Float[Tensor, "N T F"], lengths: Lengths | None = None
    ) -> tuple[Float[Tensor, "N U D"], Lengths | None]:
        """The vectors, U = frames.out_lengths(T) per row, and their lengths."""
        states = frames
        for convolution, stride in zip(self.convolutions, self.frames.conv_strides, strict=True):
            channels = zero_padding(states, lengths).transpose(1, 2)
            states = self.activation(convolution(channels)).transpose(1, 2)
            lengths = None if lengths is None else -(-lengths // stride)
        return states, lengths


def zero_padding(states: Float[Tensor, "N T F"], lengths: Lengths | None) -> Float[Tensor, "N T F"]:
    """Set positions beyond the length of each row to zero."""
    if lengths is None:
        return states
    outside = torch.arange(states.size(1), device=states.device) >= lengths[:, None]
    return states.masked_fill(outside[:, :, None], 0.0)


def sinusoidal(
    start: int,
    stop: int,
    d_model: int,
    device: torch.device | None = None,
    kind: Sinusoids = "paper",
) -> Float[Tensor, "T D"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) its cosine, for start <= pos < stop.

    An odd D ends with a sine without its cosine. tensor2tensor uses i / (D // 2 - 1) instead of
    2i/D, and there an odd D ends with 0.

    Source: Vaswani et al. (2017), section 3.5; tensor2tensor, get_timing_signal_1d.
    """
    n_pairs = (d_model + 1) // 2 if kind == "paper" else d_model // 2
    period = d_model if kind == "paper" else max(1, 2 * n_pairs - 2)
    angles = _angles(start, stop, n_pairs, period, 10000.0, device)
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return F.pad(pairs, (0, d_model - 2 * n_pairs)).float()


def rotary(
    start: int,
    stop: int,
    d_head: int,
    theta: float,
    device: torch.device | None = None,
    *,
    factor: float = 1.0,
    bands: tuple[float, float, int] | None = None,
) -> Float[Tensor, "2 T P"]:
    """Cosine and sine of pos * theta^(-2i/E), for start <= pos < stop and all P = E / 2 pairs i.

    Args:
        factor: angles are divided by it.
        bands: (low, high, n): angles of pairs that turn less than `low` times in n positions are
            divided by `factor`, those of pairs that turn more than `high` times are not, and
            between both the share falls linearly.

    Source: Su et al. (2021), RoFormer, section 3.2.2; Chen et al. (2023), position interpolation;
    Llama 3.1 for bands.
    """
    angles = _angles(start, stop, d_head // 2, d_head, theta, device)
    divided: Tensor | float = 1.0
    if bands is not None:
        low, high, n = bands
        turns = n * _angles(1, 2, d_head // 2, d_head, theta, device) / (2 * math.pi)
        divided = ((high - turns) / (high - low)).clamp(0.0, 1.0)
    angles = angles * (divided / factor + (1.0 - divided))
    return torch.stack((angles.cos(), angles.sin())).float()


def _angles(
    start: int, stop: int, n: int, period: int, theta: float, device: torch.device | None
) -> Float[Tensor, "T P"]:
    """pos * theta^(-2i/period) in float64, for i < n."""
    positions = torch.arange(start, stop, device=device, dtype=torch.float64)[:, None]
    return positions * theta ** (
        -torch.arange(0, 2 * n, 2, device=device, dtype=torch.float64) / period
    )


def rotate(
    x: Float[Tensor, "N H T E"], rotation: Float[Tensor, "2 T P"]
) -> Float[Tensor, "N H T E"]:
    """Rotate the pairs (i, i + E/2) of every head by their position's angles, in float32 or wider.

    Which numbers form a pair is a convention, as linear maps can learn any order; this is the one
    of Llama's weights.
    """
    cos, sin = rotation
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    first, second = wide.chunk(2, dim=-1)
    swapped, signed = torch.cat((second, first), dim=-1), torch.cat((-sin, sin), dim=-1)
    return torch.addcmul(wide * torch.cat((cos, cos), dim=-1), swapped, signed).to(x.dtype)


Bias = Float[Tensor, "H T S"]
"""Added to the scores of every head."""


class Distances(NamedTuple):
    """Rotary or relative positions as attention needs them; they are not added to the vectors."""

    rotation: Float[Tensor, "2 T P"] | None = None
    """Cosines and sines that rotate queries and keys, if positions are rotary."""
    bias: Bias | None = None
    """Bias for every query and key, if positions are relative."""


NO_DISTANCES = Distances()

BUCKETS, FURTHEST = 32, 128
"""Rows of the table of relative positions, and the distance from which on all distances share the
last row."""


def distance_buckets(distance: Int[Tensor, "T S"], *, causal: bool) -> Int[Tensor, "T S"]:
    """The row for each distance from a query to its key, negative for earlier keys.

    Half of the rows stand for one short distance each, the others for ranges of growing width. If
    not causal, the table is halved first: later keys use the second half.

    Source: Raffel et al. (2020), T5, section 2.1, and its program mesh_tensorflow.
    """
    n = BUCKETS if causal else BUCKETS // 2
    exact = n // 2
    far = -distance.clamp(max=0) if causal else distance.abs()
    octaves = torch.log(far.clamp(min=1).float() / exact) / math.log(FURTHEST / exact)
    ranges = exact + (octaves * (n - exact)).long()
    buckets = torch.where(far < exact, far, ranges.clamp(max=n - 1))
    return buckets if causal else buckets + n * (distance > 0)


class Positions(nn.Module):
    """Adds positions to vectors: sinusoidal (unlimited), learned (a table of some length), or none.

    Rotary and relative positions are not added: attention rotates its queries and keys by
    `distances`, or adds their bias to its scores. The table of sinusoidal and rotary positions
    stays in float32 whatever the type of the weights: bfloat16 would move cosines by up to 0.002.
    """

    table: Tensor

    def __init__(self, config: TransformerConfig, *, causal: bool = True) -> None:
        super().__init__()
        self.config, self.kind, self.causal = config, config.positions, causal
        self.learned = self.relative = None
        if self.kind == "relative":
            self.relative = nn.Parameter(torch.empty(BUCKETS, config.n_heads))
        if self.kind == "learned":
            self.learned = nn.Parameter(torch.empty(config.max_positions, config.d_model))
        self.computed = self.kind in ("sinusoidal", "rotary")
        if self.computed:
            n = config.max_positions
            shape = (n, config.d_model) if self.kind == "sinusoidal" else (2, n, config.d_head // 2)
            self.register_buffer("table", torch.empty(*shape), persistent=False)
            if not self.table.is_meta:  # arithmetic on meta would import hundreds of modules
                self.fill_table(self.table.device)

    def _compute(
        self, start: int, stop: int, device: torch.device | None = None
    ) -> Float[Tensor, "..."]:
        """Sinusoids (T, D), or the cosines and sines (2, T, P) of rotary positions."""
        c = self.config
        if self.kind == "rotary":
            return rotary(
                start,
                stop,
                c.d_head,
                c.rotary_theta,
                device,
                factor=c.rotary_factor,
                bands=c.rotary_bands,
            )
        return sinusoidal(
            c.first_position + start, c.first_position + stop, c.d_model, device, c.sinusoids
        )

    def _rows(self, start: int, stop: int) -> Float[Tensor, "..."]:
        """The same as `_compute`, from the table if it is long enough."""
        if stop <= self.table.size(-2):
            return self.table[..., start:stop, :]
        return self._compute(start, stop, self.table.device)

    def fill_table(self, device: torch.device) -> None:
        """Compute the table of a module that was made on the meta device."""
        if self.computed:
            self.table = self._compute(0, self.config.max_positions).to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        table = self._buffers.get("table")
        super()._apply(fn, recurse)
        if table is not None and self.table.dtype != table.dtype:
            self.table = table.to(self.table.device)
        return self

    def forward(self, x: States, start: int = 0) -> States:
        """x plus the positions start ... start + T - 1.

        Raises:
            InputError: learned positions end before start + T.
        """
        added = self.added(start, start + x.size(1))
        if added is None:
            return x
        return x + (added.to(x.dtype) if self.learned is None else added)

    def added(self, start: int, stop: int) -> Float[Tensor, "T D"] | None:
        """The encodings that are added to positions start ... stop - 1, or None; see `forward`."""
        if self.kind == "sinusoidal":
            return self._rows(start, stop)
        if self.learned is None:
            return None
        if stop > len(self.learned):
            raise InputError(
                f"learned positions end at max_positions={len(self.learned)}, but the sequence has "
                f"{stop}; leave out what is longer, or train with more (--model.max-positions)"
            )
        return self.learned[start:stop]

    def distances(self, start: int, stop: int) -> Distances:
        """The rotation or bias of queries start ... stop - 1 and keys 0 ... stop - 1."""
        if self.kind == "rotary":
            return Distances(rotation=self._rows(start, stop))
        if self.relative is None:
            return NO_DISTANCES
        keys = torch.arange(stop, device=self.relative.device)
        buckets = distance_buckets(keys - keys[start:, None], causal=self.causal)
        return Distances(bias=F.embedding(buckets, self.relative).permute(2, 0, 1))
