"""Cross-attention weights, to be drawn or measured."""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.model.attention import CrossAttention
from transduce.model.layers import Layer
from transduce.model.transformer import Memory, Transformer


@torch.no_grad()
def cross_attention(model: Transformer, memory: Memory, target_in: Int[Tensor, "B T"]) -> Float[Tensor, "L B H T S"]:
    """The cross-attention weights of every layer and head; weights on padding are 0.

    Raises:
        ValueError: the model has no encoder or no decoder.
    """
    if model.encoder is None or model.decoder is None or model.target_input is None:
        raise ValueError("cross-attention needs an encoder and a decoder, but this model has one of them only")
    x = model.decoder.positions(model.target_input(target_in)[0])
    rotation = model.decoder.positions.rotation(0, target_in.size(1))
    found: list[Tensor] = []
    for layer in model.decoder.layers:
        assert isinstance(layer, Layer) and layer.cross is not None and layer.cross_sublayer is not None
        x = layer.attention_sublayer(x, partial(layer.attention, rotation=rotation))
        key, value = layer.cross.project(memory.states)

        def look(y: Tensor, cross: CrossAttention = layer.cross, key: Tensor = key, value: Tensor = value) -> Tensor:
            found.append(cross.weights(y, key, memory.lengths))
            return cross(y, key, value, memory.lengths)

        x = layer.cross_sublayer(x, look)
        x = layer.feed_forward_sublayer(x, layer.feed_forward)
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
