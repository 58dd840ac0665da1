"""Read OPT and XGLM, language models from fairseq, as transformers saves them: their layers are those of its BART."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.config import from_dict
from transduce.files import copy_weights
from transduce.interop.encoder_decoder import TABLE, fill_model, their_weights
from transduce.interop.llama import with_tokenizer
from transduce.interop.pretrained import Imported, read_tensors, share_table
from transduce.interop.settings import ACTIVATIONS, CONFIG, DEFAULTS, read_settings
from transduce.model.config import TransformerConfig
from transduce.model.fill import blank_transformer
from transduce.model.size import check_fits

FIELDS = {
    "hidden_size": "d_model",
    "d_model": "d_model",
    "num_attention_heads": "n_heads",
    "attention_heads": "n_heads",
    "ffn_dim": "d_ff",
    "max_position_embeddings": "max_positions",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "scale_embedding": "scale_embeddings",
}
"""The fields of TransformerConfig that config.json holds under another name, by that name."""


def import_run(directory: Path) -> Imported:
    """Read a model and its tokenizer: tokenizer.json, or vocab.json and merges.txt.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            weights; or there is no tokenizer, or nothing in it ends texts as config.json says.
    Source: Zhang et al. (2022), OPT; Lin et al. (2022), XGLM; file format of transformers' save_pretrained.
    """
    kind = read_settings(directory, "opt", "xglm")["model_type"]
    fixed: dict[str, Any] = {"_remove_final_layer_norm": False}
    if kind == "xglm":
        fixed = {"pad_token_id": [0, 1]}  # any other would make a position zero
    theirs = read_settings(directory, kind, fixed=fixed)
    weights = read_tensors(directory, "model.")
    if kind == "xglm":
        weights = {name.replace("model.", "model.decoder.", 1): weight for name, weight in weights.items()}
    for part in ("weight", "bias"):
        if (norm := weights.pop(f"model.decoder.final_layer_norm.{part}", None)) is not None:
            weights[f"model.decoder.layer_norm.{part}"] = norm
    if theirs["tie_word_embeddings"]:
        weights = share_table(weights, TABLE[1::2], directory)
    config = _config(theirs, directory)
    if theirs.get("word_embed_proj_dim") not in (None, config.d_model):
        _unproject(weights, theirs, config, directory)
    if config.positions == "learned" and (name := "model.decoder.embed_positions.weight") in weights:
        weights[name] = weights[name][2:]  # the first two stand for none
    check_fits(config, torch.device("cpu"))
    model = blank_transformer(config)
    own = their_weights(model)
    for name, (weight, _) in own.items():
        if "layer_norm" in name and not theirs.get("layer_norm_elementwise_affine", True):
            weights.setdefault(name, weight)  # 1 and 0, as it begins
        elif name.endswith("bias") and not theirs.get("enable_bias", True):
            weights.setdefault(name, torch.zeros_like(weight))
    fill_model(model, own, weights, directory)
    return with_tokenizer(model.eval(), directory, theirs)


def _config(theirs: dict[str, Any], directory: Path) -> TransformerConfig:
    """Translate the settings of config.json."""
    xglm = theirs["model_type"] == "xglm"
    n_layers = theirs["num_layers" if xglm else "num_hidden_layers"]
    ours = {our_name: theirs[name] for name, our_name in FIELDS.items() if name in DEFAULTS[theirs["model_type"]]}
    ours["decoder"] = {"input": {"vocab_size": theirs["vocab_size"]}, "n_layers": n_layers}
    ours["activation"] = ACTIVATIONS[theirs["activation_function"]]
    ours["norm_position"] = "pre" if theirs.get("do_layer_norm_before", True) else "post"
    if xglm:
        ours |= {"positions": "sinusoidal", "sinusoids": "tensor2tensor", "first_position": 2}
    else:
        ours |= {"positions": "learned", "scale_embeddings": False}
    projected = theirs.get("word_embed_proj_dim") not in (None, ours["d_model"])
    ours["tie"] = "output" if theirs["tie_word_embeddings"] and not projected else "none"
    return from_dict(TransformerConfig, ours, str(directory / CONFIG))


def _unproject(weights: dict[str, Tensor], theirs: dict[str, Any], config: TransformerConfig, directory: Path) -> None:
    """Multiply a narrow table by the maps between it and the layers, which gives one for the input, one for the output."""
    size, width, narrow = config.vocab_size, config.d_model, theirs["word_embed_proj_dim"]
    shapes = {TABLE[1]: (size, narrow), TABLE[3]: (size, narrow)}
    maps = {"in": (width, narrow), "out": (narrow, width)}
    shapes |= {f"model.decoder.project_{way}.weight": shape for way, shape in maps.items()}
    table, head, project_in, project_out = parts = [torch.empty(shape) for shape in shapes.values()]
    stored = {name: weights.pop(name) for name in shapes if name in weights}
    copy_weights(dict(zip(shapes, parts, strict=True)), stored, str(directory))
    weights[TABLE[1]], weights[TABLE[3]] = table @ project_in.T, head @ project_out
