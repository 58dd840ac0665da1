"""attend() against the formula in scalar loops, and the two modules around it."""

import math

import numpy as np
import pytest
import torch

from transduce.model.attention import CrossAttention, SelfAttention, attend
from transduce.model.cache import Cache, Context, Memory, ProjectedMemory
from transduce.model.config import StackConfig, Tokens, TransformerConfig

CONFIG = TransformerConfig(d_model=21, n_heads=3, positions="none", decoder=StackConfig(input=Tokens(vocab_size=5)))


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def randomised(module, rng):
    """Make biases random, too, which begin at zero."""
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(randn(rng, *parameter.shape) / 5)
    return module


def written_out(query, key, value, lengths, causal, window=None, bias=None):
    """softmax(Q K^T / sqrt(E)) V in NumPy, one query at a time: no softmax, no matmul, no mask."""
    rows, heads, n_queries, width = query.shape
    n_keys, want = key.size(2), np.zeros(query.shape)
    query, key, value = (x.detach().numpy() for x in (query, key, value))
    for b in range(rows):
        for h in range(heads):
            for t in range(n_queries):
                end = n_keys if lengths is None else int(lengths[b])
                if causal:  # the last query stands where the last key stands
                    end = min(end, n_keys - n_queries + t + 1)
                seen = [s for s in range(end) if window is None or abs(n_keys - n_queries + t - s) < window]
                shared = h // (heads // key.shape[1])  # as many neighbours as there are queries to a head of keys
                scores = (query[b, h, t] * key[b, shared, seen]).sum(axis=1) / math.sqrt(width)
                weights = np.exp(scores if bias is None else scores + bias[h, t, seen].numpy())
                want[b, h, t] = (weights[:, None] * value[b, shared, seen]).sum(axis=0) / weights.sum()
    return torch.from_numpy(want)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, (23, 11)], ids=["no lengths", "lengths"])
@pytest.mark.parametrize("n_queries", [1, 3, 16, 17, 23])
def test_attention_is_the_formula_written_out(n_queries, lengths, causal, rng):
    """Two rows, three heads of width 5, 23 keys; few queries and many, which use different kernels on a CPU."""
    query, key, value = (randn(rng, 2, 3, steps, 5) for steps in (n_queries, 23, 23))
    lengths = None if lengths is None else torch.tensor(lengths)
    want = written_out(query, key, value, lengths, causal)
    for gradient in (False, True):
        with torch.set_grad_enabled(gradient):
            got = attend(query, key, value, key_lengths=lengths, causal=causal)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kv_heads", "lengths"), [(2, None), (6, (23, 11)), (1, (23, 21))])
def test_bias_is_added_to_the_scores_and_has_the_right_gradient(kv_heads, lengths, causal, rng):
    """The gradient of the bias is checked by finite differences of a formula with plain additions."""
    lengths = None if lengths is None else torch.tensor(lengths)
    for n_queries in (1, 7, 19, 23):
        query, bias = randn(rng, 2, 6, n_queries, 3), randn(rng, 6, n_queries, 23)
        key, value = (randn(rng, 2, kv_heads, 23, 3) for _ in range(2))
        want = written_out(query, key, value, lengths, causal, bias=bias)
        for gradient in (False, True):
            with torch.set_grad_enabled(gradient):
                got = attend(query, key, value, key_lengths=lengths, causal=causal, bias=bias)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    learned = bias.clone().requires_grad_()
    attend(query, key, value, key_lengths=lengths, causal=causal, bias=learned).square().sum().backward()
    ends = []
    for step in (1e-6, -1e-6):
        moved = bias.clone()
        moved[4, 5, 2] += step
        ends.append(written_out(query, key, value, lengths, causal, bias=moved).square().sum())
    assert float(learned.grad[4, 5, 2]) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("kv_heads", "window", "lengths"),
    [(2, None, None), (1, None, (23, 11)), (6, 5, None), (2, 5, (23, 21)), (1, 29, None)],
)
def test_shared_keys_and_windows_are_the_formula_written_out(kv_heads, window, lengths, causal, rng):
    """Six heads of queries over two, one or six of keys; with a gradient all go through PyTorch's kernel."""
    lengths = None if lengths is None else torch.tensor(lengths)
    for n_queries in (1, 7, 19, 23):
        query = randn(rng, 2, 6, n_queries, 3)
        key, value = (randn(rng, 2, kv_heads, 23, 3) for _ in range(2))
        want = written_out(query, key, value, lengths, causal, window)
        for gradient in (False, True):
            with torch.set_grad_enabled(gradient):
                got = attend(query, key, value, key_lengths=lengths, causal=causal, window=window)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-12, msg=lambda m, n=n_queries: f"{n} queries: {m}")


