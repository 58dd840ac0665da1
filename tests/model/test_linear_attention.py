"""attend_linearly() against its quadratic form in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model.test_attention import CONFIG, randn
from transduce.model.attention import SelfAttention
from transduce.model.cache import Context, LayerCache
from transduce.model.linear_attention import CHUNK, attend_linearly


def quadratic(query, key, value, lengths, causal):
    """Katharopoulos et al. (2020), equation 5 in NumPy: all weights at once, with elu(x) + 1 (equation 7)."""
    shared = query.size(1) // key.size(1)
    query, key, value = (x.double().numpy() for x in (query, key, value))
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, np.repeat(key, shared, axis=1)))
    weights = np.einsum("bhte,bhse->bhts", q, k)
    weights = np.tril(weights) if causal else weights
    for row, length in zip(weights, lengths or (), strict=lengths is not None):
        row[:, :, length:] = 0
    return torch.from_numpy(weights / weights.sum(-1, keepdims=True) @ np.repeat(value, shared, axis=1))


LONG = 2 * CHUNK + 19


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize(("causal", "lengths"), [(True, None), (False, None), (False, (LONG, 11)), (True, (LONG, 71))])
def test_linear_attention_is_its_quadratic_form(causal, lengths, kv_heads, rng):
    """Two rows, six heads of width 5, two chunks and a part of one; what is hidden is garbage."""
    query = randn(rng, 2, 6, LONG, 5)
    key, value = (randn(rng, 2, kv_heads, LONG, 5) for _ in range(2))
    want = quadratic(query, key, value, lengths, causal)
    if lengths is not None:
        key[1, :, lengths[1] :], value[1, :, lengths[1] :] = 1e4, -1e4
    given = None if lengths is None else torch.tensor(lengths)
    got, _ = attend_linearly(query, key, value, key_lengths=given, causal=causal)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    if causal and lengths is None:  # in pieces that begin and end inside chunks, from the state of those before
        state, pieces = None, (1, 2, CHUNK + 7, 1, CHUNK + 8)
        for q, k, v, w in zip(*(x.split(pieces, dim=2) for x in (query, key, value, want)), strict=True):
            got, state = attend_linearly(q, k, v, causal=True, state=state)
            torch.testing.assert_close(got, w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_linear_attention_sums_in_float32(dtype, rng):
    """Sums of 2,000 weights lose their last ones in 8 bits, and products of them overflow in fp16."""
    query, key, value = ((4 * randn(rng, 1, 1, 2000, 16)).to(dtype) for _ in range(3))
    want = quadratic(query, key, value, None, True)
    with torch.autocast("cpu", dtype):
        got, state = attend_linearly(query, key, value, causal=True)
    assert got.dtype == dtype and state.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_fully_masked_linear_attention_is_zero_without_gradients(rng):
    """An empty row, and queries that are far below zero, whose weights are smaller than float32 has numbers."""
    query, key, value = (randn(rng, 2, 3, 7, 5).float() for _ in range(3))
    query[0, :, 3] = key[0] = -1e4
    leaves = [x.requires_grad_() for x in (query, key, value)]
    for lengths, causal in ((None, True), (torch.tensor([0, 7]), False)):
        got, _ = attend_linearly(*leaves, key_lengths=lengths, causal=causal)
        assert torch.all(got[0] == 0) and got.isfinite().all()
        for gradient in torch.autograd.grad(got.sum(), leaves):
            assert torch.all(gradient[0] == 0)
            assert torch.all(gradient[1].isfinite())


@pytest.mark.parametrize("causal", [True, False])
def test_saved_tensors_grow_linearly_with_the_length(causal, rng):
    """Twice the length: twice the numbers, where the quadratic form would keep four times as many."""
    kept = []
    for n in (4 * CHUNK, 8 * CHUNK):
        leaves, numbers = [randn(rng, 1, 2, n, 5).requires_grad_() for _ in range(3)], []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, to=numbers: to.append(x.numel()), lambda x: x):
            attend_linearly(*leaves, causal=causal)
        kept.append(sum(numbers))
    assert kept[1] <= 2 * kept[0]


def test_the_state_of_linear_attention_does_not_grow(rng):
    layer, past, sizes = SelfAttention(replace(CONFIG, attention="linear"), causal=True).double(), LayerCache(), []
    x = randn(rng, 2, 40, 21)
    for t in range(40):
        layer(x[:, t : t + 1], Context(cache=past))
        sizes.append(sum(buffer.numel() for buffer in past.buffers))
    assert past.length == 40 and set(sizes) == {2 * 3 * 7 * (7 + 1)}  # rows, heads, numerator and normalizer
