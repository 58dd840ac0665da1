"""Stacks of layers in C++, see kernels.cpp: an encoder, and one more position of a decoder, in a call each."""

import ctypes
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.errors import InputError
from transduce.kernels import required
from transduce.model.cache import Cache
from transduce.model.config import StackConfig, TransformerConfig
from transduce.model.inputs import TokenInput
from transduce.model.kernel_weight import KernelWeight, Linear
from transduce.model.layers import Experts, Layer
from transduce.model.transformer import Memory, Stack

ACTIVATIONS = {"gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4}
"""As in kernels.cpp."""


def _structure(name: str, **fields: Any) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items()), "__doc__": "See kernels.cpp."})


_POINTER, _SIZE, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
Norm = _structure("Norm", weight=_POINTER, bias=_POINTER, eps=ctypes.c_float, rms=_FLAG)
MAPS = ("qkv", "output", "cross_q", "cross_output", "wide", "narrow")
NORMS = ("norm", "cross_norm", "feed_forward_norm")
LayerMaps = _structure("Layer", **dict.fromkeys(MAPS, Linear), **dict.fromkeys(NORMS, Norm))
Layers = _structure(
    "Stack",
    **dict.fromkeys(("n_layers", "d_model", "n_heads", "d_head"), _SIZE),
    **dict.fromkeys(("pre", "activation", "gated", "cross"), _FLAG),
    layers=_POINTER,
    embedding_norm=Norm,
    norm=Norm,
)
Table = _structure("Table", weight=_POINTER, rows=_SIZE, scale=ctypes.c_float)
Past = _structure(
    "Past",
    **dict.fromkeys(("keys", "values", "memory_keys", "memory_values", "memory_lengths", "rotation"), _POINTER),
    **dict.fromkeys(("length", "room", "n_sentences", "memory_room"), _SIZE),
)


class KernelStack:
    """A stack of layers as kernels.cpp reads it.

    It computes what Stack and Layer compute, for the models that `fits` says; the layers' own code is the reference.
    """

    def __init__(self, stack: Stack, config: TransformerConfig) -> None:
        self.made_of: tuple[Any, ...] = (stack, config)
        self.library, self.positions = required(), stack.positions
        layers = [layer for layer in stack.layers if isinstance(layer, Layer)]
        self.crosses = [layer.cross for layer in layers]
        self.layers = (LayerMaps * len(layers))(*map(_layer, layers))
        self.stack = Layers(
            len(layers), config.d_model, config.n_heads, config.d_head, config.norm_position == "pre",
            ACTIVATIONS[config.activation], config.gated, layers[0].cross is not None, ctypes.addressof(self.layers),
            _norm(stack.embedding_norm), _norm(stack.norm),
        )  # fmt: skip
        self.hooks = [module._forward_hooks for module in stack.modules()]

    @staticmethod
    def fits(config: TransformerConfig, stack: StackConfig | None) -> bool:
        """Whether this is a stack of the kinds that are written out in C++."""
        plain = config.window is None and not config.qk_norm and config.kv_heads == config.n_heads
        return (
            plain
            and config.attention == "softmax"
            and stack is not None
            and stack.n_layers > 0
            and not config.n_experts
        )

    def rotation(self, start: int, stop: int) -> Float[Tensor, "2 T P"] | None:
        """What queries and keys of the positions start ... stop - 1 are turned by; None if positions are not rotary."""
        rotation = self.positions.rotation(start, stop)
        return None if rotation is None else rotation.contiguous()

    @property
    def watched(self) -> bool:
        """Whether somebody listens to a module, none of which is called here."""
        return any(self.hooks)

    def __deepcopy__(self, memo: dict[int, Any]) -> "KernelStack":
        return type(self)(*deepcopy(self.made_of, memo))


class KernelEncoder(KernelStack):
    """What the encoder's stack makes of vectors, without the work for their padding."""

    @staticmethod
    def fits(config: TransformerConfig, stack: StackConfig | None) -> bool:
        """Whether its layers are plain ones, and nothing happens between them."""
        return KernelStack.fits(config, stack) and not config.conformer_kernel and not config.ctc_conditioning

    def __call__(self, vectors: Float[Tensor, "B S D"], lengths: Int[Tensor, " B"] | None) -> Float[Tensor, "B S D"]:
        """The states; 0 at padding.

        Raises:
            InputError: the vectors are not of float32.
        """
        if vectors.dtype != torch.float32:
            raise InputError(f"vectors must be float32, as the weights are, but they are {vectors.dtype}")
        x = self.positions(vectors).clone(memory_format=torch.contiguous_format)
        lengths = None if lengths is None else lengths.long().clamp(0, x.size(1)).contiguous()
        rotation = self.rotation(0, x.size(1))
        told = [None if tensor is None else tensor.data_ptr() for tensor in (lengths, rotation)]
        size = (len(x), x.size(1))
        self.library.encoder_states(ctypes.byref(self.stack), x.data_ptr(), *size, *told, torch.get_num_threads())
        return x


