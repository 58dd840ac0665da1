"""Read and write GPT-2 models as transformers saves them. The numbers stay the same; names and layout change.

The layout differs in two ways. GPT-2's linear maps (class "Conv1D" in transformers) store their matrices transposed. And
its table of token vectors is also the output projection, which is tie="output" here.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce.config import from_dict, to_dict
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.files import write_file
from transduce.interop.generation import read_generation, read_sampling
from transduce.interop.pretrained import (
    TOKENIZER,
    Imported,
    check_same,
    fill,
    read_tensors,
    share_table,
    write_model,
    write_settings,
)
from transduce.interop.settings import ACTIVATIONS, CONFIG, check_types, only, read_settings, require_equal
from transduce.model.config import TransformerConfig
from transduce.model.fill import blank_transformer
from transduce.model.presets import gpt2
from transduce.model.size import check_fits
from transduce.model.transformer import Transformer

FIELDS = {
    "n_positions": "max_positions",
    "n_embd": "d_model",
    "n_head": "n_heads",
    "n_inner": "d_ff",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
    "layer_norm_epsilon": "norm_eps",
}
"""The fields of TransformerConfig that GPT-2's config.json holds under another name, by that name."""

FIXED: dict[str, Any] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
"""The settings of GPT-2's config.json that have only one value here."""

UNSTORED = ("init", "init_gain", "recompute", "tie", "decoder.input.multiple", "bias")
"""The fields of TransformerConfig that may have any value in an exported model.

config.json has no such field, or holds it in another form, and the exported model computes the same in either case. In
a model without biases, zeros take their places.
"""

LAYER_MODULES = {
    "attention_sublayer.norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feed_forward_sublayer.norm": "ln_2",
    "feed_forward.wide": "mlp.c_fc",
    "feed_forward.narrow": "mlp.c_proj",
}
"""GPT-2's names of the modules of a layer, by our names."""


class GPT2(NamedTuple):
    """A model in evaluation mode, and the id of the token that begins and ends texts (None: there is none)."""

    model: Transformer
    eos_id: int | None


def import_gpt2(directory: Path) -> GPT2:
    """Read config.json and the weights, in one file or in shards, of a GPT2LMHeadModel or GPT2Model.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            safetensors.
    Source: Radford et al. (2019); file format of transformers' save_pretrained.
    """
    theirs = read_settings(directory, "gpt2", fixed=FIXED)
    way_out = "; they matter in training alone, so make them equal in config.json"
    require_equal(theirs, "embd_pdrop", "resid_pdrop", directory, way_out)
    theirs["eos_token_id"] = only(theirs["eos_token_id"])
    check_types(theirs, {"eos_token_id": int | None}, directory)
    config = _our_config(theirs, str(directory / CONFIG))
    check_fits(config, torch.device("cpu"))
    model = blank_transformer(config)
    tensors = read_tensors(directory, "transformer.")
    weights = {name.removeprefix("transformer."): weight for name, weight in tensors.items()}
    if theirs["tie_word_embeddings"]:
        weights = share_table(weights, ("wte.weight", "lm_head.weight"), directory)
    # older files hold the causal mask of every layer
    fill(_their_weights(model), weights, directory, unneeded=("lm_head.weight", ".attn.bias", ".attn.masked_bias"))
    return GPT2(model.eval(), theirs["eos_token_id"])


def import_run(directory: Path) -> Imported:
    """Read a GPT-2 and its tokenizer: tokenizer.json, or vocab.json and merges.txt.

    Raises:
        InputError: as `import_gpt2`; or there is no tokenizer, or it ends texts with another id.
    """
    found, tokenizer = import_gpt2(directory), JSONTokenizer.load(directory)
    if tokenizer.eos_id != found.eos_id:
        raise InputError(
            f"the tokenizer's <|endoftext|> must be config.json's eos_token_id, but in {directory} "
            f"they are {tokenizer.eos_id} and {found.eos_id}"
        )
    said = read_generation(directory, read_settings(directory, "gpt2"))
    decoding = read_sampling(directory, said, found.model.config)
    return Imported(found.model, None, tokenizer, decoding)


