"""Few queries without a gradient, as in a search: dropout works if it is on, and neighbours change nothing."""

import math

import pytest
import torch

from transduce.model.attention import attend


@pytest.mark.parametrize("n_queries", [1, 4, 16, 17])
@pytest.mark.parametrize("grad", [False, True])
def test_attention_weights_are_dropped_with_and_without_a_gradient(n_queries, grad):
    """Monte Carlo dropout needs this: the number of kept weights, of four equal ones, is binomial; kept ones grow by a third."""
    torch.manual_seed(1)
    query, key, value = torch.zeros(3000, 1, n_queries, 2), torch.zeros(3000, 1, 4, 2), torch.ones(3000, 1, 4, 2)
    with torch.set_grad_enabled(grad):
        heads = attend(query, key, value, dropout=0.25)
    kept = 3 * heads[..., 0]
    torch.testing.assert_close(kept, kept.round())
    for k in range(5):
        share = float((kept.round() == k).double().mean())
        assert share == pytest.approx(math.comb(4, k) * 0.75**k * 0.25 ** (4 - k), abs=0.04)


@pytest.mark.parametrize("n_keys", [3, 700])
@pytest.mark.parametrize("masked", [False, True])
def test_bf16_rows_are_equal_alone_and_in_a_batch(rng, n_keys, masked):
    """64 rows with 700 keys are more numbers than are converted at a time."""
    query = torch.randn(64, 4, 2, 32, generator=rng).bfloat16()
    key, value = (torch.randn(64, 4, n_keys, 32, generator=rng).bfloat16() for _ in range(2))
    lengths = torch.randint(1, n_keys + 1, (64,), generator=rng) if masked else None
    with torch.no_grad():
        together = attend(query, key, value, key_lengths=lengths)
        for i in (0, 13, 63):
            own = slice(i, i + 1)
            alone = attend(query[own], key[own], value[own], key_lengths=None if lengths is None else lengths[own])
            assert torch.equal(alone, together[own])
        exact = attend(query.float(), key.float(), value.float(), key_lengths=lengths)
    torch.testing.assert_close(together.float(), exact, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("n", [5, 16, 20])
def test_padding_barely_changes_bf16_rows(rng, n):
    """Longer neighbours cause padding, which needs another kernel; some float32 sums have another order."""
    rows = [torch.randn(64, 4, 40, 32, generator=rng).bfloat16() for _ in range(3)]
    with torch.no_grad():
        alone = attend(*(x[:, :, :n] for x in rows), key_lengths=torch.full((64,), n))
        padded = attend(*rows, key_lengths=torch.full((64,), n))[:, :, :n]
    assert float((alone != padded).float().mean()) < 1e-3


def test_empty_batch_gives_an_empty_result():
    none = torch.zeros(0, 4, 1, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        assert attend(none, none, none).shape == attend(none, none, none, key_lengths=torch.zeros(0).long()).shape
