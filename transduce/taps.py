"""What a forward pass keeps besides its result."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(kw_only=True)
class Taps:
    """Lists that a forward pass fills, an entry per layer in their order; None: not kept."""

    layer: int | None = None
    """The layer of a stack, from 0, whose attention is kept; None: that of all layers."""
    cross_attention: list[Float[Tensor, "N H T S"]] | None = None
    self_attention: list[Float[Tensor, "N H T T"]] | None = None
    balance_losses: list[Float[Tensor, ""]] | None = None
    """The weighted losses of layers with experts, in nats per token, which training adds to its
    loss."""
    ctc_logits: list[Float[Tensor, "B S V"]] | None = None
    """The logits of the CTC head after each of the config's ctc_layers."""
    router_scores: list[Float[Tensor, "N T X"]] | None = None
    """Scores of the experts of one layer, see `of_layer`."""

    @property
    def one_cross_attention(self) -> bool:
        """Whether the cross-attention of one layer is all that is kept."""
        others = (self.self_attention, self.balance_losses, self.ctc_logits)
        return self.layer is not None and all(each is None for each in others)

    def of_layer(self, number: int) -> "Taps":
        """The taps of one layer: lists of attention are the same ones, the list of its router's
        scores is its own.

        A graph of torch.compile that is computed again, as activation checkpointing does, must not
        change a list outside.
        """
        scores: list[Tensor] | None = None if self.balance_losses is None else []
        if self.layer not in (None, number):
            return Taps(router_scores=scores)
        return Taps(
            cross_attention=self.cross_attention,
            self_attention=self.self_attention,
            router_scores=scores,
        )


NO_TAPS = Taps()
"""Keeps nothing."""
