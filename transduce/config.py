"""Frozen dataclasses as configurations: JSON, differences, changes and checks of fields."""

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from operator import ge, gt, le, lt
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import cattrs
from cattrs.preconf.json import JsonConverter, make_converter
from cattrs.v import format_exception

from transduce.errors import InputError

Config = TypeVar("Config")
T = TypeVar("T")

Json = dict[str, Any]
"""An object of JSON."""

COMMON = "common"
Common = Annotated[T, COMMON]
"""A field that --help shows; all others are shown only by --help-all."""

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
TYPE_NAMES = NAMES | {Path: "a path", NoneType: "null"}
"""The name of a type in messages."""


@cache
def _converter() -> JsonConverter:
    converter = make_converter(forbid_extra_keys=True)
    for kind in NAMES:
        converter.register_structure_hook(kind, _exactly)
    return converter


def _exactly(value: Any, kind: type) -> Any:
    """Return a value that already has this type; an int is also accepted as a float."""
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise InputError("it is too large for a float") from error
    if type(value) is kind:
        return value
    shown_value = json.dumps(value) if isinstance(value, bool | NoneType) else f"{value!r:.60}"
    raise InputError(f"it must be {NAMES[kind]}, but it is {shown_value}")


def to_dict(config: Any) -> Json:
    """Convert a dataclass, nested ones included, to values that JSON can hold."""
    plain: Json = json.loads(json.dumps(_converter().unstructure(config)))
    return plain


def from_dict(kind: type[Config], plain: object, name: str) -> Config:
    """Convert the result of `to_dict` back to the dataclass `kind`; errors name its origin, `name`.

    Raises:
        InputError: a field is unknown or missing, or has an invalid value.
    """
    message = f"{name} does not describe a {kind.__name__}"
    if not isinstance(plain, dict):
        raise InputError(f"{message}: it must be an object, but it is {plain!r:.60}")
    try:
        return _converter().structure(plain, kind)
    except cattrs.BaseValidationError as error:
        reasons = "; ".join(cattrs.transform_error(error, format_exception=_reason))
        raise InputError(f"{message}: {reasons}") from error
    except cattrs.StructureHandlerNotFoundError as error:
        raise InputError(f"{message}: {error}") from error


def _reason(error: BaseException, kind: Any) -> str:
    """The message of the dataclass's own check, or of cattrs."""
    if isinstance(error, AttributeError):  # cattrs looked for keys in a value that has none
        return "it must be an object"
    if isinstance(error, ValueError):
        return str(error)
    return format_exception(error, kind).removeprefix("unknown error ")


def flatten(plain: Json, prefix: str = "") -> Json:
    """Turn {"a": {"b": 1}} into {"a.b": 1}."""
    flat: Json = {}
    for key, value in plain.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


REMOVED = {
    "conv_dims": (1,),
    "interctc_column": (None,),
    "compile_layers": (False, True),
    "shortlist": (False, True),
    "coverage_penalty": (0,),
    "bpe_dropout": (0,),
    "beam_groups": (1,),
    "diversity": (),
    "ema": (0,),
    "mbr": ("none",),
}
"""Fields of earlier versions, each with the values that may be dropped; (): any value."""

TRAINED_WITH = ("interctc_column", "compile_layers", "bpe_dropout", "ema")
"""Removed fields that affect training only."""


def without_removed(plain: Json, origin: str, *, is_trained: bool = False) -> Json:
    """Drop the fields of earlier versions from a configuration.

    Args:
        is_trained: the configuration is that of an existing run: there, fields of TRAINED_WITH may
            have other values than those in REMOVED, and then stay.

    Raises:
        InputError: such a field has a value that this version does not support.
    """
    free = TRAINED_WITH if is_trained else ()
    for name, allowed in REMOVED.items():
        if allowed and name in plain and plain[name] not in allowed and name not in free:
            raise InputError(
                f"{origin} must have {name}={shown(allowed[0])}, as this version has no such "
                f"field, but it has {name}={plain[name]!r:.60}; use the version that wrote it"
            )
    return {
        name: without_removed(value, origin, is_trained=is_trained)
        if isinstance(value, dict)
        else value
        for name, value in plain.items()
        if name not in REMOVED or (REMOVED[name] and value not in REMOVED[name])
    }


