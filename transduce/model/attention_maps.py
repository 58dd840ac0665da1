"""Cross-attention weights, to be drawn or measured."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.errors import InputError
from transduce.model.attention import CrossAttention
from transduce.model.transformer import Memory, Transformer

Look = Callable[[Float[Tensor, "B H Q S"]], None]
"""What is done with the attention weights of a layer."""


@contextmanager
def watching(layers: Iterable[CrossAttention], look: Look) -> Iterator[None]:
    """Call `look` with the weights of these layers whenever this thread runs them; other threads may use them too."""
    here = threading.get_ident()

    def hook(cross: CrossAttention, inputs: tuple[Any, ...], _: Tensor) -> None:
        if threading.get_ident() == here:
            x, key, _, lengths = inputs
            look(cross.weights(x, key, lengths))

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_hook(hook).remove)
        yield


@torch.no_grad()
def cross_attention(model: Transformer, memory: Memory, target_in: Int[Tensor, "B T"]) -> Float[Tensor, "L B H T S"]:
    """The cross-attention weights of every layer and head; weights on padding are 0.

    Raises:
        InputError: the model has no encoder or no decoder.
    """
    if model.encoder is None or model.decoder is None:
        raise InputError("cross-attention needs an encoder and a decoder, but this model has one of them only")
    found: list[Tensor] = []
    with watching((module for module in model.decoder.modules() if isinstance(module, CrossAttention)), found.append):
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
