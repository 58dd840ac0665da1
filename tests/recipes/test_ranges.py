"""No field of a recipe takes a number that cannot be meant: each is refused when the configuration is made."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from recipes import language_model, masked_language_model, speech_to_text, translation
from transduce.errors import InputError
from transduce.experiment.command import choose

RECIPES = (translation, speech_to_text, language_model, masked_language_model)
MEANT = {("decoding", "glossary_bonus"): math.inf}
"""Numbers that look absurd and are not: such a bonus requires what it is for."""


def numbers(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type]]:
    """Every field that holds an int or a float, however deep, or None in its place."""
    hints = get_type_hints(type(config))
    for each in fields(config):
        kind, value = hints[each.name], getattr(config, each.name)
        if is_dataclass(value):
            yield from numbers(value, (*path, each.name))
            continue
        kinds = set(get_args(kind)) - {NoneType} if get_origin(kind) in (Union, UnionType) else {kind}
        if kinds <= {int, float}:
            yield (*path, each.name), float if float in kinds else int


def with_value(config: Any, path: tuple[str, ...], value: float) -> Any:
    name, *rest = path
    return replace(config, **{name: with_value(getattr(config, name), tuple(rest), value) if rest else value})


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_invalid_numbers_are_refused_by_field_name(recipe):
    got = {path: (setting, kind) for _, setting in recipe.SETTINGS.values() for path, kind in numbers(setting)}
    for path, (setting, kind) in got.items():
        for value in (-1,) if kind is int else (-1.0, math.nan, math.inf, -math.inf):
            if value == MEANT.get(path):
                with_value(setting, path, value)
                continue
            with pytest.raises(ValueError) as error:
                with_value(setting, path, value)
            assert path[-1] in str(error.value), (path, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("training", "data_workers"), 10**30),
        (("model", "init_gain"), 1e30),
        (("frames_per_batch",), 10**30),
        (("augmentation", "n_time_masks"), 10**30),
    ],
)
def test_huge_numbers_are_refused_by_field_name(path, value):
    with pytest.raises(InputError) as error:
        with_value(speech_to_text.COMMANDS, path, value)
    assert path[-1] in str(error.value)


def test_nested_fields_of_every_recipe_are_covered():
    got = {recipe: {".".join(p) for _, x in recipe.SETTINGS.values() for p, _ in numbers(x)} for recipe in RECIPES}
    assert {"training.optim.peak_rate", "max_length"} <= got[translation]
    assert "model.dropout" in got[language_model] and "augmentation.vtlp" in got[speech_to_text]
    assert "masking.mask_probability" in got[masked_language_model]


def test_command_line_errors_state_only_the_rule(monkeypatch):
    with pytest.raises(ValueError) as error:
        choose(translation.SETTINGS, ["files", "--training.patience", "0"], default="commands")
    assert str(error.value) == "patience must be at least 1, but patience=0"
