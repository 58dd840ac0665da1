"""Attention weights, to be drawn or measured."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.errors import InputError
from transduce.model.attention import CrossAttention, SelfAttention
from transduce.model.transformer import Memory, Transformer

Look = Callable[[Float[Tensor, "B H Q S"]], None]
"""What is done with the attention weights of a layer."""


@contextmanager
def watching(layers: Iterable[CrossAttention | SelfAttention], look: Look) -> Iterator[None]:
    """Call `look` with the weights of these layers whenever this thread runs them; other threads may use them too."""
    here = threading.get_ident()

    def hook(layer: CrossAttention | SelfAttention, inputs: tuple[Any, ...], _: Tensor) -> None:
        if threading.get_ident() == here:
            x, key_or_lengths, _, lengths_or_rotation = inputs  # without the values, or without the cache
            look(layer.weights(x, key_or_lengths, lengths_or_rotation))

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


@torch.no_grad()
def self_attention(
    model: Transformer,
    *,
    source: Tensor | None = None,
    source_lengths: Int[Tensor, " B"] | None = None,
    target_in: Int[Tensor, "B T"] | None = None,
    memory: Memory | None = None,
) -> Float[Tensor, "L B H T T"]:
    """The self-attention weights of every layer and head: of the encoder for `source`, or of the decoder for `target_in`.

    Args:
        source: ids (B, S) or frames (B, S, F), as for `model.encode`.
        memory: what the decoder's cross-attention attends to, where it has one.

    Raises:
        InputError: none or both of source and target_in are given, the model lacks that half, or attention is linear.
    """
    stack = model.encoder if target_in is None else model.decoder
    if (source is None) == (target_in is None) or stack is None:
        raise InputError(
            "self-attention is that of the encoder for source, or of the decoder for target_in, but given are "
            f"source={source is not None} and target_in={target_in is not None}, and the model has "
            f"encoder={model.encoder is not None} and decoder={model.decoder is not None}; give the one that fits"
        )
    found: list[Tensor] = []
    with watching((part for part in stack.modules() if isinstance(part, SelfAttention)), found.append):
        if target_in is None:
            model.encode(source, source_lengths)
        else:
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
