"""Scaled dot-product attention, and the attention modules.

Boolean attention masks exist only in this file. They are named `visible`: True = may look.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transduce.errors import InputError
from transduce.model.cache import NO_CONTEXT, Context, Memory, ProjectedMemory
from transduce.model.config import TransformerConfig
from transduce.model.inputs import Bias, States, rotate
from transduce.model.linear import FusedLinear, Linear
from transduce.model.linear_attention import Keys, Queries, attend_linearly

Visible = Bool[Tensor, "..."]
"""Broadcasts to (B, H, T, S)."""

MAX_KEYS_IN_BF16 = 128
"""Most keys for which bf16 training on a CPU uses `_attend_in_bf16`, which keeps B * H * T * S
scores per layer for the backward pass."""


def attend(
    query: Queries,
    key: Keys,
    value: Keys,
    *,
    key_lengths: Int[Tensor, " B"] | None = None,
    causal: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    bias: Bias | None = None,
) -> Queries:
    """softmax(Q K^T / sqrt(E) + bias) V.

    Args:
        key_lengths: hides the keys at and after each row's length.
        causal: aligns the last query with the last key: query t sees the keys up to t + S - T. So a
            single new query sees everything that is cached.
        window: hides the keys that are `window` or more positions away from t + S - T, on both
            sides.
        dropout: probability with which each attention weight is dropped.

    Source: Vaswani et al. (2017), sections 3.2.1 and 3.2.3; shared keys and values are Ainslie et
    al. (2023).
    """
    n_queries, groups = query.size(2), query.size(1) // key.size(1)
    if window is not None and causal and key_lengths is None:  # no query sees earlier keys
        key, value = (x[:, :, -(n_queries + window - 1) :] for x in (key, value))
    n_keys = key.size(2)
    window = None if window is None or n_keys <= window else window
    kernel = _kernel(query, n_keys, dropout)
    plain = key_lengths is None and window is None and bias is None
    if causal and n_queries == n_keys and plain and isinstance(kernel, partial):
        return kernel(query, key, value, is_causal=True, enable_gqa=groups > 1)
    visible = _visible(n_queries, n_keys, key_lengths, causal, window, query.device)
    if bias is not None:
        visible = _with_bias(visible, bias.to(_softmax_dtype(query)), groups)
    elif groups > 1 and visible is not None and visible.size(-2) > 1:
        visible = torch.cat([visible] * groups, dim=-2)
    # fold heads that share keys into the queries: this copies nothing, and every kernel can do it
    heads = kernel(query.unflatten(1, (-1, groups)).flatten(2, 3), key, value, visible)
    return heads.unflatten(2, (groups, n_queries)).flatten(1, 2)


def _kernel(query: Queries, n_keys: int, dropout: float) -> Callable[..., Queries]:
    """The fastest kernel: PyTorch's, as a `partial`, or `_attend_in_bf16` on a CPU."""
    exact = partial(F.scaled_dot_product_attention, dropout_p=dropout)
    if query.device.type != "cpu":
        return exact
    if not torch.is_grad_enabled():
        # bf16 is computed in float32 here, too: padding must not change a row
        return partial(_in_float32, exact) if query.dtype == torch.bfloat16 else exact
    if query.dtype == torch.bfloat16 and 0 < n_keys <= MAX_KEYS_IN_BF16 and not dropout:
        return _attend_in_bf16
    return exact if _softmax_dtype(query) == query.dtype else partial(_in_float32, exact)


def _softmax_dtype(query: Queries) -> torch.dtype:
    """The type of softmax and bias: the queries', but float32 for 16 bits in CPU training."""
    narrow = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if narrow and torch.is_grad_enabled() else query.dtype


