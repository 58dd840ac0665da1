"""What the seeds print or say that is not so; docs/seeds.md lists it."""

import math

import torch

from tests.seeds.figures import assert_prints, config, prints, weights_of
from tests.seeds.test_000_transformer_in_90_minutes import SCALED_6_1
from transduce.model.inputs import sinusoidal
from transduce.model.layers import Sublayer


def test_000_weights_of_chapter_5():
    """Seed 000, chapter 6 shows "from chapter 5" a row 0.37, 0.32, 0.31, ..., which leaves the fourth weight nothing."""
    weights = weights_of(torch.tensor(SCALED_6_1))
    assert not prints(weights[0, :3], [0.37, 0.32, 0.31], digits=1)
    odds = [math.exp(score) for score in SCALED_6_1[0]]
    torch.testing.assert_close(weights[0], torch.tensor([x / sum(odds) for x in odds]))
    assert_prints(weights[0], [0.22, 0.28, 0.24, 0.26], digits=2)


def test_003_ids_of_hello():
    """GPT-2 numbers the 256 bytes first: those that can be printed in their order, from "!" on, then the others."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    ids = [order.index(byte) for byte in b"Hello"]
    assert ids == [39, 68, 75, 75, 78]
    printed = [15496, 8894, 75, 75, 78]
    assert ids[2:] == printed[2:] and min(printed[:2]) > 255  # the others are no letters


def test_003_dimension_0_is_the_fastest():
    table = sinusoidal(0, 10, 8)
    steps = table.diff(dim=0).abs().mean(dim=0)
    assert steps[0] > steps[2] > steps[4] > steps[6]
    torch.testing.assert_close(table[1, [0, 6]], torch.tensor([1.0, 1e-3]).sin())


def test_003_a_residual_may_weaken_a_gradient():
    """y = x + F(x) with F(x) = -x / 2: the slope is 1 - 1/2."""
    sublayer = Sublayer(config(d_model=4, n_heads=1))
    sublayer.norm = torch.nn.Identity()
    x = torch.randn(1, 1, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(sublayer(x, lambda y: -y / 2).sum(), x)
    torch.testing.assert_close(slope, torch.full_like(slope, 0.5))


def test_004_scores_times_zero_are_not_masked():
    """Scores times 0 leave softmax a weight for the future; scores replaced by -inf do not."""
    scores = torch.tensor([[1.0, 2.0], [0.5, 0.3]])
    assert (scores * torch.ones(2, 2).tril()).softmax(-1)[0, 1] > 0.2
    assert weights_of(scores, causal=True)[0].tolist() == [1.0, 0.0]
