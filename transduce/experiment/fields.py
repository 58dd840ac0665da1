"""An experiment from a JSON or YAML file with the fields of its configuration, nested as they
are."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from transduce.config import from_dict, structured
from transduce.errors import InputError

ConfigT = TypeVar("ConfigT")

NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    NoneType: "null",
}
"""The name of a type in messages."""


def with_files(config: ConfigT, paths: Sequence[Path]) -> ConfigT:
    """Change the fields that files name; the last file wins. See `with_file`."""
    for path in paths:
        config = with_file(config, path)
    return config


def with_file(config: ConfigT, path: Path) -> ConfigT:
    """Change the fields that a file names: one that --print-config wrote, or a run's config.json.

    Raises:
        InputError: there is no such file, it is neither JSON nor YAML, or a field has a wrong name
            or a value that does not fit.
    """
    if not path.is_file():
        raise InputError(
            f"--config takes a file, .json or .yaml, but {path} is none; --print-config writes one"
        )
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
        in_yaml = path.suffix in (".yaml", ".yml")
        plain = yaml.load(text, _Yaml) if in_yaml else json.loads(text, object_pairs_hook=_object)
        again = json.dumps(plain, default=str, ensure_ascii=False)  # refuses circles
        again.encode(errors="surrogateescape")  # refuses halves of characters
        if "\\u0000" in again:
            raise InputError("no text holds the character 0")
    except Exception as error:  # PyYAML raises errors of many kinds, as for a day of no calendar
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"--config takes JSON, or YAML in a .yaml, but {path} is not: {reason}"
        ) from error
    if isinstance(plain, dict) and isinstance(plain.get("experiment"), dict):  # a run's config.json
        plain = {name: value for name, value in plain["experiment"].items() if name != "data"}
    try:
        return _changed(config, {} if plain is None else plain)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _object(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The fields of an object.

    Raises:
        InputError: a field is named twice; YAML and JSON would silently take the last.
    """
    plain = dict(pairs)
    if len(plain) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"a field must be named once, but {twice!r} is named {names.count(twice)} times; join "
            "them"
        )
    return plain


class _Yaml(yaml.SafeLoader):
    """YAML whose mappings name each field once, and whose numbers may be as short as 5e-3."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        # before << adds others
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        mapping: dict[str, Any] = super().construct_mapping(node, deep)
        _object([(self.construct_object(key, deep=True), None) for key in keys])
        return mapping


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789")
)


def like_run(config: ConfigT, run: Path) -> ConfigT:
    """Take the model, and the features of sound, of another run that reads and writes the same.

    Where there is no run, or one of another kind, such as a translator for a language model,
    nothing changes.

    Raises:
        InputError: the run's config.json is not ours.
    """
    path = run / "config.json"
    if not path.is_file():
        return config
    try:
        plain = json.loads(path.read_text("utf-8"))
        known = {
            name: plain[name]
            for name in ("model", "features")
            if name in plain and hasattr(config, name)
        }
        changed = _changed(config, known)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"a run to start from has a config.json of transduce, but {path}: {error}"
        ) from error
    return changed if _inputs(changed) == _inputs(config) else config


def _inputs(config: Any) -> list[type | None]:
    """The types of input of encoder and decoder; None: there is no such stack."""
    return [stack and type(stack.input) for stack in (config.model.encoder, config.model.decoder)]


def _changed(config: ConfigT, plain: Any, prefix: str = "") -> ConfigT:
    """The configuration with the fields of an object."""
    hints = get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for name, value in _checked_object(plain, prefix).items():
        if name not in hints:
            near = get_close_matches(str(name), hints, n=1) or hints
            raise InputError(f"there is no field {prefix}{name}; did you mean {', '.join(near)}?")
        changes[name] = _value(hints[name], value, prefix + name, getattr(config, name))
    return replace(config, **changes)  # type: ignore[type-var]


def _value(hint: Any, value: Any, name: str, old: Any) -> Any:
    """A value of this type; an object changes the fields of `old` where it can."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in kinds:
        return None
    classes: list[Any] = [kind for kind in kinds if is_dataclass(kind)]
    if classes:
        names = _checked_object(value, name).keys()
        classes.sort(key=lambda kind: (not isinstance(old, kind), len(fields(kind))))
        fitting = next(
            (kind for kind in classes if names <= {each.name for each in fields(kind)}), classes[0]
        )
        return (
            _changed(old, value, f"{name}.")
            if isinstance(old, fitting)
            else from_dict(fitting, value, name)
        )
    for kind in kinds:
        if not (isinstance(value, str) and get_origin(kind) is tuple):  # of its characters
            with suppress(ValueError):
                return structured(kind, value)
    raise InputError(
        f"{name} must be {_type_names(kinds)}, but it is {json.dumps(value, default=str)}"
    )


def _checked_object(plain: Any, name: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        actual = json.dumps(plain, default=str)
        raise InputError(
            f"{name.rstrip('.') or 'the whole'} must be an object of fields, but it is {actual}"
        )
    return plain


def _type_names(kinds: Sequence[Any]) -> str:
    names = []
    for kind in kinds:
        parts = get_args(kind)
        if get_origin(kind) is Literal:
            names.append("one of " + ", ".join(json.dumps(part) for part in parts))
        elif get_origin(kind) is tuple:
            names.append(
                "a list of " + ", ".join(_type_names([part]) for part in parts if part is not ...)
            )
        else:
            names.append(NAMES[kind])
    return " or ".join(names)
