"""Positions against the paper's formula, number by number."""

import math

import pytest
import torch

from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.inputs import Positions, rotate, sinusoidal


def formula(position: int, column: int, d_model: int) -> float:
    """Vaswani et al. (2017), section 3.5."""
    angle = position / 10000 ** ((column - column % 2) / d_model)
    return math.cos(angle) if column % 2 else math.sin(angle)


def table(start: int, stop: int, d_model: int) -> torch.Tensor:
    return torch.tensor([[formula(t, column, d_model) for column in range(d_model)] for t in range(start, stop)])


def positions(kind: str, max_positions: int) -> Positions:
    decoder = StackConfig(input=Tokens(vocab_size=5))
    return Positions(
        TransformerConfig(decoder=decoder, d_model=14, n_heads=2, positions=kind, max_positions=max_positions)
    )


def rotary_positions(max_positions: int) -> Positions:
    """Of heads of width 14."""
    decoder = StackConfig(input=Tokens(vocab_size=5))
    return Positions(
        TransformerConfig(decoder=decoder, d_model=28, n_heads=2, positions="rotary", max_positions=max_positions)
    )


@pytest.mark.parametrize(("start", "stop"), [(0, 11), (5, 7), (9973, 9979)])
def test_sinusoidal_is_the_formula(start, stop):
    """Far from the start, too, where angles computed in single precision would be off by 1e-3."""
    torch.testing.assert_close(sinusoidal(start, stop, 14), table(start, stop, 14), rtol=0, atol=1e-7)


def test_sinusoids_of_an_odd_width_end_with_a_sine():
    torch.testing.assert_close(sinusoidal(3, 9, 7), table(3, 9, 7), rtol=0, atol=1e-7)


@pytest.mark.parametrize("d_model", [2, 7, 14])
def test_tensor2tensor_sinusoids_are_their_formula(d_model):
    """n = d_model // 2 angles position * exp(-i ln(10000) / (n - 1)); an odd width has a 0 behind them."""
    n = d_model // 2
    angles = [[t * math.exp(-i * math.log(10000) / max(1, n - 1)) for i in range(n)] for t in range(5, 9)]
    rows = [[f(a) for a in row for f in (math.sin, math.cos)] + [0.0] * (d_model % 2) for row in angles]
    got = sinusoidal(5, 9, d_model, kind="tensor2tensor")
    torch.testing.assert_close(got, torch.tensor(rows), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("start", "steps"), [(0, 5), (0, 7), (3, 4), (3, 5), (6, 1), (7, 1), (5, 13), (101, 2)])
def test_sinusoids_continue_beyond_the_table(start, steps, rng):
    """Inside the table of seven rows, over its end, and beyond it."""
    x = torch.randn(2, steps, 14, generator=rng)
    got = positions("sinusoidal", 7)(x, start)
    torch.testing.assert_close(got, x + table(start, start + steps, 14), rtol=0, atol=1e-6)


def test_sinusoidal_has_no_weights_and_is_not_saved():
    assert not list(positions("sinusoidal", 7).parameters())
    assert not positions("sinusoidal", 7).state_dict()


@pytest.mark.parametrize(("start", "steps"), [(0, 7), (3, 4), (6, 1)])
def test_learned_adds_its_rows(start, steps, rng):
    layer = positions("learned", 7)
    weight = torch.randn(7, 14, generator=rng)
    layer.learned.data = weight
    x = torch.randn(2, steps, 14, generator=rng)
    assert torch.equal(layer(x, start), torch.stack([row + weight[start : start + steps] for row in x]))


@pytest.mark.parametrize(("start", "steps", "end"), [(0, 8, 8), (7, 1, 8), (5, 11, 16)])
def test_learned_positions_end_at_max_positions(start, steps, end):
    message = rf"^learned positions end at max_positions=7, but the sequence has {end}; leave out "
    with pytest.raises(ValueError, match=message):
        positions("learned", 7)(torch.zeros(2, steps, 14), start)


def test_none_adds_nothing(rng):
    x = torch.randn(2, 11, 14, generator=rng)
    assert torch.equal(positions("none", 7)(x, 3), x)


def angles(start: int, stop: int, d_head: int) -> torch.Tensor:
    """Su et al. (2021), section 3.2.2: pair i turns by position / 10000^(2i / d_head)."""
    turns = [[t / 10000 ** (2 * i / d_head) for i in range(d_head // 2)] for t in range(start, stop)]
    return torch.tensor(turns, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("start", "stop"), [(0, 700), (698, 703), (700, 900)])
def test_rotation_is_exact_for_every_dtype(start, stop, dtype):
    """Inside the table of 700 positions, over its end, and beyond it."""
    layer = rotary_positions(700).to(dtype)
    got = layer.distances(start, stop).rotation
    assert got.dtype == torch.float32
    turns = angles(start, stop, 14)
    torch.testing.assert_close(got, torch.stack((turns.cos(), turns.sin())).float(), rtol=0, atol=1e-6)
    back = layer.to(torch.float32).distances(start, stop).rotation
    assert torch.equal(back, rotary_positions(700).distances(start, stop).rotation)


def test_bf16_rotation_is_rounded_once(rng):
    """Not to one that a rounded cosine moves it to: the formula in float64, rounded once."""
    x = torch.randn(1, 2, 600, 14, generator=rng).to(torch.bfloat16)
    first, second = x.double().chunk(2, dim=-1)
    turns = angles(0, 600, 14)
    want = torch.cat((first * turns.cos() - second * turns.sin(), second * turns.cos() + first * turns.sin()), dim=-1)
    got = rotate(x, rotary_positions(600).to(torch.bfloat16).distances(0, 600).rotation)
    assert got.dtype == torch.bfloat16
    error = (got.double() - want).abs() / want.abs().clamp_min(0.1)
    assert error.max() < 2**-8 * 1.01  # half a step of 8 bits


def test_the_sinusoidal_table_is_rounded_once(rng):
    """In a bf16 model a position is the float32 one, rounded, inside the table as beyond it."""
    layer = positions("sinusoidal", 50).to(torch.bfloat16)
    x = torch.zeros(1, 100, 14, dtype=torch.bfloat16)
    assert torch.equal(layer(x)[0, :50], sinusoidal(0, 50, 14).to(torch.bfloat16))
    assert torch.equal(layer(x)[0], torch.cat([layer(x[:, :50], t)[0] for t in (0, 50)]))
