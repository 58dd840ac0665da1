"""Fields are refused by name, with the rule and the value."""

import math
from dataclasses import dataclass
from typing import Literal

import pytest

from transduce.config import at_least, check_choices, differences, within


def refusal(check, *args, **values) -> str:
    with pytest.raises(ValueError) as caught:
        check(*args, **values)
    return str(caught.value)


def test_at_least_accepts_larger_values_and_none():
    at_least(1, a=1, b=2, c=2**62 - 1, d=None)
    at_least(0, a=0, b=0.0, c=-0.0, d=1e-300, e=1e300)
    at_least(-0.5, a=-0.5)
    at_least(3)


@pytest.mark.parametrize(
    ("low", "value"),
    [(1, 0), (0, -1), (0, -1e-9), (1.0, 0.5), (0, math.nan), (0, -math.inf), (0, math.inf), (0, 2**62)],
)
def test_at_least_refuses_smaller_or_non_finite_values(low, value):
    message = refusal(at_least, low, n=value)
    assert f"at least {low}" in message and message.endswith(f"n={value}")


def test_errors_have_the_rule_and_the_value():
    assert refusal(at_least, 1, n=0) == "n must be at least 1, but n=0"
    assert refusal(at_least, 0, n=math.inf) == "n must be at least 0 and finite, but n=inf"
    assert refusal(within, "(0, 1]", x=2) == "x must lie in (0, 1], but x=2"
    assert refusal(Plate, shape="oval") == "shape must be one of round, square, but shape='oval'"


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", [0, 0.0, 0.5, 1 - 1e-16], [-1e-300, 1, 1.0, 2, -math.inf, math.inf]),
        ("(0, 1]", [1e-300, 0.5, 1, 1.0], [0, 0.0, -0.5, 1.5, math.inf]),
        ("[0, 1]", [0, 0.5, 1], [-0.1, 1.1]),
        ("(0, 1)", [0.5], [0, 1, -1, 2]),
        ("(0, inf)", [1e-300, 1, 1e300], [0, -1.0, math.inf, -math.inf]),
        ("(0, inf]", [1, math.inf], [0]),
        ("[-2, 0.5]", [-2, -2.0, 0, 0.5], [-2.1, 0.6]),
        ("[3, 3]", [3], [2, 4, 3.1]),
        ("[1, 0]", [], [0, 0.5, 1, 2, -1]),
    ],
)
def test_within_open_and_closed_intervals(interval, inside, outside):
    for value in inside:
        within(interval, x=value)
    for value in [*outside, math.nan]:
        message = refusal(within, interval, x=value)
        assert interval in message and message.endswith(f"x={value}")
    within(interval, x=None)
    within(interval)


def test_the_first_invalid_value_is_named():
    assert refusal(at_least, 2, a=3, b=None, c=1, d=0).endswith("c=1")
    assert refusal(within, "[0, 1)", a=0.5, b=None, c=1.0, d=-1.0).endswith("c=1.0")


Shape = Literal["round", "square"]


@dataclass(frozen=True)
class Plate:
    shape: Shape = "round"
    layers: Literal[0, 1, 2] = 0
    name: str = "plate"
    weight: float | None = None

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True)
class Bowl(Plate):
    depth: Literal["flat", "deep"] = "deep"


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Plate, {"layers": 3}, "layers=3"),
        (Plate, {"layers": "1"}, "layers='1'"),
        (Plate, {"shape": None, "layers": 7}, "shape=None"),
        (Bowl, {"depth": "round"}, "depth='round'"),
        (Bowl, {"layers": -1}, "layers=-1"),
    ],
)
def test_a_value_outside_the_choices_is_refused(kind, fields, message):
    assert refusal(kind, **fields).endswith(message)


def test_choices_pass_and_other_types_are_not_checked():
    for shape in ("round", "square"):
        for layers in (0, 1, 2):
            assert Bowl(shape=shape, layers=layers, name="oval", weight=-1.0).layers == layers


def test_differences_are_written_without_python_syntax():
    old, new = {"lm": None, "words": [], "same": None}, {"lm": "b", "words": ["x", "y"], "same": None}
    assert differences(old, new) == ["lm: none -> b", "words: empty -> x, y"]
