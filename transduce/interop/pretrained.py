"""Directories as transformers' save_pretrained writes them, and what formats can express."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save as serialize
from torch import Tensor

from transduce.config import differences, to_dict
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import FeatureExtractor
from transduce.data.tokenizer_files import ImportedTokenizer
from transduce.errors import InputError
from transduce.files import read_json, regular, write_file
from transduce.interop.config_json import CONFIG
from transduce.interop.generation import Generation
from transduce.interop.weights import WEIGHTS
from transduce.model.config import Tokens, TransformerConfig
from transduce.model.transformer import Transformer

TOKENIZER = "tokenizer_config.json"


class Imported(NamedTuple):
    """What a run directory holds."""

    model: Transformer
    source_tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer
    decoding: dict[str, Any]
    """How the model is searched by default: fields of SearchConfig, or, of a decoder alone, of
    GenerationConfig."""
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


def write_tokenizer_settings(
    directory: Path, kind: str, max_positions: int, settings: dict[str, Any]
) -> None:
    """Write tokenizer_config.json.

    Args:
        kind: the class in transformers.
        settings: the special tokens, as eos_token, and others.
    """
    known = {"tokenizer_class": kind, "model_max_length": max_positions}
    write_settings(directory / TOKENIZER, known | settings)


def piece_tokenizer(
    directory: Path,
    generation: Generation,
    vocab_size: int,
    model: str,
    table: str = "vocab.json",
    *,
    opening: Sequence[int] = (),
) -> ImportedTokenizer:
    """The tokenizer of a SentencePiece model, and of a table with the ids of its pieces.

    Args:
        opening: ids that stand before every text.
    """
    pieces = read_table(directory / table, vocab_size)
    spm = regular(directory / model).read_bytes()
    special = generation.special_ids(unk=pieces.index("<unk>"))
    return ImportedTokenizer.of_pieces(spm, pieces, special=special, opening=opening)


def read_table(path: Path, size: int) -> list[str]:
    """The pieces of a vocab.json by their ids, which are below `size`; "" where there is none.

    Raises:
        InputError: it is something else, or has an id beyond.
    """
    pieces = [""] * size
    for piece, i in read_json(path).items():
        if type(i) is not int or not 0 <= i < size:
            raise InputError(
                f"{path} must have an id of 0 to {size - 1} for every piece, but {piece!r} has "
                f"{i!r}"
            )
        pieces[i] = piece
    if "<unk>" not in pieces:
        raise InputError(f"{path} must have the piece <unk>, but it has not")
    return pieces


TRAINING = {
    "dropout",
    "attention_dropout",
    "init",
    "init_gain",
    "recompute",
    "balance_weight",
    "experts_per_token",
}
"""The fields of TransformerConfig that change no output of a trained model without experts."""


def check_same(
    stored: TransformerConfig, config: TransformerConfig, free: set[str], name: str
) -> None:
    """Raise InputError unless the configuration of a model is the one that another format stores.

    Args:
        free: the fields that may differ, beside those of `TRAINING` and those that say how tables
            are stored.
        name: of the format.
    """
    free = free | TRAINING | {"tie", "encoder.input.multiple", "decoder.input.multiple"}
    lines = differences(to_dict(stored), to_dict(config))
    if changed := [line for line in lines if line.split(":")[0] not in free]:
        raise InputError(
            f"a {name} has fields of one value, but in this model they differ: {'; '.join(changed)}"
        )


def check_exportable(config: TransformerConfig, name: str, lacking: Sequence[str]) -> None:
    """Raise InputError unless a model writes tokens, from tokens if it has an encoder, and has no
    part that a format lacks.

    Args:
        name: of the format.
        lacking: the fields that must have their defaults there.
    """
    if config.decoder is None:
        raise InputError(
            f"{name} runs a decoder, but this model is an encoder alone; it cannot be exported"
        )
    if config.encoder is not None and not isinstance(config.encoder.input, Tokens):
        raise InputError(
            f"{name} takes tokens, but this model's encoder takes frames; it cannot be exported"
        )
    for field in lacking:
        known = getattr(TransformerConfig, field)
        if (value := getattr(config, field)) != known:
            raise InputError(
                f"{name} knows {field}={known!r} alone, but this model has {field}={value!r}; it "
                "cannot be exported"
            )
