"""Attention whose time and memory are linear in the length."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Queries = Float[Tensor, "B H T E"]
Keys = Float[Tensor, "B K S E"]
"""Keys or values, whose K heads are each shared by H / K consecutive heads of queries."""
State = Float[Tensor, "B K 1 E V"]

CHUNK = 64
"""Chunk size of causal linear attention: queries are compared with the keys of their own chunk, and
all earlier chunks are summed up in one state."""


def attend_linearly(
    query: Queries,
    key: Keys,
    value: Keys,
    *,
    key_lengths: Int[Tensor, " B"] | None = None,
    causal: bool = False,
    state: State | None = None,
) -> tuple[Queries, State]:
    """phi(Q) (phi(K)^T V) / (phi(Q) (phi(K)^T 1)) with phi(x) = elu(x) + 1, and the state after it.

    Sums and state are in float32 or wider.

    The state is the sum of phi(k) v^T and, in one column more (V = E + 1), of phi(k): numerator and
    normalizer. Causal attention computes one for every `CHUNK` positions, so that time and memory
    are linear in the length. A query that sees nothing gets zeros.

    Args:
        key_lengths: hides the keys at and after each row's length.
        causal: queries and keys are the same positions, T = S, and each sees those before it and
            itself.
        state: that of the positions before these, which causal queries see, too.

    Source: Katharopoulos et al. (2020), Transformers are RNNs, sections 3.2 and 3.3; chunks as in
    Hua et al. (2022), Transformer quality in linear time.
    """
    dtype = query.dtype
    # sums over long texts need it; autocast would round them
    sums_dtype = torch.promote_types(dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        # contiguous, else compiled graphs guess wrong strides
        query, key = (x.to(sums_dtype).contiguous() for x in (query, key))
        # elu(x) + 1, but not rounded to multiples of 2^-24 where it is small
        query, key = (x.clamp(max=0).exp() + x.relu() for x in (query, key))
        if key_lengths is not None:
            outside = torch.arange(key.size(2), device=key.device) >= key_lengths[:, None]
            key = key.masked_fill(outside[:, None, :, None], 0.0)
        query = query.unflatten(1, (key.size(1), -1))  # (B, K, H / K, T, E)
        key, value = key[:, :, None], F.pad(value.to(sums_dtype), (0, 1), value=1.0)[:, :, None]
        if causal:
            sums, state = _causal_sums(query, key, value, state)
        else:
            state = key.mT @ value
            sums = query @ state
        heads = sums[..., :-1] / sums[..., -1:].clamp_min(1e-6)
    return heads.flatten(1, 2).to(dtype), state


def _causal_sums(
    query: Float[Tensor, "B K G T E"],
    key: Float[Tensor, "B K 1 T E"],
    value: Float[Tensor, "B K 1 T V"],
    state: State | None,
) -> tuple[Float[Tensor, "B K G T V"], State]:
    """The sum of (query . key) value up to the position of each query, and the last state."""
    n_steps = query.size(3)
    size = min(n_steps, CHUNK)
    query, key, value = (
        F.pad(x, (0, 0, 0, -n_steps % size)).unflatten(3, (-1, size)) for x in (query, key, value)
    )
    of_chunks = key.mT @ value
    first = torch.zeros_like(of_chunks[:, :, :, 0]) if state is None else state
    states = torch.cat((first[:, :, :, None], of_chunks), dim=3).cumsum(3)
    sums = (query @ key.mT).tril() @ value + query @ states[:, :, :, :-1]
    return sums.flatten(3, 4)[:, :, :, :n_steps], states[:, :, :, -1]
