"""Weights of models of transformers: safetensors or pickles in, a Transformer out.

Sinusoidal positions are all sines, then all cosines there, while in the paper and here sines and
cosines alternate. But the order of the d_model dimensions is only a convention: when everything
that reads from the residual stream or writes to it is reordered, the outputs stay the same. So
reading reorders the weights, and the model needs no change.
"""

import re
import zipfile
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.errors import InputError
from transduce.files import copy_weights, read_json, read_weights, regular
from transduce.interop.config_json import CONFIG
from transduce.interop.names import Names, named_weights
from transduce.model.config import Sinusoids, TransformerConfig
from transduce.model.meta import blank_transformer, check_fits
from transduce.model.positions import sinusoidal
from transduce.model.transformer import Transformer

WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"

HEADS = ("lm_head.", "proj_out.", "final_logits_bias")
"""What the names of weights begin with that are no part of a base model."""

UNNEEDED = (
    "lm_head.weight",
    "proj_out.weight",
    "shared.weight",
    "embed_tokens.weight",
    "embed_positions.weight",
    "embed_positions.weights",
    "coder.version",
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
)
"""Endings of the names of tensors that a file may hold although a model here computes them, or
holds them once."""


def read_tensors(directory: Path, prefix: str = "model.") -> dict[str, Tensor]:
    """Read the weights by name, from one file or from the shards that an index lists.

    Args:
        prefix: What the names of all but the heads begin with. A file of a model without a head
            lacks it.

    Raises:
        InputError: there is no file of weights, or it is damaged.
    """
    for file, read in ((WEIGHTS, read_weights), (PICKLE, _read_pickle)):
        index = directory / f"{file}.index.json"
        if (directory / file).exists() or index.exists():
            shards = [file] if (directory / file).exists() else _shards(index)
            weights = {
                name: weight for shard in shards for name, weight in read(directory / shard).items()
            }
            break
    else:
        raise InputError(
            f"weights are read from {WEIGHTS} or {PICKLE}, but {directory} has neither; write them "
            "with transformers: "
            "AutoModel.from_pretrained(NAME).save_pretrained(DIRECTORY)"
        )
    if any(name.startswith(prefix) for name in weights):
        return weights
    return {
        name if name.startswith(HEADS) else prefix + name: weight
        for name, weight in weights.items()
    }


