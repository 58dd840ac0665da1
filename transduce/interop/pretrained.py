"""Directories as transformers' save_pretrained writes them: settings in config.json, weights in safetensors files."""

import json
import re
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as serialize
from torch import Tensor

from transduce.config import differences, to_dict
from transduce.data.speech.features import FeatureExtractor
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.errors import InputError
from transduce.files import copy_weights, read_json, read_weights, regular, write_file
from transduce.interop.settings import CONFIG
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
TOKENIZER = "tokenizer_config.json"

HEADS = ("lm_head.", "proj_out.", "final_logits_bias")
"""What the names of weights begin with that are no part of a base model."""


class Imported(NamedTuple):
    """What a run directory holds."""

    model: Transformer
    source_tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer
    decoding: dict[str, Any]
    """How the model is searched where nothing else is said: fields of SearchConfig, or, of a decoder alone, of GenerationConfig."""
    feature_extractor: FeatureExtractor | None = None
    """How sound becomes frames, where the source is no text."""


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


def read_tensors(directory: Path, prefix: str) -> dict[str, Tensor]:
    """Read the weights by name, from one file or from the shards that an index lists.

    Args:
        prefix: What the names of all but the heads begin with. A file of a model without a head lacks it.

    Raises:
        InputError: there is no file of weights, or it is damaged.
    """
    for file, read in ((WEIGHTS, read_weights), (PICKLE, _read_pickle)):
        if (directory / file).exists():
            weights = read(directory / file)
            break
        if (index := directory / f"{file}.index.json").exists():
            weights = {}
            for shard in sorted(_shards(index)):
                weights |= read(directory / shard)
            break
    else:
        raise InputError(
            f"weights are read from {WEIGHTS} or {PICKLE}, but {directory} has neither; write them with transformers: "
            "AutoModel.from_pretrained(NAME).save_pretrained(DIRECTORY)"
        )
    if not any(name.startswith(prefix) for name in weights):
        weights = {name if name.startswith(HEADS) else prefix + name: weight for name, weight in weights.items()}
    return weights


def _shards(index: Path) -> set[str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
        raise InputError(f"{index} must have a weight_map from names to files beside it, but it has not")
    return set(names.values())


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a pickle, of which nothing is run: torch refuses all but tensors and plain data."""
    mapped = zipfile.is_zipfile(regular(path))  # older files can only be read whole
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Exception as error:  # torch raises nothing narrower
        refused = re.search(r"unsupported (global: )?GLOBAL \S+", str(error), re.IGNORECASE)
        reason = refused[0] if refused else type(error).__name__
        raise InputError(
            f"{path} must be a whole file of tensors alone, but torch.load with weights_only=True refuses it: "
            f"{reason}; take another copy, or {WEIGHTS}"
        ) from error
    plain = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    if not plain or not all(
        isinstance(w, Tensor) and (w.layout, w.device.type) == (torch.strided, "cpu") for w in found.values()
    ):
        raise InputError(f"{path} must hold dense tensors by name, but it holds something else; take {WEIGHTS}")
    return found


def share_table(weights: dict[str, Tensor], names: Sequence[str], directory: Path) -> dict[str, Tensor]:
    """The same weights, where a tied table has all of its names; a file may store it under one of them.

    Raises:
        InputError: tables under two of the names differ.
    """
    stored = [name for name in names if name in weights]
    for name in stored[1:]:
        if not torch.equal(weights[name].float(), weights[stored[0]].float()):
            raise InputError(
                f"tied tables must be equal, but in {directory} {name} differs from {stored[0]}; say in {CONFIG} that they "
                "are not tied (tie_word_embeddings false)"
            )
    return weights | {name: weights[stored[0]] for name in names if stored}


def fill(own: dict[str, Tensor], weights: dict[str, Tensor], directory: Path, *, unneeded: tuple[str, ...]) -> None:
    """Copy the weights read from `directory` into `own`, tensors that share memory with a model's parameters.

    Args:
        own: The tensors to fill, by their names in transformers.
        unneeded: Endings of the names that files hold although a model can do without them.

    Raises:
        InputError: a name is missing or unknown, a shape differs, or a number is not finite.
    """
    needed = {name: weight for name, weight in weights.items() if name in own or not name.endswith(unneeded)}
    copy_weights(own, needed, str(directory))
    if wrong := [name for name, weight in own.items() if not weight.isfinite().all()]:
        raise InputError(
            f"weights must be finite numbers of float32, but in {directory} {', '.join(wrong[:3])} are not; take another copy"
        )


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
