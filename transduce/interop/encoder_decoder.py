"""Read encoder-decoder models of the family of Marian, M2M-100, BART and Whisper, whose weights have the same names.

Sinusoidal positions are all sines, then all cosines there, while in the paper and here sines and cosines alternate. But
the order of the d_model dimensions is only a convention: when everything that reads from the residual stream or writes
to it is reordered, the outputs stay the same. So the import reorders the weights, and the model needs no change.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.config import from_dict
from transduce.errors import InputError
from transduce.interop.pretrained import fill, read_tensors, share_table
from transduce.interop.settings import ACTIVATIONS, CONFIG, read_settings, require_equal
from transduce.model.config import Sinusoids, TransformerConfig
from transduce.model.fill import blank_transformer
from transduce.model.positions import sinusoidal
from transduce.model.size import check_fits
from transduce.model.transformer import Transformer

READERS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "cross.q": ("encoder_attn.q_proj",),
    "cross.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "feed_forward.wide": ("fc1",),
}
"""The linear maps of a layer that read from the residual stream, by our names. Some of ours are several of theirs in
one matrix, stacked in this order."""

WRITERS = {
    "attention.output": ("self_attn.out_proj",),
    "attention_sublayer.norm": ("self_attn_layer_norm",),
    "cross.output": ("encoder_attn.out_proj",),
    "cross_sublayer.norm": ("encoder_attn_layer_norm",),
    "feed_forward.narrow": ("fc2",),
    "feed_forward_sublayer.norm": ("final_layer_norm",),
}
"""The modules of a layer whose outputs lie in the residual stream, by our names."""

NORMS = {"norm": "layer_norm", "embedding_norm": "layernorm_embedding"}
"""The norms of a stack, by our names."""

TABLE = (
    "model.shared.weight",
    "model.decoder.embed_tokens.weight",
    "model.encoder.embed_tokens.weight",
    *("lm_head.weight", "proj_out.weight"),
)
"""The names under which files store one table that encoder, decoder and output share."""

UNNEEDED = (*TABLE, "embed_positions.weight", "embed_positions.weights", "encoder.version", "decoder.version")
"""Endings of the names of tensors that a file may hold although a model here does not need them: tables of sinusoids,
further copies of a table that is tied, and the version of fairseq."""


class EncoderDecoder(NamedTuple):
    """A model in evaluation mode, and what config.json says."""

    model: Transformer
    theirs: dict[str, Any]


def read_model(directory: Path, *, model_type: str, fields: dict[str, Any], offset: int = 2) -> EncoderDecoder:
    """Read config.json and the weights, in one file or in shards.

    Args:
        fields: fields of TransformerConfig that all models of this type have.
        offset: rows of a learned table of positions that stand for none.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            safetensors.
    """
    theirs = read_settings(directory, model_type)
    check_halves(theirs, directory)
    weights = read_tensors(directory, "model.")
    bias = weights.pop("final_logits_bias", None)
    has_bias = bias is not None and bool(bias.any())
    if bias is not None and has_bias:
        weights["final_logits_bias"] = bias.flatten()
    if fields.get("sinusoids") == "tensor2tensor":
        fields = {**fields, "first_position": theirs["pad_token_id"] + 1}
    config = _config(theirs, str(directory / CONFIG), {"output_bias": has_bias, **fields})
    check_fits(config, torch.device("cpu"))
    tied = {"all": TABLE, "output": TABLE[1::2], "none": ()}[config.tie]
    weights = share_table(weights, tied, directory)
    for name in TABLE[1:3] if TABLE[0] in weights else ():
        weights.setdefault(name, weights[TABLE[0]])
    for name in [each for each in weights if each.endswith("embed_positions.weight") and config.positions == "learned"]:
        weights[name] = weights[name][offset:]
    model = blank_transformer(config)
    fill_model(model, their_weights(model), weights, directory)
    return EncoderDecoder(model.eval(), theirs)


def check_halves(theirs: dict[str, Any], directory: Path) -> None:
    """Raise InputError unless encoder and decoder have the same heads and widths, for which there is one field here."""
    for name in ("attention_heads", "ffn_dim"):
        require_equal(theirs, f"encoder_{name}", f"decoder_{name}", directory)


def fill_model(
    model: Transformer, own: dict[str, tuple[Tensor, int | None]], weights: dict[str, Tensor], directory: Path
) -> None:
    """Copy the weights read from `directory` into a model.

    Args:
        own: as `their_weights` gives them.

    Raises:
        InputError: a name is missing or unknown, or a shape differs.
    """
    fill({name: weight for name, (weight, _) in own.items()}, weights, directory, unneeded=UNNEEDED)
    halves = {"encoder": model.encoder, "decoder": model.decoder}
    computed = [name for name, half in halves.items() if half is not None and half.positions.kind == "sinusoidal"]
    for half in computed:
        _check_sinusoids(directory, weights.get(f"model.{half}.embed_positions.weight"), model.config.sinusoids)
    if computed:
        order = residual_order(model.config.d_model, model.config.sinusoids)
        for weight, dimension in own.values():
            if dimension is not None:
                for part in weight.split(len(order), dimension):  # gated convolutions have two
                    part.copy_(part.index_select(dimension, order))


def _check_sinusoids(directory: Path, table: Tensor | None, kind: Sinusoids) -> None:
    """Raise InputError if a table of positions is another than the one that is computed here."""
    if table is None or table.dim() != 2:
        return
    d_model = table.size(1)
    own = torch.empty(table.shape)
    own[:, residual_order(d_model, kind)] = sinusoidal(0, len(table), d_model, kind=kind)
    if (far := float((own - table).abs().max())) > 1e-2:
        raise InputError(
            f"positions must be sinusoids, but in {directory} embed_positions differs from them by {far:.4g}"
        )


def residual_order(d_model: int, sinusoids: str = "paper") -> Int[Tensor, " D"]:
    """Our dimension i of the residual stream is their dimension order[i]: sine 0, cosine 0, sine 1, cosine 1, ...

    Of an odd width, the last is a sine of the paper, and 0 in tensor2tensor.
    """
    sines = (d_model + (sinusoids == "paper")) // 2
    found = [i // 2 + sines * (i % 2) for i in range(2 * (d_model // 2))]
    return torch.tensor([*found, *[d_model // 2 if sinusoids == "paper" else d_model - 1] * (d_model % 2)])


def _config(theirs: dict[str, Any], name: str, fields: dict[str, Any]) -> TransformerConfig:
    """Translate the settings of config.json; `name` says in errors where they were found."""
    shared, tied = theirs.get("share_encoder_decoder_embeddings", True), theirs["tie_word_embeddings"]
    source = theirs["vocab_size"]
    target = source if shared else theirs["decoder_vocab_size"] or source
    ours = {
        "encoder": {"input": {"vocab_size": source}, "n_layers": theirs["encoder_layers"]},
        "decoder": {"input": {"vocab_size": target}, "n_layers": theirs["decoder_layers"]},
        "d_model": theirs["d_model"],
        "n_heads": theirs["encoder_attention_heads"],
        "d_ff": theirs["encoder_ffn_dim"],
        "dropout": theirs["dropout"],
        "attention_dropout": theirs["attention_dropout"],
        "activation": ACTIVATIONS[theirs["activation_function"]],
        "max_positions": theirs["max_position_embeddings"],
        "scale_embeddings": theirs["scale_embedding"],
        "tie": "none" if not tied else "all" if shared else "output",
    }
    return from_dict(TransformerConfig, ours | fields, name)


def their_weights(model: Transformer) -> dict[str, tuple[Tensor, int | None]]:
    """The model's parameters under their names, and which dimension of each, if any, is the residual stream's.

    They share memory with the model's, and a table that is tied stands once.
    """
    own = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}
    theirs: dict[str, tuple[Tensor, int | None]] = {}
    theirs["model.decoder.embed_tokens.weight"] = own["target_input.weight"], 1
    if model.config.tie != "all" and "source_input.weight" in own:
        theirs["model.encoder.embed_tokens.weight"] = own["source_input.weight"], 1
    if model.config.tie == "none":
        theirs["lm_head.weight"] = own["output"], 1
    if model.config.output_bias:
        theirs["final_logits_bias"] = own["output_bias"], None
    for name, parameter in own.items():
        if found := re.fullmatch(r"(.+\.layers\.\d+\.)(.+)\.(weight|bias)", name):
            prefix, module, kind = found.groups()
            dimension = 0 if module in WRITERS else 1 if kind == "weight" else None
            names = (READERS | WRITERS)[module]
            for their_name, part in zip(names, parameter.chunk(len(names)), strict=True):
                theirs[f"model.{prefix}{their_name}.{kind}"] = part, dimension
        elif found := re.fullmatch(r"(\w+)\.(norm|embedding_norm)\.(weight|bias)", name):
            half, module, kind = found.groups()
            theirs[f"model.{half}.{NORMS[module]}.{kind}"] = parameter, 0
        elif name.endswith(".positions.learned"):
            theirs[f"model.{name.split('.')[0]}.embed_positions.weight"] = parameter, 1
    return theirs