def _shards(index: Path) -> list[str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(n, str) and Path(n).name == n for n in names.values()
    ):
        raise InputError(
            f"{index} must have a weight_map from names to files beside it, but it has not"
        )
    return sorted({*names.values()})


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Read tensors by name from a pickle, of which nothing is run."""
    mapped = zipfile.is_zipfile(regular(path))  # older files can only be read whole
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Exception as error:  # torch raises nothing narrower
        refused = re.search(r"unsupported (global: )?GLOBAL \S+", str(error), re.IGNORECASE)
        reason = refused[0] if refused else type(error).__name__
        raise InputError(
            f"{path} must be a whole file of tensors alone, but torch.load with weights_only=True "
            "refuses it: "
            f"{reason}; take another copy, or {WEIGHTS}"
        ) from error
    plain = isinstance(tensors, dict) and all(
        isinstance(name, str)
        and isinstance(w, Tensor)
        and (w.layout, w.device.type) == (torch.strided, "cpu")
        for name, w in tensors.items()
    )
    if not plain:
        raise InputError(
            f"{path} must hold dense tensors by name, but it holds something else; take {WEIGHTS}"
        )
    return tensors


def fill_transformer(
    config: TransformerConfig,
    names: Names,
    weights: dict[str, Tensor],
    directory: Path,
    *,
    optional: str = "$^",
) -> Transformer:
    """Make a model of the weights read from `directory`, in evaluation mode.

    Args:
        names: Those of the family.
        optional: What is found in names that a file may lack: biases that begin as zeros, norms
            that begin as ones.

    Raises:
        InputError: a name is missing or unknown, a shape differs, tied tables differ, a number is
            not finite, or positions are not the sinusoids that the configuration says.
    """
    check_fits(config, torch.device("cpu"))
    model = blank_transformer(config)
    own = named_weights(model, names)
    weights = {
        name: weight.clone() for name, weight in own.items() if re.search(optional, name)
    } | weights
    tables: dict[int, list[str]] = {}
    for name, weight in own.items():
        tables.setdefault(weight.data_ptr(), []).append(name)
    for tied in tables.values():
        weights = share_table(weights, tied, directory)
    needed = {
        name: weight
        for name, weight in weights.items()
        if name in own or not name.endswith(UNNEEDED)
    }
    copy_weights(own, needed, str(directory))
    if broken := [name for name, weight in own.items() if not weight.isfinite().all()]:
        raise InputError(
            f"weights must be finite numbers of float32, but in {directory} "
            f"{', '.join(broken[:3])} are not; take "
            "another copy"
        )
    if any(half and half.positions.kind == "sinusoidal" for half in (model.encoder, model.decoder)):
        for name, table in weights.items():
            if name.endswith("embed_positions.weight") and name not in own:
                _check_sinusoids(directory, table, config.sinusoids)
        reorder_residual(model, residual_order(config.d_model, config.sinusoids))
    return model


def share_table(weights: dict[str, Tensor], names: list[str], directory: Path) -> dict[str, Tensor]:
    """The same weights, where a tied table has all of its names; a file may store it under one of
    them.

    Raises:
        InputError: tables under two of the names differ.
    """
    stored = [name for name in names if name in weights]
    for name in stored[1:]:
        if not torch.equal(weights[name].float(), weights[stored[0]].float()):
            raise InputError(
                f"tied tables must be equal, but in {directory} {name} differs from {stored[0]}; "
                f"say in {CONFIG} that "
                "they are not tied (tie_word_embeddings false)"
            )
    return weights | {name: weights[stored[0]] for name in names if stored}


def _check_sinusoids(directory: Path, table: Tensor, kind: Sinusoids) -> None:
    """Raise InputError if a table of positions is another than the one that is computed here."""
    n_positions, d_model = table.shape
    own = torch.empty(table.shape)
    own[:, residual_order(d_model, kind)] = sinusoidal(0, n_positions, d_model, kind=kind)
    if (distance := float((own - table).abs().max())) > 1e-2:
        raise InputError(
            f"positions must be sinusoids, but in {directory} embed_positions differs from them by "
            f"{distance:.4g}"
        )


def residual_order(d_model: int, sinusoids: Sinusoids = "paper") -> Int[Tensor, " D"]:
    """Our dimension i of the residual stream is their dimension order[i]: sine 0, cosine 0, sine 1,
    cosine 1, ...

    Of an odd width, the last is a sine of the paper, and 0 in tensor2tensor.
    """
    n_sines = (d_model + (sinusoids == "paper")) // 2
    ours = torch.arange(d_model)
    order = ours // 2 + n_sines * (ours % 2)
    if d_model % 2 and sinusoids == "tensor2tensor":
        order[-1] = d_model - 1
    return order


WRITES = re.compile(r"(norm|attention\.output|cross\.output|narrow)\.(weight|bias)$")
"""The parameters with a row for each dimension of the residual stream; most others have a column
for each."""


@torch.no_grad()
def reorder_residual(model: Transformer, order: Int[Tensor, " D"]) -> None:
    """Let dimension i of the residual stream be what dimension order[i] was, in every parameter."""
    last = f"convolutions.{len(getattr(model.source_input, 'convolutions', ())) - 1}."
    for name, parameter in model.named_parameters():
        writes = WRITES.search(name) or last in name
        if not writes and (name.endswith("bias") or "convolutions" in name):
            continue
        dimension = 0 if writes else 1
        for part in parameter.split(len(order), dimension):  # gated convolutions have two
            part.copy_(part.index_select(dimension, order))
