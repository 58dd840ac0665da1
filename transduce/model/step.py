"""One position of a decoder, with as few calls of PyTorch as it takes: in a search on a CPU calls cost as much as work."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.model.cache import Cache, LayerCache
from transduce.model.config import TransformerConfig
from transduce.model.layers import Experts, Layer
from transduce.model.transformer import Stack, Transformer

Map = Callable[[Tensor], Tensor]


class LayerStep(NamedTuple):
    """What one position needs of a layer, each a plain function of rows (N, D)."""

    qkv: Map
    output: Map
    norm: Map
    cross_q: Map | None
    cross_output: Map | None
    cross_norm: Map | None
    feed_forward: Map
    feed_forward_norm: Map


class DecoderStep:
    """What `Transformer.decoder_states` gives for one more position of every row, from a cache that holds others.

    It computes what Stack and Layer compute, for the models that `fits` says; the layers' own code is the reference.
    """

    def __init__(self, model: Transformer) -> None:
        stack = model.decoder
        assert isinstance(stack, Stack) and model.target_input is not None
        self.input, self.positions = model.target_input.forward, stack.positions.forward
        self.n_heads, self.pre = model.config.n_heads, model.config.norm_position == "pre"
        self.scale = model.config.d_head**-0.5
        self.layers = [_layer_step(layer) for layer in stack.layers if isinstance(layer, Layer)]
        self.embedding_norm = _norm(stack.embedding_norm)
        self.norm = None if stack.norm is None else _norm(stack.norm)
        self.nothing = next(model.parameters()).new_zeros(1, 1, 1)
        """What baddbmm adds 0 times."""
        self.hooks = [module._forward_hooks for module in stack.modules()]

    @staticmethod
    def fits(config: TransformerConfig) -> bool:
        """Whether this is a decoder of the kinds that are written out here."""
        plain = config.window is None and not config.qk_norm and config.kv_heads == config.n_heads
        return (
            plain
            and config.attention == "softmax"
            and config.decoder is not None
            and config.of(config.decoder).positions != "rotary"
            and not config.n_experts
        )

    @property
    def watched(self) -> bool:
        """Whether somebody listens to a module, none of which is called here."""
        return any(self.hooks)

    def __call__(self, target_in: Int[Tensor, "N 1"], cache: Cache) -> Float[Tensor, "N 1 D"]:
        """The states of this position; the cache grows by it."""
        vectors, _ = self.input(target_in)
        x = self.embedding_norm(self.positions(vectors, cache.length))[:, 0]
        hidden = cache.hidden()
        for layer, past in zip(self.layers, cache.layers, strict=True):
            x = self._residual(x, layer.norm, partial(self._attend, layer=layer, past=past))
            if layer.cross_q is not None and layer.cross_norm is not None:
                look = partial(self._attend_memory, layer=layer, past=past, hidden=hidden)
                x = self._residual(x, layer.cross_norm, look)
            x = self._residual(x, layer.feed_forward_norm, layer.feed_forward)
        return (x if self.norm is None else self.norm(x))[:, None]

    def _residual(self, x: Tensor, norm: Map, function: Map) -> Tensor:
        return x + function(norm(x)) if self.pre else norm(x + function(x))

    def _attend(self, x: Float[Tensor, "N D"], layer: LayerStep, past: LayerCache) -> Float[Tensor, "N D"]:
        """Self-attention; no mask is needed, as the cache holds what this position may see."""
        n_rows = len(x)
        query, key, value = layer.qkv(x).view(n_rows, 3, self.n_heads, 1, -1).unbind(1)
        keys, values = (whole.flatten(0, 1) for whole in past.append(key, value))  # (N * H, L, E), views
        weights = torch.baddbmm(self.nothing, query.reshape(-1, 1, query.size(-1)), keys.mT, beta=0, alpha=self.scale)
        return layer.output(torch.bmm(weights.softmax(-1), values).view(n_rows, -1))

    def _attend_memory(
        self, x: Float[Tensor, "N D"], layer: LayerStep, past: LayerCache, hidden: Tensor | None
    ) -> Float[Tensor, "N D"]:
        """Cross-attention; the rows of a sentence are its queries."""
        assert layer.cross_q is not None and layer.cross_output is not None and past.memory is not None
        key, value = past.memory
        n_sentences, n_heads, n_keys, width = key.shape
        query = (
            layer.cross_q(x)
            .view(n_sentences, -1, n_heads, width)
            .transpose(1, 2)
            .reshape(-1, len(x) // n_sentences, width)
        )
        keys, values = key.view(-1, n_keys, width), value.view(-1, n_keys, width)
        if hidden is None:
            weights = torch.baddbmm(self.nothing, query, keys.mT, beta=0, alpha=self.scale)
        else:
            weights = torch.baddbmm(hidden, query, keys.mT, alpha=self.scale)
        heads = torch.bmm(weights.softmax(-1), values).view(n_sentences, n_heads, -1, width)
        return layer.cross_output(heads.transpose(1, 2).reshape(len(x), -1))


def _layer_step(layer: Layer) -> LayerStep:
    cross, cross_sublayer = layer.cross, layer.cross_sublayer
    assert not isinstance(layer.feed_forward, Experts)
    return LayerStep(
        qkv=layer.attention.qkv.forward,
        output=layer.attention.output.forward,
        norm=_norm(layer.attention_sublayer.norm),
        cross_q=None if cross is None else cross.q.forward,
        cross_output=None if cross is None else cross.output.forward,
        cross_norm=None if cross_sublayer is None else _norm(cross_sublayer.norm),
        feed_forward=layer.feed_forward.forward,
        feed_forward_norm=_norm(layer.feed_forward_sublayer.norm),
    )


def _norm(norm: nn.Module) -> Map:
    """A norm as a function, without what a module does around it."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, bias, eps = list(norm.normalized_shape), norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps, False)
    return norm.forward
