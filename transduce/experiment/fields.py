"""An experiment from a file: JSON or YAML whose names are the fields of a configuration, nested as they are."""

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from transduce.errors import InputError

ConfigT = TypeVar("ConfigT")

PLAIN = {bool: (bool,), int: (int,), float: (int, float), str: (str,), Path: (str,)}
"""What stands in a file for a value of each type."""


def with_files(config: ConfigT, paths: Sequence[Path]) -> ConfigT:
    """The configuration with the fields that files name; what a later one says wins. See `with_file`."""
    for path in paths:
        config = with_file(config, path)
    return config


def with_file(config: ConfigT, path: Path) -> ConfigT:
    """The configuration with the fields that a file names: one that --print-config wrote, or a run's config.json.

    Raises:
        InputError: there is no such file, it is neither JSON nor YAML, or a field has a wrong name or a value that does
            not fit.
    """
    if not path.is_file():
        raise InputError(f"--config takes a file, .json or .yaml, but {path} is none; --print-config writes one")
    raw = path.read_bytes()
    try:
        text, in_yaml = raw.decode("utf-8-sig"), path.suffix in (".yaml", ".yml")
        plain = yaml.load(text, _Yaml) if in_yaml else json.loads(text, object_pairs_hook=_object)
        # neither halves of characters nor circles
        json.dumps(plain, default=str, ensure_ascii=False).encode(errors="surrogateescape")
    except Exception as error:  # PyYAML raises errors of many kinds, such as for a day that there is not
        told = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"--config takes JSON, or YAML in a .yaml, but {path} is not: {told}") from error
    if isinstance(plain, dict) and isinstance(plain.get("experiment"), dict):  # a run's config.json
        plain = {name: value for name, value in plain["experiment"].items() if name != "data"}
    try:
        found: ConfigT = _changed(config, {} if plain is None else plain, "")
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return found


def _object(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The fields of an object, each of which is named once; YAML and JSON would silently take the last of several.

    Raises:
        InputError: a field is named twice.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"a field must be named once, but {twice!r} is named {names.count(twice)} times; join them")
    return fields


class _Yaml(yaml.SafeLoader):
    """YAML whose mappings name each field once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]  # before << adds others
        found: dict[str, Any] = super().construct_mapping(node, deep)
        _object([(self.construct_object(key, deep=True), None) for key in keys])
        return found


def like_run(config: ConfigT, run: Path) -> ConfigT:
    """The configuration with the model, and the features of sound, of another run that reads and writes the same.

    Where there is no run, or one of another kind, such as a translator for a language model, it stays what it is.

    Raises:
        InputError: the run's config.json is not ours.
    """
    path = run / "config.json"
    if not path.is_file():
        return config
    try:
        plain = json.loads(path.read_text("utf-8"))
        found: ConfigT = _changed(
            config, {name: plain[name] for name in ("model", "features") if name in plain and hasattr(config, name)}, ""
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"a run to start from has a config.json of transduce, but {path}: {error}") from error
    return found if _inputs(found) == _inputs(config) else config


def _inputs(config: Any) -> list[type | None]:
    """What the encoder and the decoder read; None: there is no such stack."""
    return [stack and type(stack.input) for stack in (config.model.encoder, config.model.decoder)]


def _changed(config: Any, plain: Any, prefix: str) -> Any:
    _check_object(plain, prefix)
    return replace(config, **_values(type(config), plain, prefix, config))


def _values(kind: type, plain: dict[str, Any], prefix: str, old: object = None) -> dict[str, Any]:
    """The values of these fields of a dataclass; nested ones change those of `old`."""
    hints, found = get_type_hints(kind), {}
    names = [each.name for each in fields(kind)]
    for name, value in plain.items():
        if name not in names:
            near = get_close_matches(str(name), names, n=1) or names
            raise InputError(f"there is no field {prefix}{name}; did you mean {', '.join(near)}?")
        found[name] = _value(hints[name], value, prefix + name, getattr(old, name, None))
    return found


def _value(kind: Any, value: Any, name: str, old: object = None) -> Any:
    """A value of this type, from what the file has."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    classes: list[Any] = [each for each in kinds if is_dataclass(each)]
    if classes and not (value is None and NoneType in kinds):
        _check_object(value, name)
        if is_dataclass(old):  # the one that is there, unless another one has all these fields
            classes.sort(key=lambda each: each is not type(old))
        fitting = [each for each in classes if value.keys() <= {field.name for field in fields(each)}]
        chosen = (fitting or classes)[0]
        if is_dataclass(old) and chosen is type(old):
            return _changed(old, value, f"{name}.")
        try:
            return chosen(**_values(chosen, value, f"{name}."))
        except TypeError as error:
            raise InputError(f"{name} lacks fields: {error}") from error
    for each in (kind for kind in kinds if kind not in classes):
        fits, found = _fits(each, value)
        if fits:
            return found
    raise InputError(f"{name} must be {_told(kinds)}, but it is {json.dumps(value, default=str)}")


def _fits(kind: Any, value: Any) -> tuple[bool, Any]:
    """Whether this stands for a value of the type, and which."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is NoneType:
        return value is None, None
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts), value
    if origin is tuple:
        if not isinstance(value, list):
            return False, None
        wanted = [parts[0]] * len(value) if parts[-1] is ... else parts
        found = [_fits(part, each) for part, each in zip(wanted, value, strict=False)]
        return len(wanted) == len(value) and all(fits for fits, _ in found), tuple(each for _, each in found)
    if kind is float and isinstance(value, str | int) and not isinstance(value, bool):  # YAML reads 5e-3 as text
        try:
            return True, float(value)
        except (ValueError, OverflowError):
            return False, None
    right = isinstance(value, PLAIN[kind]) and (kind is bool or not isinstance(value, bool)) and "\0" not in str(value)
    return right, kind(value) if right else None


def _check_object(plain: Any, name: str) -> None:
    if not isinstance(plain, dict):
        told = json.dumps(plain, default=str)
        raise InputError(f"{name.rstrip('.') or 'the whole'} must be an object of fields, but it is {told}")


def _told(kinds: tuple[Any, ...]) -> str:
    """The types in words."""
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    told = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            told.append("one of " + ", ".join(json.dumps(each) for each in get_args(kind)))
        elif get_origin(kind) is tuple:
            parts = get_args(kind)
            inner = _told(parts[:1]) if parts[-1] is ... else ", ".join(_told((part,)) for part in parts)
            told.append(f"a list of {inner}")
        else:
            told.append("null" if kind is NoneType else names[kind])
    return " or ".join(told)
