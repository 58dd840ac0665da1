"""For inputs that are not finite, or empty, the C++ kernels compute what PyTorch computes."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests import contract
from tests.kernels import needs_cpp
from tests.model.test_contract import BASE, DECODER
from transduce.decode.scorer import log_sum_exp
from transduce.engine.cpu import CPUEngine
from transduce.engine.stack import Matrix
from transduce.model.transformer import Memory


@needs_cpp
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("place", [0, 15, 33, 70])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_inputs_give_non_finite_outputs_in_their_row_only(rng, int8, place, value):
    """In every output of that row, and in no other row."""
    weight, x = torch.randn(40, 71, generator=rng).abs() + 0.1, torch.randn(5, 71, generator=rng)
    product = Matrix(weight, torch.zeros(40), int8=int8)
    plain = product(x)
    x[2, place] = value
    got = product(x)
    wrong = torch.zeros(5, dtype=torch.bool)
    wrong[2] = True
    assert torch.equal(~got.isfinite(), wrong[:, None].expand(5, 40))
    rows = [0, 1, 3, 4]
    torch.testing.assert_close(got[rows], plain[rows])


@needs_cpp
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_relu_of_non_finite_values_equals_pytorch(rng, value):
    """The feed-forward's ReLU is part of its product; a NaN stays one."""
    config = replace(BASE, decoder=replace(DECODER, n_layers=1), activation="relu", norm_position="pre")
    plain = contract.random_model(config, rng).float()
    with torch.no_grad():
        plain.decoder.layers[0].feed_forward.wide.bias[3] = value
    fast, example = CPUEngine(deepcopy(plain)), contract.random_example(config, rng)
    memory = plain.encode(example.source, example.source_lengths)
    with torch.inference_mode():
        want, got = (contract.decode(each, example.target, memory=memory) for each in (plain, fast))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3, equal_nan=True)


@needs_cpp
@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_a_memory_row_of_length_0_equals_the_layers(rng, n_heads):
    """With heads of 64, 32 and 16 numbers, which leave the vectors' fast path in other places."""
    decoder = replace(DECODER, n_layers=1)
    config = replace(BASE, decoder=decoder, d_model=64, n_heads=n_heads, d_ff=8)
    plain = contract.random_model(config, rng)
    example = contract.random_example(config, rng)
    memory = example.memory(plain)
    empty = Memory(memory.states, torch.tensor([0, *memory.lengths.tolist()[1:]]))
    fast = CPUEngine(deepcopy(plain).float())
    with torch.inference_mode():
        want = contract.in_pieces(plain, example.target, empty, (1,) * contract.TARGET)
        got = contract.in_pieces(
            fast, example.target, Memory(empty.states.float(), empty.lengths), (1,) * contract.TARGET
        )
    assert want.isfinite().all()
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=2e-5 * float(want.abs().max()))


@pytest.mark.parametrize("cpp", [pytest.param(True, marks=needs_cpp), False])
def test_log_sum_exp_of_non_finite_rows(monkeypatch, cpp):
    if not cpp:
        monkeypatch.setattr("transduce.decode.scorer.library", lambda: None)
    logits = torch.randn(40, 100)
    logits[3] = -math.inf
    logits[5, 7] = math.inf
    logits[6, 98] = math.nan
    logits[8], logits[8, 50] = -math.inf, math.nan
    logits[9], logits[9, 99] = -math.inf, 2.0
    torch.testing.assert_close(log_sum_exp(logits), logits.logsumexp(-1), equal_nan=True)
