"""Scaled dot-product attention, and the only place with boolean masks: `visible`, True = may look."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transduce.model.cache import LayerCache
from transduce.model.config import TransformerConfig


def attend(
    query: Float[Tensor, "B H T E"],
    key: Float[Tensor, "B H S E"],
    value: Float[Tensor, "B H S E"],
    *,
    key_lengths: Int[Tensor, " B"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """softmax(Q K^T / sqrt(E)) V.

    `key_lengths` hides the keys at and after each row's length. `causal` aligns the last query with the last key:
    query t sees the keys up to t + S - T, so that one new query sees everything cached.

    Source: Vaswani et al. (2017), sections 3.2.1 and 3.2.3.
    """
    n_queries, n_keys = query.size(2), key.size(2)
    on_cpu, training = query.device.type == "cpu", torch.is_grad_enabled()
    if on_cpu and training and query.dtype == torch.bfloat16:
        with torch.autocast("cpu", enabled=False):  # in bf16 the kernel is slower, and the queries' gradient is noise
            wide = (x.float() for x in (query, key, value))
            return attend(*wide, key_lengths=key_lengths, causal=causal, dropout=dropout).to(query.dtype)
    few = on_cpu and not training and n_queries <= 16
    if causal and n_queries == n_keys and key_lengths is None and not few:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    visible = _visible(n_queries, n_keys, key_lengths, causal and n_queries > 1, query.device)
    if few:
        return _attend_few(query, key, value, visible)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)


def _attend_few(
    query: Float[Tensor, "B H T E"],
    key: Float[Tensor, "B H S E"],
    value: Float[Tensor, "B H S E"],
    visible: Bool[Tensor, "..."] | None,
) -> Float[Tensor, "B H T E"]:
    """The same, written out: for the few queries of a search, in large batches, it is faster than PyTorch's CPU kernel.

    In batches of two sentences, or with a single thread and a hundred keys, it is not; nor with a gradient.
    """
    weights = query * query.size(-1) ** -0.5 @ key.transpose(-1, -2)
    if visible is None:
        return weights.softmax(-1) @ value
    weights = weights.masked_fill(~visible, -torch.inf).softmax(-1)
    return weights.masked_fill(~visible, 0.0) @ value  # a query that sees nothing gets zeros, as from the kernel


def _visible(
    n_queries: int, n_keys: int, key_lengths: Int[Tensor, " B"] | None, causal: bool, device: torch.device
) -> Bool[Tensor, "..."] | None:
    """True where a query may look, of a shape that broadcasts to (B, H, T, S); None where it may look everywhere."""
    visible = None
    if causal:
        visible = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)
    if key_lengths is not None:
        real = (torch.arange(n_keys, device=device) < key_lengths[:, None])[:, None, None]
        visible = real if visible is None else visible & real
    return visible


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself; one matrix product makes queries, keys and values."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__()
        self.n_heads, self.causal, self.dropout = config.n_heads, causal, config.attention_dropout
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.output = nn.Linear(config.d_model, config.d_model)

    def forward(
        self,
        x: Float[Tensor, "N T D"],
        lengths: Int[Tensor, " N"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "N T D"]:
        """Attend within each row; `lengths` hides padding, `cache` holds the positions before `x` and takes its own.

        A causal stack needs no lengths: padding lies to the right, in the future.
        """
        query, key, value = (_split(part, self.n_heads) for part in self.qkv(x).chunk(3, dim=-1))
        if cache is not None:
            key, value = cache.append(key, value)
        heads = attend(
            query, key, value, key_lengths=lengths, causal=self.causal, dropout=self.dropout if self.training else 0.0
        )
        return self.output(_join(heads))


class CrossAttention(nn.Module):
    """Multi-head attention of the decoder to the memory."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.n_heads, self.dropout = config.n_heads, config.attention_dropout
        self.q = nn.Linear(config.d_model, config.d_model)
        self.kv = nn.Linear(config.d_model, 2 * config.d_model)
        self.output = nn.Linear(config.d_model, config.d_model)

    def project(self, memory: Float[Tensor, "B S D"]) -> tuple[Float[Tensor, "B H S E"], Float[Tensor, "B H S E"]]:
        """Keys and values of the memory: computed once per sentence, whatever the number of beams and steps.

        They are laid out head by head, as every step reads them.
        """
        key, value = (_split(part, self.n_heads).contiguous() for part in self.kv(memory).chunk(2, dim=-1))
        return key, value

    def forward(
        self,
        x: Float[Tensor, "N T D"],
        key: Float[Tensor, "B H S E"],
        value: Float[Tensor, "B H S E"],
        lengths: Int[Tensor, " B"] | None,
    ) -> Float[Tensor, "N T D"]:
        """Attend to projected memory. N = B * beams: the beams of a sentence fold into the query axis."""
        n_rows, n_steps, _ = x.shape
        query = self.q(x).view(key.size(0), -1, x.size(-1))  # (B, beams * T, D)
        dropout = self.dropout if self.training else 0.0
        heads = attend(_split(query, self.n_heads), key, value, key_lengths=lengths, dropout=dropout)
        return self.output(_join(heads).view(n_rows, n_steps, -1))

    def weights(
        self, x: Float[Tensor, "B T D"], key: Float[Tensor, "B H S E"], lengths: Int[Tensor, " B"] | None
    ) -> Float[Tensor, "B H T S"]:
        """How much each position of `x` looks at each of the memory: what `forward` does not keep."""
        query = _split(self.q(x), self.n_heads)
        scores = query * query.size(-1) ** -0.5 @ key.transpose(-1, -2)
        visible = _visible(x.size(1), key.size(2), lengths, False, x.device)
        return (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(-1)


def _split(x: Float[Tensor, "N T D"], n_heads: int) -> Float[Tensor, "N H T E"]:
    return x.view(x.size(0), x.size(1), n_heads, -1).transpose(1, 2)


def _join(heads: Float[Tensor, "N H T E"]) -> Float[Tensor, "N T D"]:
    return heads.transpose(1, 2).flatten(2)
