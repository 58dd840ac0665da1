"""Where in the sequence a vector stands."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.model.config import TransformerConfig


def sinusoidal(start: int, stop: int, d_model: int, device: torch.device | None = None) -> Float[Tensor, "T D"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same, for start <= pos < stop.

    Source: Vaswani et al. (2017), section 3.5.
    """
    position = torch.arange(start, stop, device=device, dtype=torch.float64)[:, None]
    angle = position * 10000.0 ** (-torch.arange(0, d_model, 2, device=device, dtype=torch.float64) / d_model)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).float()


class Positions(nn.Module):
    """Adds a position to every vector: sinusoidal (without end), learned (a table that ends), or none."""

    table: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind = config.positions
        self.learned = None
        if self.kind == "learned":
            self.learned = nn.Parameter(torch.empty(config.max_positions, config.d_model))
        if self.kind == "sinusoidal":
            self.register_buffer("table", sinusoidal(0, config.max_positions, config.d_model), persistent=False)

    def forward(self, x: Float[Tensor, "N T D"], start: int = 0) -> Float[Tensor, "N T D"]:
        """x plus the positions start ... start + T - 1.

        Raises:
            ValueError: learned positions end before start + T.
        """
        stop = start + x.size(1)
        if self.kind == "none":
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