OTHER_NAMES = {
    "peak_rate": ("lr", "learning_rate", "max_lr"),
    "max_updates": ("epochs", "num_train_epochs", "max_epoch", "max_iters", "max_steps"),
    "warmup_steps": ("warmup", "warmup_updates", "warmup_iters", "num_warmup"),
    "tokens_per_batch": ("batch_size", "max_tokens", "batch_tokens"),
    "frames_per_batch": ("batch_size", "batch_bins", "batch_frames"),
    "accumulate": ("update_freq", "batch_multiplier", "gradient_accumulation_steps", "accum_grad"),
    "clip_norm": ("grad_clip", "clip_grad_norm", "max_grad_norm"),
    "d_model": ("hidden_size", "embed_dim", "embedding_dim", "n_embd", "n_state"),
    "n_layers": ("num_layers", "n_layer", "num_hidden_layers", "layers"),
    "n_heads": ("num_heads", "n_head", "num_attention_heads", "attention_heads"),
    "d_ff": ("ff_size", "ffn_embed_dim", "intermediate_size", "linear_units"),
    "beam_size": ("beam", "num_beams", "beams"),
    "alpha": ("length_penalty", "lenpen", "beam_alpha", "penalty"),
    "n_best": ("nbest", "num_return_sequences"),
    "n": ("n_best", "nbest", "num_return_sequences", "num_samples"),
    "max_length": ("max_new_tokens",),
    "max_positions": ("block_size", "n_positions", "n_ctx"),
    "final_rate": ("min_lr",),
    "format": ("output_format",),
    "run": ("out_dir", "model_dir", "save_dir"),
    "start_from": ("init_from", "load_model", "restore_file"),
    "validate_every": ("eval_interval", "save_interval_updates", "validation_freq"),
    "validate_by": ("best_checkpoint_metric", "best_model_criterion", "early_stopping_metric"),
    "keep_best": ("keep_best_checkpoints", "keep_best_ckpts", "keep_nbest_models"),
    "precision": ("bf16", "dtype", "fp16", "use_amp"),
    "no_repeat_ngram": ("no_repeat_ngram_size",),
}
"""What JoeyNMT, fairseq, ESPnet, nanoGPT and transformers call our fields."""


def our_names(name: str, keys: Iterable[str]) -> list[str]:
    """The keys, such as training.optim.peak_rate, that other toolkits call by this name, or that
    have it in another place."""
    name = name.replace("-", "_")
    last = name.rpartition(".")[2]
    ours = [last, *(our for our, others in OTHER_NAMES.items() if last in others)]
    return [
        key for key in keys if key.rpartition(".")[2] in ours and "lora." not in key and key != name
    ]


def shown(value: object) -> str:
    """Format a configuration value for messages."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "empty"
    return "none" if value is None else str(value)


def differences(old: Json, new: Json) -> list[str]:
    """List the fields that differ, a line each: "training.seed: 1 -> 2"."""
    before, after = flatten(old), flatten(new)
    pairs = {
        name: (before.get(name, "absent"), after.get(name, "absent"))
        for name in {**before, **after}
    }
    return [f"{name}: {shown(a)} -> {shown(b)}" for name, (a, b) in pairs.items() if a != b]


def _values(config: object, names: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names} | values


def at_least(
    low: int | float, config: object = None, *names: str, **values: int | float | None
) -> None:
    """Raise InputError unless each value is None or at least `low`, finite and below 2**62.

    Args:
        names: fields of `config` whose values are checked, too.
    """
    for name, value in _values(config, names, values).items():
        limit, rule = (2**62, "below 2**62") if isinstance(value, int) else (math.inf, "finite")
        if value is not None and not low <= value < limit:
            bound = f" and {rule}" if value >= limit else ""
            raise InputError(f"{name} must be at least {low}{bound}, but {name}={value}")


def within(interval: str, config: object = None, *names: str, **values: int | float | None) -> None:
    """Raise InputError unless each value is None or in the interval, such as "[0, 1)".

    Args:
        names: fields of `config` whose values are checked, too.
    """
    low, high = map(float, interval[1:-1].split(","))
    above = ge if interval[0] == "[" else gt
    below = le if interval[-1] == "]" else lt
    for name, value in _values(config, names, values).items():
        if value is not None and not (above(value, low) and below(value, high)):
            raise InputError(f"{name} must lie in {interval}, but {name}={value}")


def environment_count(name: str, default: str = "", *, least: int = 0) -> int:
    """Read the whole number in an environment variable that torchrun or a cluster sets.

    Raises:
        InputError: it is not a whole number of `least` or more.
    """
    text = os.environ.get(name, default)
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
        raise InputError(
            f"{name} must be a whole number of {least} or more, but it is {text!r}; correct it or "
            "unset it"
        )
    return int(text)


def divides(**values: int) -> None:
    """Raise InputError unless the second of two values is at least 1 and divides the first."""
    (name, n), (divisor, k) = values.items()
    if k < 1 or n % k:
        raise InputError(f"{divisor} must divide {name}, but {divisor}={k} and {name}={n}")


@cache
def _type_hints(kind: type) -> dict[str, Any]:
    """The types of the fields of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def check_choices(config: Any) -> None:
    """Raise InputError unless every field of a Literal type holds one of its values."""
    for name, hint in _type_hints(config.__class__).items():
        choices, value = get_args(hint), getattr(config, name)
        if get_origin(hint) is Literal and value not in choices:
            names = ", ".join(map(str, choices))
            raise InputError(f"{name} must be one of {names}, but {name}={value!r}")