def _in_float32(
    kernel: Callable[..., Queries],
    query: Queries,
    key: Keys,
    value: Keys,
    visible: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Queries:
    """Run PyTorch's kernel in float32. In bf16 it would be slower and the queries' gradient would
    be noise; in fp16 it might overflow."""
    with torch.autocast("cpu", enabled=False):
        wide = (x.float() for x in (query, key, value))
        return kernel(*wide, visible, is_causal=is_causal, enable_gqa=enable_gqa).to(query.dtype)


def _attend_in_bf16(query: Queries, key: Keys, value: Keys, visible: Tensor | None) -> Queries:
    """Attention for training on a CPU: products in bf16, and a softmax in float32.

    For few keys it takes half the time of PyTorch's kernel in float32, which is more exact. The
    first value is subtracted from all values before the product and added to the result, which is
    the same, as weights sum to 1. Otherwise a query's gradient would be a small difference of large
    numbers.
    """
    scores = query * query.size(-1) ** -0.5 @ key.transpose(-1, -2)
    sees = None
    if visible is not None:
        if not visible.is_floating_point():
            sees = visible.any(-1, keepdim=True).to(query.dtype)
            visible = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
        scores = scores + visible
    common = value[:, :, :1].detach()
    heads = scores.float().softmax(-1).to(query.dtype) @ (value - common) + common
    return heads if sees is None else heads * sees


def _weights(query: Queries, key: Keys, visible: Tensor | None) -> Float[Tensor, "B H T S"]:
    """softmax(Q K^T / sqrt(E)); if `visible` holds floats, they are added to the scores as a bias.
    A query that may see no key has zeros, as from PyTorch's kernels."""
    if query.size(1) > key.size(1):
        key = key.repeat_interleave(query.size(1) // key.size(1), dim=1)
    scores = query * query.size(-1) ** -0.5 @ key.transpose(-1, -2)  # ONNX has no mT
    if visible is None:
        return scores.softmax(-1)
    if visible.is_floating_point():
        return (scores + visible).softmax(-1)
    return scores.masked_fill(~visible, -torch.inf).softmax(-1).masked_fill(~visible, 0.0)


def _with_bias(visible: Visible | None, bias: Bias, groups: int = 1) -> Float[Tensor, "..."]:
    """A bias that also hides what a query may not see, with groups of heads folded into queries."""
    if visible is not None:
        bias = bias.masked_fill(~visible, torch.finfo(bias.dtype).min)
    return bias.unflatten(-3, (-1, groups)).flatten(-3, -2)


def _visible(
    n_queries: int,
    n_keys: int,
    key_lengths: Int[Tensor, " B"] | None,
    causal: bool,
    window: int | None,
    device: torch.device,
) -> Visible | None:
    """True where a query may look; None if every query sees every key."""
    causal = causal and n_queries > 1  # a single query is the last
    if key_lengths is None and not causal and window is None:
        return None
    visible = None
    keys = torch.arange(n_keys, device=device)
    if causal or window is not None:
        # by how many positions a key is ahead of a query
        ahead = keys - torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        furthest = n_keys if window is None else window - 1
        visible = (ahead >= -furthest) & (ahead <= (0 if causal else furthest))
    if key_lengths is not None:
        real = (keys < key_lengths[:, None])[:, None, None]
        visible = real if visible is None else visible & real
    return visible


class HeadNorm(nn.RMSNorm):
    """RMSNorm in the type of its input, which under autocast is not that of the weight."""

    def forward(self, x: Float[Tensor, "*B E"]) -> Float[Tensor, "*B E"]:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class QueryKeyNorm(nn.Module):
    """RMSNorm over every head of queries and of keys, or nothing; all heads share the weights.

    Source: Henry et al. (2020), Query-key normalization for Transformers, with the norm of Zhang
    and Sennrich (2019).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.query: nn.Module = nn.Identity()
        self.key: nn.Module = nn.Identity()
        if config.qk_norm:
            self.query, self.key = (HeadNorm(config.d_head, eps=config.norm_eps) for _ in "qk")


class SelfAttention(nn.Module):
    """Multi-head self-attention; one matrix product computes queries, keys and values."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__()
        self.d_head, self.causal, self.window = config.d_head, causal, config.window
        self.linear = config.attention == "linear"
        self.dropout = config.attention_dropout
        key_width = config.kv_heads * self.d_head
        widths = {"q": config.n_heads * self.d_head, "k": key_width, "v": key_width}
        self.qkv = FusedLinear(config.d_model, widths, bias=config.attention_bias)
        self.norm, self.normalizes = QueryKeyNorm(config), config.qk_norm
        self.output = Linear(widths["q"], config.d_model, bias=config.bias)

    def forward(self, x: States, context: Context = NO_CONTEXT) -> States:
        """Attend within each row. `context.taps` may collect the attention weights between the
        positions of `x`; linear attention has none."""
        lengths, cache, taps = context.lengths, context.cache, context.taps
        query, key, value = (_split(part, self.d_head) for part in self.qkv.split(self.qkv(x)))
        if self.normalizes:  # calling identities would take time at every step
            query, key = self.norm.query(query), self.norm.key(key)
        rotation, bias = context.distances
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if taps.self_attention is not None:
            assert not self.linear
            visible = _visible(x.size(1), x.size(1), lengths, self.causal, self.window, x.device)
            mask = visible if bias is None else _with_bias(visible, bias)
            taps.self_attention.append(_weights(query, key, mask))
        if self.linear:
            past = None if cache is None else cache.state
            heads, state = attend_linearly(
                query, key, value, key_lengths=lengths, causal=self.causal, state=past
            )
            if cache is not None:
                cache.advance(state, x.size(1))
        else:
            if cache is not None:
                key, value = cache.append(key, value)
            heads = attend(
                query,
                key,
                value,
                key_lengths=lengths,
                causal=self.causal,
                window=self.window,
                dropout=self.dropout * self.training,
                bias=bias,
            )
        return self.output(_join(heads))


class CrossAttention(nn.Module):
    """Multi-head attention of the decoder to the whole memory, without window and rotation."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.d_head, self.dropout = config.d_head, config.attention_dropout
        width = config.n_heads * self.d_head
        widths = dict.fromkeys("kv", config.kv_heads * self.d_head)
        self.q = Linear(config.d_model, width, bias=config.attention_bias)
        self.kv = FusedLinear(config.d_model, widths, bias=config.attention_bias)
        self.norm, self.normalizes = QueryKeyNorm(config), config.qk_norm
        self.output = Linear(width, config.d_model, bias=config.bias)

    def project(self, memory: Memory) -> ProjectedMemory:
        """Keys and values of the memory, computed once per sentence for all beams and steps.

        Each head's are contiguous, because every step reads them.
        """
        key, value = (
            _split(part, self.d_head).contiguous() for part in self.kv.split(self.kv(memory.states))
        )
        return ProjectedMemory(self.norm.key(key), value, memory.lengths)

    def _projected(self, context: Context) -> ProjectedMemory:
        """The memory's keys and values, which the cache has after the first call."""
        cache = context.cache
        if cache is not None and cache.memory is not None:
            return cache.memory
        if context.memory is None:
            raise InputError(
                "a decoder with cross-attention needs a memory, but memory=None; call encode() "
                "first"
            )
        projected = self.project(context.memory)
        if cache is not None:
            cache.memory = projected
        return projected

    def forward(self, x: States, context: Context) -> States:
        """Attend to the memory. The beams of a sentence fold into the queries.

        Raises:
            InputError: there is no memory.
        """
        n_rows, n_steps, _ = x.shape
        key, value, lengths = self._projected(context)
        taps = context.taps
        query = self.q(x).view(key.size(0), -1, self.q.out_features)
        query = _split(query, self.d_head)  # (B, H, beams * T, E)
        if self.normalizes:
            query = self.norm.query(query)
        if taps.cross_attention is not None:
            visible = _visible(query.size(2), key.size(2), lengths, False, None, x.device)
            weights = _weights(query, key, visible).unflatten(2, (-1, n_steps))
            taps.cross_attention.append(weights.transpose(1, 2).flatten(0, 1))
        dropout = self.dropout * self.training
        heads = attend(query, key, value, key_lengths=lengths, dropout=dropout)
        return self.output(_join(heads).reshape(n_rows, n_steps, -1))


def _split(x: Float[Tensor, "N T HE"], d_head: int) -> Float[Tensor, "N H T E"]:
    # an ONNX export of unflatten would fix the lengths of the example input
    return x.view(x.size(0), x.size(1), -1, d_head).transpose(1, 2)


def _join(heads: Float[Tensor, "N H T E"]) -> Float[Tensor, "N T HE"]:
    return heads.transpose(1, 2).flatten(2)
