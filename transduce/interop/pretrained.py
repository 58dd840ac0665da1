"""Directories as transformers' save_pretrained writes them: settings in config.json, weights in safetensors files."""

import json
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save as serialize
from torch import Tensor

from transduce.config import differences, to_dict
from transduce.data.speech.features import FeatureExtractor
from transduce.data.text.tokenizer import Tokenizer
from transduce.errors import InputError
from transduce.files import copy_weights, read_json, read_weights, write_file
from transduce.model.config import Activation, TransformerConfig
from transduce.model.transformer import Transformer

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER = "tokenizer_config.json"

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Our name of each activation that transformers and a Transformer here both have, by the name in transformers."""


class Imported(NamedTuple):
    """What a run directory holds."""

    model: Transformer
    source_tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer
    decoding: dict[str, Any]
    """How the model is searched where nothing else is said: fields of SearchConfig, or, of a decoder alone, of GenerationConfig."""
    feature_extractor: FeatureExtractor | None = None
    """How sound becomes frames, where the source is no text."""


def read_settings(directory: Path, *, fixed: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Read config.json.

    Args:
        fixed: The settings that must have one value: model_type, and what a Transformer here does in only one way.
        defaults: The values of settings that the file leaves out. It must not leave out model_type.

    Raises:
        InputError: the directory holds another kind of model, or a setting would silently give other numbers here.
    """
    found = read_json(directory / CONFIG)
    theirs = {**defaults, "model_type": None, **found}
    allowed = {name: [value] for name, value in fixed.items()}
    if "activation_function" in theirs:
        allowed["activation_function"] = list(ACTIVATIONS)
    for name, values in allowed.items():
        if theirs[name] not in values:
            rule = " or ".join(map(repr, values))
            raise InputError(f"{name} must be {rule}, but in {directory} it is {theirs[name]!r}")
    return theirs


def read_optional(path: Path) -> dict[str, Any]:
    """The object of a JSON file; an empty one where there is no file."""
    return read_json(path) if path.is_file() else {}


def write_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write an object as JSON, for people to read."""
    write_file(path, json.dumps(settings, indent=2) + "\n")


def write_model(directory: Path, theirs: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors into a directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    write_settings(directory / CONFIG, theirs)
    contiguous = {name: weight.cpu().contiguous() for name, weight in weights.items()}
    write_file(directory / WEIGHTS, serialize(contiguous, metadata={"format": "pt"}))


def read_table(path: Path, size: int) -> list[str]:
    """The pieces by id of a vocab.json, which has an id for each piece; "" for ids of the `size` that it does not name.

    Raises:
        InputError: it is something else, or has an id beyond.
    """
    pieces = [""] * size
    for piece, i in read_json(path).items():
        if type(i) is not int or not 0 <= i < size:
            raise InputError(f"{path} must have an id of 0 to {size - 1} for every piece, but {piece!r} has {i!r}")
        pieces[i] = piece
    if "<unk>" not in pieces:
        raise InputError(f"{path} must have the piece <unk>, but it has not")
    return pieces


def require_equal(theirs: dict[str, Any], one: str, other: str, directory: Path, way_out: str = "") -> None:
    """Raise InputError unless two settings, for which a Transformer here has a single field, are equal."""
    if theirs[one] != theirs[other]:
        values = f"{theirs[one]} and {theirs[other]}"
        raise InputError(f"{one} must equal {other}, but in {directory} they are {values}{way_out}")


def read_tensors(directory: Path, architecture: str) -> dict[str, Tensor]:
    """Read the weights by name, from one file or from the shards that an index lists.

    Args:
        architecture: The class in transformers that can read the model and save it again.

    Raises:
        InputError: there is no safetensors file, or it is damaged.
    """
    if (directory / WEIGHTS).is_file():
        return read_weights(directory / WEIGHTS)
    if (directory / INDEX).is_file():
        names = read_json(directory / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
            raise InputError(
                f"{directory / INDEX} must have a weight_map from names to files beside it, but it has not"
            )
        shards = set(names.values())
        return {name: weight for shard in sorted(shards) for name, weight in read_weights(directory / shard).items()}
    found = "has none"
    if (directory / "pytorch_model.bin").exists():
        found = "has pytorch_model.bin, which can run any code when it is read"
    raise InputError(
        f"weights are read from {WEIGHTS}, but {directory} {found}; if you trust it, convert it with transformers: "
        f"{architecture}.from_pretrained(DIRECTORY).save_pretrained(OTHER)"
    )


def fill(own: dict[str, Tensor], weights: dict[str, Tensor], directory: Path, *, unneeded: tuple[str, ...]) -> None:
    """Copy the weights read from `directory` into `own`, tensors that share memory with a model's parameters.

    Args:
        own: The tensors to fill, by their names in transformers.
        unneeded: Endings of the names that files hold although a model can do without them.

    Raises:
        InputError: a name is missing or unknown, or a shape differs.
    """
    needed = {name: weight for name, weight in weights.items() if name in own or not name.endswith(unneeded)}
    copy_weights(own, needed, str(directory))


def check_same(wanted: TransformerConfig, config: TransformerConfig, free: Collection[str], name: str) -> None:
    """Raise InputError unless two configurations are equal, but for fields that may have any value.

    Args:
        wanted: what is left of `config` in another format.
        free: the fields that may differ.
        name: of the format.
    """
    lines = differences(to_dict(wanted), to_dict(config))
    if changed := [line for line in lines if line.split(":")[0] not in free]:
        raise InputError(f"a {name} has fields of one value, but in this model they differ: {'; '.join(changed)}")


TRAINING = {"dropout", "attention_dropout", "init", "init_gain", "recompute", "balance_weight", "experts_per_token"}
"""The fields of TransformerConfig that change no output of a trained model without experts."""


def check_carried(config: TransformerConfig, carried: Collection[str], name: str) -> None:
    """Raise InputError where a model has a part that another format cannot express.

    Args:
        carried: the fields that the format has; those of `TRAINING` may have any value, too, and all others must have
            their defaults. Both halves tell positions alike.
        name: of the format.
    """
    for half in ("encoder", "decoder"):
        own = config.of(getattr(config, half))
        if (own.positions, own.max_positions) != (config.positions, config.max_positions):
            raise InputError(
                f"{name} knows one kind and number of positions, {config.positions!r} and {config.max_positions}, but the "
                f"{half} of this model has {own.positions!r} and {own.max_positions}; it cannot be exported as one"
            )
    for each in fields(TransformerConfig):
        if (
            each.name not in TRAINING
            and each.name not in carried
            and (value := getattr(config, each.name)) != each.default
        ):
            raise InputError(
                f"{name} knows {each.name}={each.default!r} alone, but this model has {each.name}={value!r}; it cannot be "
                "exported as one"
            )
