"""Read OPT and XGLM, language models from fairseq, as transformers saves them: their layers are those of its BART."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.config import from_dict
from transduce.files import copy_weights
from transduce.interop.llama import with_tokenizer
from transduce.interop.names import OPT, XGLM
from transduce.interop.pretrained import Imported
from transduce.interop.settings import CONFIG, our_fields, read_settings
from transduce.interop.weights import fill_transformer, read_tensors, share_table
from transduce.model.config import TransformerConfig

TABLES = ["model.decoder.embed_tokens.weight", "lm_head.weight"]
POSITIONS = "model.decoder.embed_positions.weight"


def import_run(directory: Path) -> Imported:
    """Read a model and its tokenizer: tokenizer.json, or vocab.json and merges.txt.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            weights; or there is no tokenizer, or nothing in it ends texts as config.json says.
    Source: Zhang et al. (2022), OPT; Lin et al. (2022), XGLM; file format of transformers' save_pretrained.
    """
    theirs = read_settings(directory, "opt", "xglm")
    config = _our_config(theirs, directory)
    weights = read_tensors(directory)
    if theirs["model_type"] == "xglm":
        return with_tokenizer(fill_transformer(config, XGLM, weights, directory), directory, theirs)
    if theirs["word_embed_proj_dim"] not in (None, config.d_model):
        weights = _unproject(weights, theirs, directory)
    if POSITIONS in weights:
        weights[POSITIONS] = weights[POSITIONS][2:]  # the first two rows stand for no position
    optional = ["$^"]
    optional += [] if theirs["layer_norm_elementwise_affine"] else ["layer_norm"]
    optional += [] if theirs["enable_bias"] else [r"(proj|fc\d)\.bias"]
    model = fill_transformer(config, OPT, weights, directory, optional="|".join(optional))
    return with_tokenizer(model, directory, theirs)


def _our_config(theirs: dict[str, Any], directory: Path) -> TransformerConfig:
    """Translate the settings of config.json."""
    ours = our_fields(theirs)
    if theirs["model_type"] == "xglm":
        ours |= {"positions": "sinusoidal", "sinusoids": "tensor2tensor", "first_position": 2, "norm_position": "pre"}
    else:
        ours |= {"positions": "learned", "scale_embeddings": False}
        ours["norm_position"] = "pre" if theirs["do_layer_norm_before"] else "post"
        if theirs["word_embed_proj_dim"] not in (None, theirs["hidden_size"]):
            ours["tie"] = "none"
    return from_dict(TransformerConfig, ours, str(directory / CONFIG))


def _unproject(weights: dict[str, Tensor], theirs: dict[str, Any], directory: Path) -> dict[str, Tensor]:
    """Multiply a narrow table by the maps between it and the layers, which gives one for the input, one for the output."""
    if theirs["tie_word_embeddings"]:
        weights = share_table(weights, TABLES, directory)
    size = theirs["vocab_size"]
    width = theirs["hidden_size"]
    narrow = theirs["word_embed_proj_dim"]
    parts = {
        **{name: torch.empty(size, narrow) for name in TABLES},
        "model.decoder.project_in.weight": torch.empty(width, narrow),
        "model.decoder.project_out.weight": torch.empty(narrow, width),
    }
    copy_weights(parts, {name: weights[name] for name in parts if name in weights}, str(directory))
    table, head, project_in, project_out = parts.values()
    rest = {name: weight for name, weight in weights.items() if name not in parts}
    return rest | dict(zip(TABLES, (table @ project_in.T, head @ project_out), strict=True))
