"""Positions: added to the vectors, or by rotation of queries and keys."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.model.config import TransformerConfig


def sinusoidal(start: int, stop: int, d_model: int, device: torch.device | None = None) -> Float[Tensor, "T D"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same, for start <= pos < stop.

    Source: Vaswani et al. (2017), section 3.5.
    """
    angles = _angles(start, stop, d_model, 10000.0, device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


def rotary(
    start: int, stop: int, d_head: int, theta: float, device: torch.device | None = None
) -> Float[Tensor, "2 T P"]:
    """Cosine and sine of the angles pos * theta^(-2i/E), for start <= pos < stop and each of the P = E / 2 pairs.

    Source: Su et al. (2021), RoFormer, section 3.2.2.
    """
    angles = _angles(start, stop, d_head, theta, device)
    return torch.stack((angles.cos(), angles.sin())).float()


def _angles(start: int, stop: int, width: int, theta: float, device: torch.device | None) -> Float[Tensor, "T P"]:
    """pos * theta^(-2i/width) in float64."""
    positions = torch.arange(start, stop, device=device, dtype=torch.float64)[:, None]
    return positions * theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float64) / width)


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
            self.register_buffer("table", sinusoidal(0, config.max_positions, config.d_model), persistent=False)
        if self.kind == "rotary":
            self.d_head, self.theta = config.d_head, config.rotary_theta
            self.register_buffer("table", rotary(0, config.max_positions, self.d_head, self.theta), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        table = self._buffers.get("table")
        super()._apply(fn, recurse)
        if table is not None and self.table.dtype != table.dtype:
            self.table = table.to(self.table.device)
        return self

    def forward(self, x: Float[Tensor, "N T D"], start: int = 0) -> Float[Tensor, "N T D"]:
        """x plus the positions start ... start + T - 1.

        Raises:
            ValueError: learned positions end before start + T.
        """
        stop = start + x.size(1)
        if self.kind in ("none", "rotary"):
            return x
        if self.learned is not None:
            if stop > len(self.learned):
                raise ValueError(
                    f"learned positions end at max_positions={len(self.learned)}, but the sequence has {stop}"
                )
            return x + self.learned[start:stop]
        if stop <= len(self.table):
            return x + self.table[start:stop].to(x.dtype)
        return x + sinusoidal(start, stop, x.size(-1), x.device).to(x.dtype)

    def rotation(self, start: int, stop: int) -> Float[Tensor, "2 T P"] | None:
        """The argument of `rotate` for the positions start ... stop - 1; None if positions are not rotary."""
        if self.kind != "rotary":
            return None
        if stop <= self.table.size(1):
            return self.table[:, start:stop]
        return rotary(start, stop, self.d_head, self.theta, self.table.device)

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
