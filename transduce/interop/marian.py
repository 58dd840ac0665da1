"""Read Marian translation models as transformers saves them. The numbers stay the same; names and order change.

Marian's position vectors are all sines, then all cosines, while in the paper and here sines and cosines alternate. But
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
from transduce.interop.pretrained import ACTIVATIONS, CONFIG, fill, read_settings, read_tensors, require_equal
from transduce.model.config import TransformerConfig
from transduce.model.size import check_fits
from transduce.model.transformer import Transformer

READERS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "cross.q": ("encoder_attn.q_proj",),
    "cross.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "feed_forward.wide": ("fc1",),
}
"""The linear maps of a layer that read from the residual stream, by our names. Some of ours are several of Marian's in
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

UNNEEDED = ("embed_positions.weight", "embed_tokens.weight", "lm_head.weight", "final_logits_bias")
"""Endings of the names of tensors that a file may hold although a model here does not need them.

They are the tables of sinusoids, further copies of a table that is tied, and a bias of the logits, which must be zero.
"""


class Marian(NamedTuple):
    """A model in evaluation mode, and the ids that its search needs."""

    model: Transformer
    bos_id: int
    """The first id of target_in; in Marian's models it is the padding id."""
    eos_id: int
    pad_id: int


def import_marian(directory: Path) -> Marian:
    """Read config.json and model.safetensors, in one file or in shards, of a MarianMTModel.

    Raises:
        ValueError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            safetensors.
    Source: Junczys-Dowmunt et al. (2018), Marian; file format of transformers' save_pretrained.
    """
    defaults = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}
    theirs = read_settings(directory, fixed={"model_type": "marian"}, defaults=defaults)
    for one, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        require_equal(theirs, one, other, directory)
    weights = read_tensors(directory, "MarianMTModel")
    bias = weights.get("final_logits_bias")
    if bias is not None and bias.any():
        raise ValueError(
            f"final_logits_bias must be zero, for output logits have no bias here, "
            f"but in {directory} its largest absolute value is {bias.abs().max().item():.4g}"
        )
    if (shared := weights.pop("model.shared.weight", None)) is not None:
        weights = {f"model.{half}.embed_tokens.weight": shared for half in ("encoder", "decoder")} | weights
    config = _config(theirs, str(directory / CONFIG))
    check_fits(config, torch.device("cpu"))
    model = Transformer(config)
    own = their_weights(model)
    fill({name: weight for name, (weight, _) in own.items()}, weights, directory, unneeded=UNNEEDED)
    order = residual_order(model.config.d_model)
    for weight, dimension in own.values():
        if dimension is not None:
            weight.copy_(weight.index_select(dimension, order))
    return Marian(model.eval(), theirs["decoder_start_token_id"], theirs["eos_token_id"], theirs["pad_token_id"])


def residual_order(d_model: int) -> Int[Tensor, " D"]:
    """Our dimension i of the residual stream is Marian's dimension order[i]: sine 0, cosine 0, sine 1, cosine 1, ..."""
    return torch.arange(d_model).view(2, -1).T.flatten()


def _config(theirs: dict[str, Any], name: str) -> TransformerConfig:
    """Translate the settings of Marian's config.json; `name` says in errors where they were found."""
    shared, tied = theirs["share_encoder_decoder_embeddings"], theirs["tie_word_embeddings"]
    source, target = theirs["vocab_size"], theirs["vocab_size" if shared else "decoder_vocab_size"]
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
    return from_dict(TransformerConfig, ours, name)


def their_weights(model: Transformer) -> dict[str, tuple[Tensor, int | None]]:
    """The model's parameters under Marian's names, and which dimension of each, if any, is the residual stream's.

    They share memory with the model's, and a table that is tied stands once.
    """
    own = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}
    theirs: dict[str, tuple[Tensor, int | None]] = {}
    theirs["model.decoder.embed_tokens.weight"] = own["target_input.weight"], 1
    if model.config.tie != "all":
        theirs["model.encoder.embed_tokens.weight"] = own["source_input.weight"], 1
    if model.config.tie == "none":
        theirs["lm_head.weight"] = own["output"], 1
    for name, parameter in own.items():
        if found := re.fullmatch(r"(.+\.layers\.\d+\.)(.+)\.(weight|bias)", name):
            prefix, module, kind = found.groups()
            dimension = 0 if module in WRITERS else 1 if kind == "weight" else None
            names = (READERS | WRITERS)[module]
            for their_name, part in zip(names, parameter.chunk(len(names)), strict=True):
                theirs[f"model.{prefix}{their_name}.{kind}"] = part, dimension
    return theirs