class KernelStep(KernelStack):
    """What `Transformer.decoder_states` gives for one more position of every row, from a cache that holds others."""

    def __init__(self, stack: Stack, config: TransformerConfig, embedding: TokenInput) -> None:
        super().__init__(stack, config)
        self.made_of, self.weight = (stack, config, embedding), embedding.weight
        self.table = Table(self.weight.data_ptr(), len(self.weight), embedding.scale)
        self.told: dict[int, tuple[Tensor, Tensor | None]] = {}
        """What is added to the vectors, and what turns queries and keys, by position; learned when it is needed."""

    def __call__(
        self, target_in: Int[Tensor, "N 1"], cache: Cache, memory: Memory | None = None
    ) -> Float[Tensor, "N 1 D"]:
        """The states of this position; the cache grows by it. Only the first one reads the memory.

        Raises:
            IndexError: a token is not in the vocabulary.
            InputError: there are other rows than in the cache, or not as many for each sentence of the memory.
        """
        first, tokens = cache.layers[0], target_in.long().contiguous()
        x = self.weight.new_empty(len(tokens), 1, self.stack.d_model)
        if first.length not in self.told:
            added = self.positions(torch.zeros_like(x[:1]), first.length).contiguous()
            self.told[first.length] = added, self.rotation(first.length, first.length + 1)
        position, rotation = self.told[first.length]
        if not first.length:
            self._begin(cache, memory, x)
        past = Past(length=first.length, rotation=None if rotation is None else rotation.data_ptr())
        kept: list[Any] = []
        if first.memory is not None:
            past.n_sentences, past.memory_room = first.memory[0].size(0), first.memory[0].size(2)
            kept = [_addresses(layer.memory[i] for layer in cache.layers if layer.memory) for i in (0, 1)]
            past.memory_keys, past.memory_values = map(ctypes.addressof, kept)
            if cache.memory_lengths is not None:
                cache.memory_lengths = cache.memory_lengths.long().contiguous()  # as they are, but for the first time
                past.memory_lengths = cache.memory_lengths.data_ptr()
        if len(x) != len(first.buffers[0]) or (past.n_sentences and len(x) % past.n_sentences):
            raise InputError(
                f"rows must be those of the cache, {len(first.buffers[0])}, and as many for each of "
                f"{past.n_sentences} sentences, but there are {len(x)}"
            )
        for layer in cache.layers:
            layer.make_room(1)
        kept += [_addresses(layer.buffers[i] for layer in cache.layers) for i in (0, 1)]
        past.keys, past.values = map(ctypes.addressof, kept[-2:])
        past.room = first.buffers[0].size(2)
        told = ctypes.byref(self.stack), ctypes.byref(past), ctypes.byref(self.table)
        pointers = tokens.data_ptr(), position.data_ptr(), x.data_ptr()
        if not self.library.decoder_step(*told, *pointers, len(x), torch.get_num_threads()):
            raise IndexError(
                f"tokens are 0 to {len(self.weight) - 1}, but there is {int(tokens.min())} or {int(tokens.max())}"
            )
        for layer in cache.layers:
            layer.length += 1
        return x

    def _begin(self, cache: Cache, memory: Memory | None, x: Float[Tensor, "N 1 D"]) -> None:
        """Make an empty cache what the first position needs."""
        shape = len(x), self.stack.n_heads, 16, self.stack.d_head
        for cross, layer in zip(self.crosses, cache.layers, strict=True):
            layer.buffers = [x.new_empty(shape), x.new_empty(shape)]
            if cross is not None and memory is not None:
                layer.memory = cross.project(memory.states)
        if memory is not None and memory.lengths is not None:
            cache.memory_lengths = memory.lengths


def _addresses(tensors: Iterable[Tensor]) -> Any:
    found = [tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(found))(*found)


def _layer(layer: Layer) -> Any:
    feed_forward, cross, cross_sublayer = layer.feed_forward, layer.cross, layer.cross_sublayer
    assert not isinstance(feed_forward, Experts)
    maps: dict[str, Any] = {"qkv": layer.attention.qkv, "output": layer.attention.output}
    maps |= {"wide": feed_forward.wide, "narrow": feed_forward.narrow}
    norms: dict[str, Any] = {
        "norm": layer.attention_sublayer.norm,
        "feed_forward_norm": layer.feed_forward_sublayer.norm,
    }
    if cross is not None and cross_sublayer is not None:
        maps |= {"cross_q": cross.q, "cross_output": cross.output}
        norms["cross_norm"] = cross_sublayer.norm
    linears = {name: _linear(module) for name, module in maps.items()}
    return LayerMaps(**linears, **{name: _norm(module) for name, module in norms.items()})


def _linear(packed: Any) -> Linear:
    """Its tensors are those of a module of the model, which lives as long."""
    product: KernelWeight = packed.product
    own = product.map
    bias = None if packed.bias is None else packed.bias.data_ptr()
    return Linear(own.panels, bias, own.scale, own.sums, own.inputs, own.outputs)


def _norm(norm: nn.Module | None) -> Any:
    if not isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        return Norm()
    assert norm.weight is not None and norm.eps is not None
    bias = getattr(norm, "bias", None)
    return Norm(
        norm.weight.data_ptr(), None if bias is None else bias.data_ptr(), norm.eps, isinstance(norm, nn.RMSNorm)
    )