@pytest.mark.parametrize("n_queries", [7, 19])
def test_garbage_in_padding_does_not_change_one_bit(n_queries, rng):
    query, key, value = (randn(rng, 2, 3, steps, 5) for steps in (n_queries, 7, 7))
    lengths = torch.tensor([7, 5])
    want = attend(query, key, value, key_lengths=lengths)
    key[1, :, 5:], value[1, :, 5:] = 1e4, -1e4
    assert torch.equal(attend(query, key, value, key_lengths=lengths), want)


@pytest.mark.parametrize("n_queries", [1, 7, 19])
def test_fully_masked_queries_have_zero_outputs_and_gradients(n_queries, rng):
    """A row without a source: no NaN, and the row beside it is as it was."""
    query, key, value = (randn(rng, 2, 3, steps, 5).requires_grad_() for steps in (n_queries, 7, 7))
    got = attend(query, key, value, key_lengths=torch.tensor([0, 7]))
    assert torch.all(got[0] == 0)
    torch.testing.assert_close(got[1:], written_out(query[1:], key[1:], value[1:], None, False), rtol=0, atol=1e-12)
    for gradient in torch.autograd.grad(got.sum(), (query, key, value)):
        assert torch.all(gradient[0] == 0)
        assert torch.all(gradient[1].isfinite())


