"""Cross-attention weights, to be drawn or measured."""

from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.model.attention import CrossAttention
from transduce.model.transformer import Memory, Transformer


@torch.no_grad()
def cross_attention(model: Transformer, memory: Memory, target_in: Int[Tensor, "B T"]) -> Float[Tensor, "L B H T S"]:
    """The cross-attention weights of every layer and head; weights on padding are 0.

    Raises:
        ValueError: the model has no encoder or no decoder.
    """
    if model.encoder is None or model.decoder is None:
        raise ValueError("cross-attention needs an encoder and a decoder, but this model has one of them only")
    found: list[Tensor] = []

    def look(cross: CrossAttention, inputs: tuple[Any, ...], _: Tensor) -> None:
        x, key, _, lengths = inputs
        found.append(cross.weights(x, key, lengths))

    with ExitStack() as hooks:
        for module in model.decoder.modules():
            if isinstance(module, CrossAttention):
                hooks.callback(module.register_forward_hook(look).remove)
        model.decoder_states(target_in, memory=memory)
    return torch.stack(found)


def diagonality(weights: Float[Tensor, "T S"]) -> float:
    """The correlation of a step with the mean position it attends to: 1 is a straight line through time.

    It is 0 where there are fewer than two steps, or where all steps attend to the same place.
    """
    steps = torch.arange(weights.size(0), dtype=torch.float64)
    places = weights.double().cpu() @ torch.arange(weights.size(1), dtype=torch.float64)
    steps, places = steps - steps.mean(), places - places.mean()
    norm = (steps.square().sum() * places.square().sum()).sqrt()
    return float((steps * places).sum() / norm) if norm > 1e-9 else 0.0
