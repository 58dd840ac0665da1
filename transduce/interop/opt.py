"""Read OPT and XGLM, language models from fairseq, as transformers saves them: their layers are those of its BART."""

from pathlib import Path

import torch
from torch import Tensor

from transduce.files import copy_weights
from transduce.interop.config_json import our_config, our_fields, require_value
from transduce.interop.llama import with_tokenizer
from transduce.interop.names import OPT, XGLM
from transduce.interop.pretrained import Imported
from transduce.interop.settings import OPTSettings, XGLMSettings
from transduce.interop.weights import fill_transformer, read_tensors, share_table
from transduce.model.transformer import Transformer

TABLES = ["model.decoder.embed_tokens.weight", "lm_head.weight"]
POSITIONS = "model.decoder.embed_positions.weight"


def read_run(directory: Path, settings: OPTSettings | XGLMSettings) -> Imported:
    """Read a model and its tokenizer: tokenizer.json, or vocab.json and merges.txt.

    Raises:
        InputError: as `read_model`; or there is no tokenizer, or nothing in it ends texts as config.json says.
    """
    return with_tokenizer(read_model(directory, settings), directory, settings)


def read_model(directory: Path, settings: OPTSettings | XGLMSettings) -> Transformer:
    """Read the weights, in one file or in shards, as a model in evaluation mode.

    Raises:
        InputError: the model has parts that a Transformer here lacks, or there are no weights.
    Source: Zhang et al. (2022), OPT; Lin et al. (2022), XGLM; file format of transformers' save_pretrained.
    """
    ours = our_fields(settings)
    if isinstance(settings, XGLMSettings):
        require_value(settings, "pad_token_id", [0, 1], directory)  # any other would make a position zero
        return fill_transformer(our_config(ours, directory), XGLM, read_tensors(directory), directory)
    ours["norm_position"] = "pre" if settings.do_layer_norm_before else "post"
    narrow = settings.word_embed_proj_dim not in (None, settings.hidden_size)
    if narrow:
        ours["tie"] = "none"
    config = our_config(ours, directory)
    weights = read_tensors(directory)
    if narrow:
        weights = _unproject(weights, settings, directory)
    if POSITIONS in weights:
        weights[POSITIONS] = weights[POSITIONS][2:]  # the first two rows stand for no position
    optional = ["$^"]
    optional += [] if settings.layer_norm_elementwise_affine else ["layer_norm"]
    optional += [] if settings.enable_bias else [r"(proj|fc\d)\.bias"]
    return fill_transformer(config, OPT, weights, directory, optional="|".join(optional))


def _unproject(weights: dict[str, Tensor], settings: OPTSettings, directory: Path) -> dict[str, Tensor]:
    """Multiply a narrow table by the maps between it and the layers, which gives one for the input, one for the output."""
    if settings.tie_word_embeddings:
        weights = share_table(weights, TABLES, directory)
    size = settings.vocab_size
    width = settings.hidden_size
    narrow = settings.word_embed_proj_dim or 0
    parts = {
        **{name: torch.empty(size, narrow) for name in TABLES},
        "model.decoder.project_in.weight": torch.empty(width, narrow),
        "model.decoder.project_out.weight": torch.empty(narrow, width),
    }
    copy_weights(parts, {name: weights[name] for name in parts if name in weights}, str(directory))
    table, head, project_in, project_out = parts.values()
    rest = {name: weight for name, weight in weights.items() if name not in parts}
    return rest | dict(zip(TABLES, (table @ project_in.T, head @ project_out), strict=True))
