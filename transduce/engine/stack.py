"""A stack of layers, and what a call of kernels.cpp gets besides, as structures of C."""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor, nn

from transduce.engine.weights import FLAG, POINTER, SIZE, LinearStruct, Matrix, address, structure
from transduce.model.config import TransformerConfig
from transduce.model.layers import FeedForward, Layer
from transduce.model.transformer import Stack

ACTIVATIONS = {"gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4}
"""As in kernels.cpp."""

NormStruct = structure("Norm", weight=POINTER, bias=POINTER, eps=ctypes.c_float, rms=FLAG)
MAPS = ("qkv", "output", "cross_q", "cross_kv", "cross_output", "wide", "narrow")
NORMS = (
    "norm",
    "cross_norm",
    "feed_forward_norm",
    "query_norm",
    "key_norm",
    "cross_query_norm",
    "cross_key_norm",
)
LayerStruct = structure(
    "Layer", **dict.fromkeys(MAPS, LinearStruct), **dict.fromkeys(NORMS, NormStruct)
)
StackStruct = structure(
    "Stack",
    **dict.fromkeys(("n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "window"), SIZE),
    **dict.fromkeys(("pre", "activation", "gated", "cross"), FLAG),
    layers=POINTER,
    embedding_norm=NormStruct,
    norm=NormStruct,
)
EmbeddingStruct = structure("Embedding", weight=POINTER, rows=SIZE, scale=ctypes.c_float)
PositionsStruct = structure("Positions", added=POINTER, cosines=POINTER, sines=POINTER)
CacheStruct = structure(
    "KVCache",
    **dict.fromkeys(("past", "slots", "memory", "memory_slots", "memory_lengths"), POINTER),
    **dict.fromkeys(("n_rows", "n_slots", "length", "capacity"), SIZE),
    **dict.fromkeys(("n_sentences", "n_memory_slots", "memory_length"), SIZE),
)
CrossTapStruct = structure("CrossTap", weights=POINTER, layer=SIZE)


def norm_struct(norm: nn.Module | None) -> Any:
    """A LayerNorm or RMSNorm; anything else is none."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return NormStruct()
    return NormStruct(
        address(norm.weight),
        address(getattr(norm, "bias", None)),
        norm.eps,
        isinstance(norm, nn.RMSNorm),
    )


class CPUStack:
    """A stack of layers as kernels.cpp reads it."""

    def __init__(self, stack: Stack, config: TransformerConfig, *, int8: bool) -> None:
        self.positions = stack.positions
        self.matrices: list[Matrix] = []
        """What the structures point to."""
        self.int8 = int8
        layers = [self._layer(layer) for layer in stack.layers if isinstance(layer, Layer)]
        self.layers = (LayerStruct * len(layers))(*layers)
        self.struct = StackStruct(
            len(layers),
            config.d_model,
            config.n_heads,
            config.kv_heads,
            config.d_head,
            config.window or 0,
            config.norm_position == "pre",
            ACTIVATIONS[config.activation],
            config.gated,
            any(layer.cross_q.inputs for layer in layers),
            ctypes.addressof(self.layers),
            norm_struct(stack.embedding_norm),
            norm_struct(stack.norm),
        )
        self.table: tuple[Tensor | None, Tensor | None] = (None, None)
        self.table_length = 0

    def _linear(self, linear: torch.nn.Linear) -> Any:
        self.matrices.append(Matrix(linear.weight, linear.bias, int8=self.int8))
        return self.matrices[-1].linear

    def _layer(self, layer: Layer) -> Any:
        feed_forward = layer.feed_forward
        assert isinstance(feed_forward, FeedForward)
        attention, cross = layer.attention, layer.cross
        maps = {
            "qkv": self._linear(attention.qkv),
            "output": self._linear(attention.output),
            "wide": self._linear(feed_forward.wide),
            "narrow": self._linear(feed_forward.narrow),
        }
        norms = {
            "norm": layer.attention_sublayer.norm,
            "feed_forward_norm": layer.feed_forward_sublayer.norm,
        }
        if attention.norm is not None:
            norms |= {"query_norm": attention.norm.query, "key_norm": attention.norm.key}
        if cross is not None and layer.cross_sublayer is not None:
            maps |= {
                "cross_q": self._linear(cross.q),
                "cross_kv": self._linear(cross.kv),
                "cross_output": self._linear(cross.output),
            }
            norms["cross_norm"] = layer.cross_sublayer.norm
            if cross.norm is not None:
                norms |= {"cross_query_norm": cross.norm.query, "cross_key_norm": cross.norm.key}
        return LayerStruct(**maps, **{name: norm_struct(module) for name, module in norms.items()})

    def position_table(self, length: int) -> tuple[Tensor | None, Tensor | None]:
        """Up to some length of at least this one, what is added to vectors (T, D), and what rotates
        heads (2, T, E / 2)."""
        if length > self.table_length:
            end = math.inf if self.positions.learned is None else len(self.positions.learned)
            size = max(length, int(min(end, max(64, 2 * length))))
            added = rotation = None
            if self.positions.kind == "rotary":
                rotation = self.positions.rotation(0, size)
                assert rotation is not None
                rotation = rotation.contiguous()
            elif self.positions.kind != "none":
                added = self.positions(torch.zeros(1, size, self.struct.d_model))[0].contiguous()
            self.table, self.table_length = (added, rotation), size
        return self.table

    def position_struct(self, start: int, stop: int) -> Any:
        """The positions start ... stop - 1, in tensors that stay while this stack does."""
        added, rotation = self.position_table(stop)
        if rotation is not None:
            return PositionsStruct(None, address(rotation[0, start:]), address(rotation[1, start:]))
        return PositionsStruct(None if added is None else address(added[start:]), None, None)
