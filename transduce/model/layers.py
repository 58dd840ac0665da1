"""Feed-forward and the layer: attention and feed-forward, each with residual, norm and dropout."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.model.attention import CrossAttention, SelfAttention
from transduce.model.cache import LayerCache
from transduce.model.config import TransformerConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class Dropout(nn.Module):
    """Zero each value with probability p while training, and scale the others by 1 / (1 - p).

    On a CPU one random byte decides over one value, so p is rounded to 256ths (and the scale with it): PyTorch draws a
    Bernoulli number each, one after the other, which took an eighth of a small model's training time.

    Source: Srivastava et al. (2014).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped = max(1, round(self.p * 256))
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(1 << 63), None)
        kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
        return x * kept.to(x.dtype) * (256 / (256 - dropped))  # torch.where is not vectorised


class FeedForward(nn.Module):
    """Two linear maps with an activation in between, at every position alike (paper, section 3.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.wide = nn.Linear(config.d_model, config.d_ff)
        self.narrow = nn.Linear(config.d_ff, config.d_model)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Float[Tensor, "N T D"]) -> Float[Tensor, "N T D"]:
        return self.narrow(self.activation(self.wide(x)))


class Sublayer(nn.Module):
    """The residual around one function: norm(x + f(x)) after the paper, or x + f(norm(x)).

    Source: pre-norm is Xiong et al. (2020), "On Layer Normalization in the Transformer Architecture".
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm_position == "pre"

    def forward(self, x: Float[Tensor, "N T D"], function: Callable[[Tensor], Tensor]) -> Float[Tensor, "N T D"]:
        if self.pre:
            return x + self.dropout(function(self.norm(x)))
        return self.norm(x + self.dropout(function(x)))


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a memory, feed-forward."""

    def __init__(self, config: TransformerConfig, *, causal: bool, cross: bool) -> None:
        super().__init__()
        self.attention = SelfAttention(config, causal=causal)
        self.attention_sublayer = Sublayer(config)
        self.cross = CrossAttention(config) if cross else None
        self.cross_sublayer = Sublayer(config) if cross else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(
        self,
        x: Float[Tensor, "N T D"],
        *,
        lengths: Int[Tensor, " N"] | None = None,
        memory: Float[Tensor, "B S D"] | None = None,
        memory_lengths: Int[Tensor, " B"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "N T D"]:
        """`lengths` hides padding of `x`, `memory_lengths` that of the memory; a cache remembers both pasts."""
        x = self.attention_sublayer(x, lambda y: self.attention(y, lengths, cache))
        if self.cross is not None and self.cross_sublayer is not None:
            key, value = self._memory(memory, cache)
            cross = self.cross
            x = self.cross_sublayer(x, lambda y: cross(y, key, value, memory_lengths))
        return self.feed_forward_sublayer(x, self.feed_forward)

    def _memory(self, memory: Tensor | None, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        if cache is not None and cache.memory is not None:
            return cache.memory
        assert self.cross is not None
        if memory is None:
            raise ValueError("a decoder with cross-attention needs a memory, but memory=None; call encode() first")
        projected = self.cross.project(memory)
        if cache is not None:
            cache.memory = projected
        return projected