def export_gpt2(model: Transformer, directory: Path, *, tokenizer: JSONTokenizer | None = None) -> None:
    """Write a directory that GPT2LMHeadModel.from_pretrained reads: config.json, model.safetensors, tokenizer.json.

    Raises:
        InputError: the model is not a GPT-2; the message lists the fields that differ from a GPT-2's.
    """
    config, end = model.config, tokenizer.eos_id if tokenizer else None
    theirs = _their_config(config, end)
    check_same(_our_config(theirs, "the exported config.json"), config, UNSTORED, "GPT-2")
    weights = {
        name if name == "lm_head.weight" else f"transformer.{name}": weight
        for name, weight in _their_weights(model).items()
    }
    write_model(directory, theirs, weights)
    if tokenizer is not None:
        write_file(directory / "tokenizer.json", tokenizer.model)
        their_tokenizer: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": config.max_positions}
        if end is not None:
            their_tokenizer |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), tokenizer.tokens([end])[0])
        write_settings(directory / TOKENIZER, their_tokenizer)


def _our_config(theirs: dict[str, Any], name: str) -> TransformerConfig:
    """Translate the settings of GPT-2's config.json; `name` says in errors where they were found."""
    ours, width = to_dict(gpt2()), theirs["n_embd"]
    ours["decoder"] = {"input": {"vocab_size": theirs["vocab_size"]}, "n_layers": theirs["n_layer"]}
    ours |= {our_name: theirs[their_name] for their_name, our_name in FIELDS.items()}
    ours["d_ff"] = theirs["n_inner"] or 4 * width
    ours["activation"] = ACTIVATIONS[theirs["activation_function"]]
    ours["tie"] = "output" if theirs["tie_word_embeddings"] else "none"
    return from_dict(TransformerConfig, ours, name)


def _their_config(config: TransformerConfig, end: int | None) -> dict[str, Any]:
    """Translate our fields into the settings of GPT-2's config.json, as far as it has them.

    Raises:
        InputError: the model is not a decoder alone, or GPT-2 does not have its activation.
    """
    if config.encoder is not None or config.decoder is None:
        raise InputError("a GPT-2 is a decoder alone, but this model has an encoder; it cannot be exported as one")
    activations = {ours: name for name, ours in reversed(ACTIVATIONS.items())}  # of two names, the first one counts
    if config.activation not in activations:
        raise InputError(
            f"a GPT-2's activation is one of {', '.join(activations)}, but this model's is {config.activation!r}"
        )
    return {
        **FIXED,
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_layer": config.decoder.n_layers,
        **{their_name: getattr(config, our_name) for their_name, our_name in FIELDS.items()},
        "activation_function": activations[config.activation],
        "embd_pdrop": config.dropout,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": config.tie != "none",
    }


def _their_weights(model: Transformer) -> dict[str, Tensor]:
    """A GPT-2's parameters under GPT-2's names, without "transformer.", and in GPT-2's layout.

    They share memory with the model's. Rows that only fill up the table of tokens are left out, and biases that the
    model does without are zeros.
    """
    own = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}
    size = model.vocab_size
    theirs = {"wte.weight": own["target_input.weight"][:size], "wpe.weight": own["decoder.positions.learned"]}
    if model.config.tie == "none":
        theirs["lm_head.weight"] = own["output"][:size]
    assert model.config.decoder is not None
    modules = {"decoder.norm": "ln_f"}
    for i in range(model.config.decoder.n_layers):
        modules |= {f"decoder.layers.{i}.{ours}": f"h.{i}.{name}" for ours, name in LAYER_MODULES.items()}
    for ours, name in modules.items():
        weight = own[f"{ours}.weight"]
        theirs[f"{name}.weight"] = weight.t()  # the vector of a norm stays as it is
        theirs[f"{name}.bias"] = own.get(f"{ours}.bias", weight.new_zeros(len(weight)))
    return theirs