def with_fields(config: Config, /, **values: Any) -> Config:
    """Change fields of a configuration; a dict changes fields of the nested configuration.

    Raises:
        InputError: a field has a wrong name or a value that does not fit.
    """
    return changed(config, values)


def changed(config: Config, plain: Any, prefix: str = "") -> Config:
    """Return the configuration with the fields that the object `plain` gives."""
    return replace(config, **checked(config, plain, prefix))  # type: ignore[type-var]


def checked(config: Any, plain: Any, prefix: str = "") -> Json:
    """Convert the values of an object to the types of a configuration's fields.

    Raises:
        InputError: a field has a wrong name or a value that does not fit.
    """
    hints = _type_hints(config.__class__)
    changes: Json = {}
    for name, value in _checked_object(plain, prefix).items():
        if name not in hints:
            parts = str(name).split(".")
            if len(parts) > 1:
                nested = ": {".join(parts) + ": ..." + "}" * (len(parts) - 1)
                raise InputError(f"fields are nested, but {name} has a dot; write {nested}")
            same = str(name).replace("-", "_")
            if ours := [same] if same in hints else our_names(same, flatten(to_dict(config))):
                here = " or ".join(prefix + key for key in ours)
                raise InputError(f"there is no field {prefix}{name}; here it is {here}")
            near = get_close_matches(str(name), hints, n=1) or hints
            raise InputError(f"there is no field {prefix}{name}; did you mean {', '.join(near)}?")
        changes[name] = _value(hints[name], value, prefix + name, getattr(config, name))
    return changes


def _value(hint: Any, value: Any, name: str, old: Any) -> Any:
    """Convert a value to this type; an object changes fields of `old` if it has the right class."""
    if hasattr(value, "tolist"):  # from NumPy or torch
        value = value.tolist()
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    classes: list[Any] = [kind for kind in kinds if is_dataclass(kind)]
    if (value is None and NoneType in kinds) or isinstance(value, tuple(classes)):
        return value
    if classes:
        names = _checked_object(value, name).keys()
        classes.sort(key=lambda kind: (not isinstance(old, kind), len(fields(kind))))
        fitting = next(
            (kind for kind in classes if names <= {each.name for each in fields(kind)}), classes[0]
        )
        return (
            changed(old, value, f"{name}.")
            if isinstance(old, fitting)
            else from_dict(fitting, value, name)
        )
    pairs = value
    if isinstance(value, dict):
        if unnamed := [key for key in value if isinstance(key, bool | float | None)]:
            raise InputError(
                f"the keys of {name} must be text, but one is {unnamed[0]}, as YAML reads no, on, "
                "1e3 and null; put quotes around it"
            )
        value = {str(key): each for key, each in value.items()}
        pairs = [*value.items()]
    for kind in kinds:
        if not (isinstance(value, str) and get_origin(kind) is tuple):  # else of its characters
            with suppress(Exception):  # cattrs' errors share no base class
                return _converter().structure(pairs, kind)
    raise InputError(
        f"{name} must be {_type_names(kinds)}, but it is {json.dumps(value, default=str)}"
    )


def _checked_object(plain: Any, name: str) -> Json:
    if not isinstance(plain, dict):
        actual = json.dumps(plain, default=str)
        raise InputError(
            f"{name.rstrip('.') or 'the configuration'} must be an object of fields, but it is "
            f"{actual}"
        )
    return plain


def _type_names(kinds: Sequence[Any]) -> str:
    names = []
    for kind in kinds:
        parts = get_args(kind)
        if get_origin(kind) is Literal:
            names.append("one of " + ", ".join(json.dumps(part) for part in parts))
        elif get_origin(kind) is tuple:
            inner = _type_names([*dict.fromkeys(each for each in parts if each is not ...)])
            size = "" if ... in parts else f" of {len(parts)}"
            names.append(f"a list{size}, each {inner}")
        else:
            names.append(TYPE_NAMES[kind])
    return " or ".join(names)
