"""top_k and log_sum_exp against PyTorch's functions on whole tables."""

import math

import pytest
import torch

from transduce.decode.scorer import log_sum_exp, top_k


@pytest.mark.parametrize("vocab_size", [1, 3, 63, 64, 65, 1000, 8000])
def test_top_k_equals_torch_topk(vocab_size, rng):
    for shape in ((1, 1, 1), (3, 5, 10), (20, 4, 8), (2, 1, 7)):
        print(shape)
        check_top_k(vocab_size, *shape, rng)


def check_top_k(vocab_size: int, n_sentences: int, n_rows: int, n: int, rng: torch.Generator) -> None:
    scores = torch.randn(n_sentences * n_rows, vocab_size, generator=rng, dtype=torch.float64)
    scores[torch.rand(scores.shape, generator=rng) < 0.2] = -math.inf
    offset = torch.randn(n_sentences, n_rows, generator=rng, dtype=torch.float64)
    values, token, row = top_k(scores, offset, n)
    total = (scores.view(n_sentences, n_rows, vocab_size) + offset[:, :, None]).flatten(1)
    k = min(n, total.size(1))
    want, index = total.topk(k)
    assert torch.equal(values[:, :k], want) and (values[:, k:] == -math.inf).all()
    real = want > -math.inf
    assert torch.equal((row * vocab_size + token)[:, :k][real], index[real])
    assert ((token >= 0) & (token < vocab_size) & (row >= 0) & (row < n_rows)).all()


def test_offsets_may_be_float64(rng):
    """A rule of the caller's own may give float64 in some steps."""
    scores = torch.randint(0, 999, (6, 70), generator=rng).float()
    offset = torch.tensor([[0.25, -5.0], [7.0, 0.5], [-3.0, 0.0]], dtype=torch.float64)
    total = (scores.view(3, 2, 70) + offset[:, :, None]).flatten(1)
    assert torch.equal(top_k(scores, offset, 4).log_prob.double(), total.topk(4).values)


@pytest.mark.parametrize(("n_rows", "n"), [(1, 1), (1, 4), (5, 10)])
@pytest.mark.parametrize("vocab_size", [64, 700, 3000, 9000])
def test_ties_do_not_depend_on_the_batch(vocab_size, n_rows, n, rng):
    scores = torch.randint(0, 4, (40 * n_rows, vocab_size), generator=rng).float()
    offset = torch.randint(0, 3, (40, n_rows), generator=rng).float()
    together = top_k(scores, offset, n)
    for i in range(0, 40, 7):
        alone = top_k(scores[i * n_rows : (i + 1) * n_rows], offset[i : i + 1], n)
        assert all(torch.equal(one[0], all_[i]) for one, all_ in zip(alone, together, strict=True))


@pytest.mark.parametrize("shape", [(1, 5), (3, 700), (40, 900)])
def test_log_sum_exp(shape, rng):
    logits = 30 * torch.randn(shape, generator=rng, dtype=torch.float64)
    logits[:, 1] = -math.inf
    torch.testing.assert_close(log_sum_exp(logits), logits.logsumexp(-1), rtol=1e-14, atol=1e-14)
