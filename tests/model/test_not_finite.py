"""What is not finite, or not there, comes out of the C++ kernels as it comes out of PyTorch."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests import contract
from tests.kernels import needs_cpp
from tests.model.test_contract import BASE, DECODER
from transduce.decode.topk import log_sum_exp
from transduce.model.kernel_weight import KernelInt8Weight, KernelWeight
from transduce.model.packed import pack
from transduce.model.transformer import Memory


@needs_cpp
@pytest.mark.parametrize("kind", [KernelWeight, KernelInt8Weight])
@pytest.mark.parametrize("place", [0, 15, 33, 70])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_product_with_what_is_not_finite_is_not_finite(rng, kind, place, value):
    """In every output of that row, with relu too where PyTorch's keeps it, and in no other row."""
    weight, x = torch.randn(40, 71, generator=rng).abs() + 0.1, torch.randn(5, 71, generator=rng)
    product, plain = kind(weight), kind(weight)(x)
    x[2, place] = value
    for relu in (False, True):
        got = product(x, torch.zeros(40), relu=relu)
        wrong = torch.zeros(5, dtype=torch.bool)
        wrong[2] = not (relu and value == -math.inf)
        assert torch.equal(~got.isfinite(), wrong[:, None].expand(5, 40)) or (kind is KernelInt8Weight and not wrong[2])
        rows = [0, 1, 3, 4]
        torch.testing.assert_close(got[rows], plain[rows].relu() if relu else plain[rows])


@needs_cpp
@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_a_memory_row_of_length_0_gives_what_the_layers_give(rng, n_heads):
    """With heads of 64, 32 and 16 numbers, which leave the vectors' fast path in other places."""
    decoder = replace(DECODER, n_layers=1)
    config = replace(BASE, decoder=decoder, d_model=64, n_heads=n_heads, d_ff=8)
    plain = contract.random_model(config, rng)
    example = contract.random_example(config, rng)
    memory = example.memory(plain)
    empty = Memory(memory.states, torch.tensor([0, *memory.lengths.tolist()[1:]]))
    fast = pack(deepcopy(plain).float())
    with torch.inference_mode():
        want = contract.in_pieces(plain, example.target, empty, (1,) * contract.TARGET)
        got = contract.in_pieces(
            fast, example.target, Memory(empty.states.float(), empty.lengths), (1,) * contract.TARGET
        )
    assert want.isfinite().all()
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=2e-5 * float(want.abs().max()))


@pytest.mark.parametrize("cpp", [pytest.param(True, marks=needs_cpp), False])
def test_log_sum_exp_of_rows_that_are_not_finite(monkeypatch, cpp):
    if not cpp:
        monkeypatch.setattr("transduce.decode.topk.library", lambda: None)
    logits = torch.randn(40, 100)
    logits[3] = -math.inf
    logits[5, 7] = math.inf
    logits[6, 98] = math.nan
    logits[8], logits[8, 50] = -math.inf, math.nan
    logits[9], logits[9, 99] = -math.inf, 2.0
    torch.testing.assert_close(log_sum_exp(logits), logits.logsumexp(-1), equal_nan=True)
