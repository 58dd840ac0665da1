"""Frozen dataclasses: to JSON and back, what differs between two of them, and how they check their fields."""

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from operator import ge, gt, le, lt
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import cattrs
from cattrs.preconf.json import JsonConverter, make_converter
from cattrs.v import format_exception

from transduce.errors import InputError

Config = TypeVar("Config")

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


@cache
def _converter() -> JsonConverter:
    converter = make_converter(forbid_extra_keys=True)
    for kind in (int, float, bool, str):
        converter.register_structure_hook(kind, _exactly)
    return converter


def _exactly(value: Any, kind: type) -> Any:
    """A value that is of this type already; a whole number may stand for a float."""
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise InputError("it is too large for a float") from error
    if type(value) is kind:
        return value
    found = json.dumps(value) if value is None or isinstance(value, bool) else f"{value!r:.60}"
    raise InputError(f"it must be {NAMES[kind]}, but it is {found}")


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass, nested ones included, as what JSON can hold."""
    plain: dict[str, Any] = json.loads(json.dumps(_converter().unstructure(config)))
    return plain


def from_dict(kind: type[Config], plain: object, name: str) -> Config:
    """The dataclass `kind` from what `to_dict` made; `name` is what an error calls its origin.

    Raises:
        InputError: an unknown, missing or impossible field.
    """
    try:
        if not isinstance(plain, dict):
            raise InputError(
                f"{name} does not describe a {kind.__name__}: it must be an object, but it is {plain!r:.60}"
            )
        return _converter().structure(plain, kind)
    except (cattrs.BaseValidationError, cattrs.StructureHandlerNotFoundError) as error:
        told = str(error)
        if isinstance(error, cattrs.BaseValidationError):
            told = "; ".join(cattrs.transform_error(error, format_exception=_told))
        raise InputError(f"{name} does not describe a {kind.__name__}: {told}") from error


def _told(error: BaseException, kind: Any) -> str:
    """What the dataclass itself says of its fields, or what cattrs says."""
    if isinstance(error, AttributeError):  # it asked something else for its keys
        return "it must be an object"
    return str(error) if isinstance(error, ValueError) else format_exception(error, kind).removeprefix("unknown error ")


def flatten(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def shown(value: object) -> str:
    """A value of a configuration as messages write it."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "empty"
    return "none" if value is None else str(value)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line per field that differs: "training.seed: 1 -> 2"."""
    before, after = flatten(old), flatten(new)
    names = [*before, *(name for name in after if name not in before)]
    return [
        f"{name}: {shown(before.get(name, 'absent'))} -> {shown(after.get(name, 'absent'))}"
        for name in names
        if before.get(name, "absent") != after.get(name, "absent")
    ]


def at_least(low: int | float, **values: int | float | None) -> None:
    """Raise InputError unless every value is `low` or more, and finite, or None; whole numbers have 62 bits at most."""
    for name, value in values.items():
        most = 2**62 if isinstance(value, int) else math.inf
        if value is not None and not low <= value < most:
            bound = "" if not value >= most else " and finite" if value == math.inf else " and below 2**62"
            raise InputError(f"{name} must be at least {low}{bound}, but {name}={value}")


def within(interval: str, **values: int | float | None) -> None:
    """Raise InputError unless every value lies in the interval, such as "[0, 1)" or "(0, inf)", or is None."""
    low, high = map(float, interval[1:-1].split(","))
    above, below = (ge if interval[0] == "[" else gt), (le if interval[-1] == "]" else lt)
    for name, value in values.items():
        if value is not None and not (above(value, low) and below(value, high)):
            raise InputError(f"{name} must lie in {interval}, but {name}={value}")


def environment_count(environment: Mapping[str, str], name: str, default: str = "", *, least: int = 0) -> int:
    """The whole number in an environment variable, which torchrun or a cluster sets.

    Raises:
        InputError: it is no whole number of `least` or more.
    """
    text = environment.get(name, default)
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
        raise InputError(
            f"{name} must be a whole number of {least} or more, but it is {text!r}; correct it or unset it"
        )
    return int(text)


def divides(**values: int) -> None:
    """Raise InputError unless the second of two values is at least 1 and divides the first."""
    (whole, n), (part, k) = values.items()
    if k < 1 or n % k:
        raise InputError(f"{part} must divide {whole}, but {part}={k} and {whole}={n}")


def check_choices(config: Any) -> None:
    """Raise InputError unless every field of a dataclass whose type is a Literal holds one of its values."""
    for name, kind in get_type_hints(type(config)).items():
        value, choices = getattr(config, name), get_args(kind)
        if get_origin(kind) is Literal and value not in choices:
            raise InputError(f"{name} must be one of {', '.join(map(str, choices))}, but {name}={value!r}")
