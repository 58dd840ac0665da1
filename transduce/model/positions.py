"""Positions: added to the vectors, or by rotation of queries and keys."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.errors import InputError
from transduce.model.config import Sinusoids, TransformerConfig


def sinusoidal(
    start: int, stop: int, d_model: int, device: torch.device | None = None, kind: Sinusoids = "paper"
) -> Float[Tensor, "T D"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same, for start <= pos < stop.

    Of an odd D, the last dimension is a sine without its cosine. For tensor2tensor, i / (D // 2 - 1) stands in the place of
    2i/D, and the last of an odd D is 0.

    Source: Vaswani et al. (2017), section 3.5; tensor2tensor, get_timing_signal_1d.
    """
    n, period = ((d_model + 1) // 2, d_model) if kind == "paper" else (d_model // 2, max(1, d_model // 2 * 2 - 2))
    angles = _angles(start, stop, n, period, 10000.0, device)
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return F.pad(pairs, (0, d_model - 2 * n)).float()


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
    """Cosine and sine of the angles pos * theta^(-2i/E), for start <= pos < stop and each of the P = E / 2 pairs.

    Args:
        factor: angles are divided by it.
        bands: (low, high, n): only the angles of pairs that turn less than `low` times in n positions are; above `high`
            times they stay, and between both, the share of what is divided falls linearly.

    Source: Su et al. (2021), RoFormer, section 3.2.2; Chen et al. (2023), position interpolation; Llama 3.1 for bands.
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
    return positions * theta ** (-torch.arange(0, 2 * n, 2, device=device, dtype=torch.float64) / period)


def rotate(x: Float[Tensor, "N H T E"], rotation: Float[Tensor, "2 T P"]) -> Float[Tensor, "N H T E"]:
    """Rotate the pairs (i, i + E/2) of every head by the angles of their position, in float32 or wider.

    Which numbers form a pair is a convention, as linear maps learn any; this is the convention of Llama's weights.
    """
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Positions(nn.Module):
    """Adds a position to every vector: sinusoidal (without end), learned (a table that ends), or none.

    Rotary positions are not added: attention rotates its queries and keys by `rotation`. The table of sinusoidal and
    rotary positions stays in float32 whatever the type of the weights: bfloat16 would move cosines by up to 0.002.
    """

    table: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind = config.positions
        self.learned = None
        if self.kind == "learned":
            self.learned = nn.Parameter(torch.empty(config.max_positions, config.d_model))
        if self.kind == "sinusoidal":
            self.first, self.sinusoids = config.first_position, config.sinusoids
            table = self._sinusoids(0, config.max_positions, config.d_model)
            self.register_buffer("table", table, persistent=False)
        if self.kind == "rotary":
            self.d_head, self.theta = config.d_head, config.rotary_theta
            self.factor, self.bands = config.rotary_factor, config.rotary_bands
            self.register_buffer("table", self._rotary(0, config.max_positions), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        table = self._buffers.get("table")
        super()._apply(fn, recurse)
        if table is not None and self.table.dtype != table.dtype:
            self.table = table.to(self.table.device)
        return self

    def forward(self, x: Float[Tensor, "N T D"], start: int = 0) -> Float[Tensor, "N T D"]:
        """x plus the positions start ... start + T - 1.

        Raises:
            InputError: learned positions end before start + T.
        """
        stop = start + x.size(1)
        if self.kind in ("none", "rotary"):
            return x
        if self.learned is not None:
            if stop > len(self.learned):
                raise InputError(
                    f"learned positions end at max_positions={len(self.learned)}, but the sequence has {stop}"
                )
            return x + self.learned[start:stop]
        if stop <= len(self.table):
            return x + self.table[start:stop].to(x.dtype)
        return x + self._sinusoids(start, stop, x.size(-1), x.device).to(x.dtype)

    def _sinusoids(
        self, start: int, stop: int, d_model: int, device: torch.device | None = None
    ) -> Float[Tensor, "T D"]:
        return sinusoidal(self.first + start, self.first + stop, d_model, device, self.sinusoids)

    def rotation(self, start: int, stop: int) -> Float[Tensor, "2 T P"] | None:
        """The argument of `rotate` for the positions start ... stop - 1; None if positions are not rotary."""
        if self.kind != "rotary":
            return None
        if stop <= self.table.size(1):
            return self.table[:, start:stop]
        return self._rotary(start, stop, self.table.device)

    def _rotary(self, start: int, stop: int, device: torch.device | None = None) -> Float[Tensor, "2 T P"]:
        return rotary(start, stop, self.d_head, self.theta, device, factor=self.factor, bands=self.bands)

    def one(
        self, x: Float[Tensor, "N 1 D"], position: Int[Tensor, " 1"]
    ) -> tuple[Float[Tensor, "N 1 D"], Float[Tensor, "2 1 P"] | None]:
        """What `forward` and `rotation` give for one position, below max_positions, that the host does not know."""
        if self.kind == "rotary":
            return x, self.table.index_select(1, position)
        if self.kind == "none":
            return x, None
        table = self.table if self.learned is None else self.learned
        return x + table.index_select(0, position).to(x.dtype), None
