"""What a forward pass keeps besides its result."""

from jaxtyping import Float
from torch import Tensor


class Taps:
    """Lists that a forward pass fills, an entry per layer in their order; None: not kept.

    Args:
        cross_attention, self_attention, balance_losses, ctc_logits: whether each is kept.
        layer: the layer of a stack, from 0, whose attention is kept; None: that of all layers.
    """

    def __init__(
        self,
        *,
        cross_attention: bool = False,
        self_attention: bool = False,
        balance_losses: bool = False,
        ctc_logits: bool = False,
        layer: int | None = None,
    ) -> None:
        self.layer = layer
        self.cross_attention: list[Float[Tensor, "N H T S"]] | None = (
            [] if cross_attention else None
        )
        self.self_attention: list[Float[Tensor, "N H T T"]] | None = [] if self_attention else None
        self.balance_losses: list[Float[Tensor, ""]] | None = [] if balance_losses else None
        """The weighted losses of layers with experts, in nats per token, which training adds to its
        loss."""
        self.ctc_logits: list[Float[Tensor, "B S V"]] | None = [] if ctc_logits else None
        """The logits of the CTC head after each of the config's ctc_layers."""
        self.router_scores: list[Float[Tensor, "N T X"]] | None = None
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
        one = Taps()
        if self.layer in (None, number):
            one.cross_attention, one.self_attention = self.cross_attention, self.self_attention
        one.router_scores = None if self.balance_losses is None else []
        return one


NO_TAPS = Taps()
"""Keeps nothing."""
