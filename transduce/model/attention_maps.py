"""Attention weights, to be drawn."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.device import Taps
from transduce.errors import InputError
from transduce.model.transformer import Memory, Transformer


@torch.no_grad()
def cross_attention(
    model: Transformer, memory: Memory, target_in: Int[Tensor, "B T"]
) -> Float[Tensor, "L B H T S"]:
    """The cross-attention weights of every layer and head; weights on padding are 0.

    Raises:
        InputError: the model has no encoder or no decoder.
    """
    if model.encoder is None or model.decoder is None:
        raise InputError(
            "cross-attention needs an encoder and a decoder, but this model has one of them only"
        )
    taps = Taps(cross_attention=[])
    model.decoder_states(target_in, memory=memory, taps=taps)
    assert taps.cross_attention
    return torch.stack(taps.cross_attention)


@torch.no_grad()
def self_attention(
    model: Transformer,
    *,
    source: Tensor | None = None,
    source_lengths: Int[Tensor, " B"] | None = None,
    target_in: Int[Tensor, "B T"] | None = None,
    memory: Memory | None = None,
) -> Float[Tensor, "L B H T T"]:
    """The self-attention weights of every layer and head: of the encoder for `source`, or of the
    decoder for `target_in`.

    Args:
        source: ids (B, S) or frames (B, S, F), as for `model.encode`.
        memory: what the decoder's cross-attention attends to, where it has one.

    Raises:
        InputError: none or both of source and target_in are given, the model lacks that half, or
            attention is linear.
    """
    stack = model.encoder if target_in is None else model.decoder
    if (source is None) == (target_in is None) or stack is None:
        raise InputError(
            "self-attention is that of the encoder for source, or of the decoder for target_in, "
            "but given are "
            f"source={source is not None} and target_in={target_in is not None}, and the model has "
            f"encoder={model.encoder is not None} and decoder={model.decoder is not None}; give "
            "the one that fits"
        )
    if model.config.attention == "linear":
        raise InputError(
            "attention weights are those of a softmax, but attention='linear' forms none"
        )
    taps = Taps(self_attention=[])
    if target_in is None:
        model.encode(source, source_lengths, taps=taps)
    else:
        model.decoder_states(target_in, memory=memory, taps=taps)
    assert taps.self_attention
    return torch.stack(taps.self_attention)
