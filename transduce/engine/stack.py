"""Matrices and stacks of layers as kernels.cpp reads them, in float32 or in 8-bit integers."""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from transduce.errors import InputError
from transduce.kernels import compute, required
from transduce.model.layers import Layer
from transduce.model.transformer import Stack

POINTER, SIZE, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class Struct(ctypes.Structure):
    """A structure of kernels.cpp. Setting a field to a contiguous tensor stores the address of its
    data, and keeps the tensor alive as long as the field points to it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            super().__setattr__(f"{name}_tensor", value)
            value = value.data_ptr()
        super().__setattr__(name, value)


def structure(*fields: tuple[Any, str]) -> type[Struct]:
    """A structure of kernels.cpp, by the types and names of its fields in their order."""
    pairs = [(name, kind) for kind, names in fields for name in names.split()]
    return type("Struct", (Struct,), {"_fields_": pairs, "__doc__": "See kernels.cpp."})


LinearStruct = structure((POINTER, "panels bias scale sums"), (SIZE, "inputs outputs"))


class Matrix:
    """W and b of x W^T + b for inference. W is stored in panels of as many outputs as fit into
    registers in a product.

    Args:
        int8: round to 8-bit integers; every row of W has its own scale, and every row of x gets one
            when it is multiplied. Sums of integers are exact and rows of x do not depend on one
            another, so results do not depend on the batch.

    Source: Wu et al. (2020), Integer quantization for deep learning inference, section 3.
    """

    def __init__(
        self,
        weight: Float[Tensor, "O I"],
        bias: Float[Tensor, " O"] | None = None,
        *,
        int8: bool = False,
    ) -> None:
        weight = weight.detach()
        scale = sums = None
        if int8:
            largest = weight.abs().amax(dim=1)
            if constant("saturates"):  # products of two neighbours are added in 16 bits
                pairs = F.pad(weight, (0, weight.size(1) % 2)).unflatten(1, (-1, 2))
                largest = torch.maximum(largest, pairs.sum(dim=2).abs().amax(dim=1))
            scale = largest.clamp_min(torch.finfo(torch.float32).tiny) / 127
            weight = (weight / scale[:, None]).round_().to(torch.int8)
            missing = (0, -len(weight) % constant("panel"))
            sums = F.pad(weight.sum(dim=1, dtype=torch.int32), missing)
            scale = F.pad(scale, missing)
        self.int8 = int8
        n_outputs, n_inputs = weight.shape
        panels = _in_panels(weight)
        self.linear = LinearStruct(panels, bias, scale, sums, n_inputs, n_outputs)

    def __call__(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        """x W^T + b; see `vectors`."""
        x = vectors(x, self.linear.inputs)
        y = x.new_empty(*x.shape[:-1], self.linear.outputs)
        n_rows = x.numel() // self.linear.inputs
        compute("linear_map", self.linear, x, n_rows, y)
        return y


def vectors(x: Tensor, width: int) -> Float[Tensor, "*B I"]:
    """The same numbers, contiguous.

    Raises:
        InputError: x is not float32 or not of this width, which C++ cannot check.
    """
    if x.dtype != torch.float32 or x.size(-1) != width:
        raise InputError(
            f"vectors must be float32 (..., {width}), as the weights are, but they are {x.dtype} "
            f"{tuple(x.shape)}"
        )
    return x.contiguous()


def _in_panels(weight: Shaped[Tensor, "O I"]) -> Tensor:
    """Rows in groups of `panel`; for int8, `pair` columns of every row follow one another. Both are
    padded with zeros."""
    panel = constant("panel")
    pair = constant("pair") if weight.dtype == torch.int8 else 1
    padded = F.pad(weight, (0, -weight.size(1) % pair, 0, -weight.size(0) % panel))
    return padded.view(len(padded) // panel, panel, -1, pair).transpose(1, 2).contiguous()


def constant(name: str) -> int:
    """A number that kernels.cpp was compiled with."""
    return ctypes.c_int32.in_dll(required(), name).value


ACTIVATIONS = {"gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4}
"""Codes of the activations in kernels.cpp."""

NormStruct = structure((POINTER, "weight bias"), (ctypes.c_float, "eps"), (FLAG, "rms"))
LayerStruct = structure(
    (LinearStruct, "qkv output cross_q cross_kv cross_output wide narrow"),
    (NormStruct, "norm cross_norm feed_forward_norm query_norm key_norm"),
    (NormStruct, "cross_query_norm cross_key_norm"),
)
LAYER_PARTS = {
    "qkv": "attention.qkv",
    "output": "attention.output",
    "query_norm": "attention.norm.query",
    "key_norm": "attention.norm.key",
    "norm": "attention_sublayer.norm",
    "cross_q": "cross.q",
    "cross_kv": "cross.kv",
    "cross_output": "cross.output",
    "cross_query_norm": "cross.norm.query",
    "cross_key_norm": "cross.norm.key",
    "cross_norm": "cross_sublayer.norm",
    "wide": "feed_forward.wide",
    "narrow": "feed_forward.narrow",
    "feed_forward_norm": "feed_forward_sublayer.norm",
}
"""The modules of a `Layer` by the fields of its structure."""
StackStruct = structure(
    (SIZE, "n_layers d_model n_heads n_kv_heads d_head window"),
    (FLAG, "pre activation gated cross"),
    (POINTER, "layers"),
    (NormStruct, "embedding_norm norm"),
)
EmbeddingStruct = structure((POINTER, "weight"), (SIZE, "rows"), (ctypes.c_float, "scale"))
PositionsStruct = structure((POINTER, "added cosines sines"))
CacheStruct = structure(
    (POINTER, "past slots memory memory_slots memory_lengths"),
    (SIZE, "n_rows n_slots length capacity"),
    (SIZE, "n_sentences n_memory_slots memory_length"),
)
BeamStruct = structure(
    (POINTER, "output suppressed"),
    (SIZE, "n_suppressed eos longest length beam n_sentences"),
    (POINTER, "bounds penalties sentences lengths parents"),
    (POINTER, "active_tokens active_log_prob active_score"),
    (POINTER, "finished_tokens finished_log_prob finished_score"),
)
GreedyStruct = structure(
    (POINTER, "output suppressed"),
    (SIZE, "n_suppressed eos longest length"),
    (POINTER, "bounds tokens rows log_prob"),
)


def norm_struct(norm: nn.Module) -> Any:
    """The structure of a LayerNorm or RMSNorm; empty for any other module."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return NormStruct()
    bias = getattr(norm, "bias", None)
    return NormStruct(norm.weight, bias, norm.eps, isinstance(norm, nn.RMSNorm))


class CPUStack:
    """A stack of layers in the structures that kernels.cpp reads."""

    def __init__(self, stack: Stack, *, int8: bool) -> None:
        config, self.positions = stack.config, stack.positions
        self.matrices: list[Matrix] = []
        """Keeps the data alive that the structures point to."""
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

    def _layer(self, layer: Layer) -> Any:
        return LayerStruct(
            **{
                name: self._part(layer.get_submodule(path))
                for name, path in LAYER_PARTS.items()
                if layer.cross is not None or not name.startswith("cross")
            }
        )

    def _part(self, module: nn.Module) -> Any:
        """The structure of a linear map, whose matrix this stack keeps, or of a norm."""
        if not isinstance(module, nn.Linear):
            return norm_struct(module)
        self.matrices.append(Matrix(module.weight, module.bias, int8=self.int8))
        return self.matrices[-1].linear

    def position_struct(self, start: int, stop: int) -> Any:
        """The structure of positions start ... stop - 1."""
        rotation = self.positions.distances(start, stop).rotation
        if rotation is None:
            return PositionsStruct(self.positions.added(start, stop))
        return PositionsStruct(None, *rotation)
