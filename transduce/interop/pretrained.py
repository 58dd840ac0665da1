"""Directories as transformers' save_pretrained writes them: settings in config.json, weights in safetensors files."""

from pathlib import Path
from typing import Any

from torch import Tensor

from transduce.files import copy_weights, read_json, read_weights
from transduce.model.config import Activation

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
"""Our name of each activation that transformers and a Transformer here both have, by the name in transformers."""


def read_settings(directory: Path, *, fixed: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Read config.json.

    Args:
        fixed: The settings that must have one value: model_type, and what a Transformer here does in only one way.
        defaults: The values of settings that the file leaves out. It must not leave out model_type.

    Raises:
        ValueError: the directory holds another kind of model, or a setting would silently give other numbers here.
    """
    found = read_json(directory / CONFIG)
    theirs = {**defaults, "model_type": None, **found}
    allowed = {name: [value] for name, value in fixed.items()} | {"activation_function": list(ACTIVATIONS)}
    for name, values in allowed.items():
        if theirs[name] not in values:
            rule = " or ".join(map(repr, values))
            raise ValueError(f"{name} must be {rule}, but in {directory} it is {theirs[name]!r}")
    return theirs


def require_equal(theirs: dict[str, Any], one: str, other: str, directory: Path, way_out: str = "") -> None:
    """Raise ValueError unless two settings, for which a Transformer here has a single field, are equal."""
    if theirs[one] != theirs[other]:
        values = f"{theirs[one]} and {theirs[other]}"
        raise ValueError(f"{one} must equal {other}, but in {directory} they are {values}{way_out}")


def read_tensors(directory: Path, architecture: str) -> dict[str, Tensor]:
    """Read the weights by name, from one file or from the shards that an index lists.

    Args:
        architecture: The class in transformers that can read the model and save it again.

    Raises:
        ValueError: there is no safetensors file, or it is damaged.
    """
    if (directory / WEIGHTS).is_file():
        return read_weights(directory / WEIGHTS)
    if (directory / INDEX).is_file():
        names = read_json(directory / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
            raise ValueError(
                f"{directory / INDEX} must have a weight_map from names to files beside it, but it has not"
            )
        shards = set(names.values())
        return {name: weight for shard in sorted(shards) for name, weight in read_weights(directory / shard).items()}
    found = "has none"
    if (directory / "pytorch_model.bin").exists():
        found = "has pytorch_model.bin, which can run any code when it is read"
    raise ValueError(
        f"weights are read from {WEIGHTS}, but {directory} {found}; if you trust it, convert it with transformers: "
        f"{architecture}.from_pretrained(DIRECTORY).save_pretrained(OTHER)"
    )


def fill(own: dict[str, Tensor], weights: dict[str, Tensor], directory: Path, *, unneeded: tuple[str, ...]) -> None:
    """Copy the weights read from `directory` into `own`, tensors that share memory with a model's parameters.

    Args:
        own: The tensors to fill, by their names in transformers.
        unneeded: Endings of the names that files hold although a model can do without them.

    Raises:
        ValueError: a name is missing or unknown, or a shape differs.
    """
    needed = {name: weight for name, weight in weights.items() if name in own or not name.endswith(unneeded)}
    copy_weights(own, needed, str(directory))
