"""Linear maps, and several of them fused into one matrix."""

from jaxtyping import Float
from torch import Tensor, nn

from transduce.products import linear


class Linear(nn.Linear):
    """nn.Linear with the fastest matrix product on this CPU."""

    def forward(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        return linear(x, self.weight, self.bias)


class FusedLinear(Linear):
    """Several linear maps of one input, computed as one matrix product.

    The rows of its weight are those of the first map, then those of the second, and so on.
    Everything that treats the maps one by one reads `widths`: initial values, LoRA, Muon, and
    models in other formats.

    Args:
        widths: the number of outputs of each map, by the name of the map.
    """

    def __init__(self, in_features: int, widths: dict[str, int], *, bias: bool) -> None:
        super().__init__(in_features, sum(widths.values()), bias=bias)
        self.widths = widths

    def split(self, x: Float[Tensor, "*B W"]) -> tuple[Float[Tensor, "*B V"], ...]:
        """Split the outputs into those of each map."""
        return x.split(list(self.widths.values()), dim=-1)


def split_rows(linear: nn.Module, rows: Tensor) -> dict[str, Tensor]:
    """Split a weight or bias into those of the fused maps, by name; a plain map has the name ""."""
    widths: dict[str, int] = getattr(linear, "widths", {"": len(rows)})
    return dict(zip(widths, rows.split(list(widths.values())), strict=True))