def test_dropout_zeroes_weights_and_scales_the_rest():
    """Values that are the unit vectors show the weights themselves: 0, or the weight divided by 1 - p."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 23, 23, dtype=torch.float64)
    unit = torch.eye(23, dtype=torch.float64)[None, None]
    weights, dropped = attend(query, key, unit), attend(query, key, unit, dropout=0.25)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    assert 0.70 < kept.double().mean() < 0.80


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_torch_nn_multihead_attention(causal, rng):
    ours = randomised(SelfAttention(CONFIG, causal=causal), rng)
    x, lengths = randn(rng, 2, 11, 21), torch.tensor([11, 5])
    theirs = torch.nn.MultiheadAttention(21, 3, batch_first=True, dtype=torch.float64)
    theirs.in_proj_weight, theirs.in_proj_bias, theirs.out_proj = ours.qkv.weight, ours.qkv.bias, ours.output
    # There, True = ignore.
    padding = torch.arange(11) >= lengths[:, None]
    future = torch.ones(11, 11, dtype=torch.bool).triu(1) if causal else None
    want, _ = theirs(x, x, x, key_padding_mask=padding, attn_mask=future)
    torch.testing.assert_close(ours(x, Context(lengths=lengths)), want, rtol=0, atol=1e-12)


def test_cross_attention_is_torch_nn_multihead_attention_with_beams_folded(rng):
    """Two sentences of up to 13 positions; three beams each, five steps long."""
    ours = randomised(CrossAttention(CONFIG), rng)
    x, memory = randn(rng, 2 * 3, 5, 21), randn(rng, 2, 13, 21)
    lengths = torch.tensor([13, 7])
    theirs = torch.nn.MultiheadAttention(21, 3, batch_first=True, dtype=torch.float64)
    theirs.in_proj_weight.data = torch.cat((ours.q.weight, ours.kv.weight))
    theirs.in_proj_bias.data = torch.cat((ours.q.bias, ours.kv.bias))
    theirs.out_proj = ours.output
    got = ours(x, Context(memory=Memory(memory, lengths)))
    for row in range(6):
        own = memory[row // 3 : row // 3 + 1, : lengths[row // 3]]
        want, _ = theirs(x[row : row + 1], own, own)
        torch.testing.assert_close(got[row : row + 1], want, rtol=0, atol=1e-12)


def test_cache_after_append_reorder_and_keep(rng):
    """Against plain lists of tensors; long enough for the buffers to grow twice."""
    cache = Cache(2)
    assert cache.length == 0
    cache.reorder(torch.tensor([0, 0]))  # nothing to reorder yet
    keys = [randn(rng, 3, 2, 0, 5), randn(rng, 3, 2, 0, 5)]
    values = [keys[0], keys[1]]
    for step, rows in ((1, (2, 0, 0)), (16, (1, 1, 2, 0, 0)), (2, (4, 0)), (31, (1, 0))):
        for i, layer in enumerate(cache.layers):
            key, value = randn(rng, keys[i].size(0), 2, step, 5), randn(rng, keys[i].size(0), 2, step, 5)
            keys[i], values[i] = torch.cat((keys[i], key), dim=2), torch.cat((values[i], value), dim=2)
            got = layer.append(key, value)
            assert torch.equal(got[0], keys[i])
            assert torch.equal(got[1], values[i])
        cache.reorder(torch.tensor(rows))
        keys, values = [k[list(rows)] for k in keys], [v[list(rows)] for v in values]
    assert cache.length == 1 + 16 + 2 + 31

    memory = randn(rng, 3, 2, 7, 5)
    cache.layers[1].memory = ProjectedMemory(memory, -memory, torch.tensor([7, 5, 3]))
    cache.keep(torch.tensor([2, 0]))
    assert torch.equal(cache.layers[1].memory.key, memory[[2, 0]])
    assert torch.equal(cache.layers[1].memory.value, -memory[[2, 0]])
    assert cache.layers[1].memory.lengths.tolist() == [3, 7]
    assert cache.layers[0].memory is None


@pytest.mark.parametrize("narrowed", [torch.bfloat16, torch.float16])
def test_16_bit_gradients_are_accurate(rng, narrowed):
    """If values have a large common part, the gradient of a query is a small difference of large numbers."""
    query, key, value = (torch.randn(2, 3, 17, 13, generator=rng) for _ in range(3))
    narrow = [x.to(narrowed) for x in (query, key, 4 * value + 1000)]
    upstream = torch.randn(2, 3, 17, 13, generator=rng).to(narrowed)
    gradients = []
    for dtype in (narrowed, torch.float64):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in narrow]
        attend(*leaves, causal=True).backward(upstream.to(dtype))
        gradients.append([x.grad.double().flatten() for x in leaves])
    for got, want in zip(*gradients, strict=True):
        assert torch.cosine_similarity(got, want, dim=0) > 0.999


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("kv_heads", "window", "lengths"), [(6, None, None), (2, 5, (23, 11)), (1, None, (23, 0))])
def test_bf16_training_equals_float64_within_rounding(kv_heads, window, lengths, causal, biased, rng):
    """Outputs and gradients; a row that sees nothing has zeros."""
    lengths = None if lengths is None else torch.tensor(lengths)
    tensors = [torch.randn(2, heads, 23, 32, generator=rng) for heads in (6, kv_heads, kv_heads)]
    bias = torch.randn(6, 23, 23, generator=rng) if biased else None
    upstream = torch.randn(2, 6, 23, 32, generator=rng).bfloat16()
    if biased and lengths is not None:
        lengths = lengths.clamp(min=20)  # a query that sees nothing has zeros only without a bias
    ours = []
    for dtype in (torch.bfloat16, torch.float64):
        leaves = [x.bfloat16().to(dtype).requires_grad_() for x in tensors]
        added = None if bias is None else bias.to(torch.float64 if dtype == torch.float64 else torch.float32)
        heads = attend(*leaves, key_lengths=lengths, causal=causal, window=window, bias=added)
        heads.backward(upstream.to(dtype))
        ours.append([x.detach().double() for x in (heads, *(leaf.grad for leaf in leaves))])
    assert heads.isfinite().all()
    for got, want in zip(*ours, strict=True):
        assert (got - want).norm() < 0.01 * want.norm()


@pytest.mark.parametrize("window", [1, 4, 20])
def test_a_window_bounds_the_cache(window, rng):
    """Against plain lists of tensors: the cache holds what queries see, with little more capacity."""
    cache = Cache(1, window)
    (layer,) = cache.layers
    keys = values = randn(rng, 3, 2, 0, 5)
    for step, rows in ((1, (2, 0, 1)), (1, (1, 0)), (45, (1, 1, 0)), *[(1, (0, 2, 1)), (3, (0, 2, 1))] * 12):
        key, value = randn(rng, keys.size(0), 2, step, 5), randn(rng, keys.size(0), 2, step, 5)
        keys, values = torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)
        for got, whole in zip(layer.append(key, value), (keys, values), strict=True):
            n_seen = min(keys.size(2), step + window - 1)
            assert torch.equal(got[:, :, -n_seen:], whole[:, :, -n_seen:])
        room = max(2 * window, step + window - 1)
        assert cache.length == keys.size(2) and all(buffer.size(2) <= room for buffer in layer.buffers)
        cache.reorder(torch.tensor(rows))
        keys, values = keys[list(rows)], values[list(rows)]
