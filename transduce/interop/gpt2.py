"""Read and write GPT-2 models as transformers saves them. The numbers stay the same; names and layout change.

Its linear maps (class "Conv1D" in transformers) store their matrices transposed. And its table of token vectors is also
the output projection, which is tie="output" here.
"""

from pathlib import Path

from torch import zeros

from transduce.config import shown
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.interop.config_json import known_fields, our_config, our_fields, their_settings
from transduce.interop.generation import Generation, read_generation, read_sampling
from transduce.interop.names import GPT2, named_weights
from transduce.interop.pretrained import (
    Imported,
    check_decoder_alone,
    check_same,
    write_json_tokenizer,
    write_model,
)
from transduce.interop.settings import GPT2Settings
from transduce.interop.weights import fill_transformer, read_tensors
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer


def read_model(directory: Path, settings: GPT2Settings) -> Transformer:
    """Read the weights, in one file or in shards, of a GPT2LMHeadModel or GPT2Model.

    Raises:
        InputError: the model has parts that a Transformer here lacks, or there are no weights.
    Source: Radford et al. (2019); file format of transformers' save_pretrained.
    """
    return fill_transformer(_our_config(settings, directory), GPT2, read_tensors(directory, "transformer."), directory)


def read_run(directory: Path, settings: GPT2Settings) -> Imported:
    """Read a GPT-2 and its tokenizer: tokenizer.json, or vocab.json and merges.txt.

    Raises:
        InputError: as `read_model`; or there is no tokenizer, or it ends texts with another id.
    """
    model = read_model(directory, settings)
    tokenizer = JSONTokenizer.load(directory)
    if {*settings.eos_token_id} != {tokenizer.eos_id} - {None}:
        raise InputError(
            f"the tokenizer's <|endoftext|> must be config.json's eos_token_id, but in {directory} "
            f"they are {tokenizer.eos_id} and {shown(settings.eos_token_id)}"
        )
    decoding = read_sampling(directory, read_generation(directory, settings, Generation), model.config)
    return Imported(model, None, tokenizer, decoding)


def export_gpt2(model: Transformer, directory: Path, *, tokenizer: JSONTokenizer | None = None) -> None:
    """Write a directory that GPT2LMHeadModel.from_pretrained reads: config.json, model.safetensors, tokenizer.json.

    In a model without biases, zeros take their places.

    Raises:
        InputError: the model is not a GPT-2; the message lists the fields that differ from a GPT-2's.
    """
    config = model.config
    check_decoder_alone(config, "GPT-2")
    end = tokenizer.eos_id if tokenizer else None
    theirs = their_settings(config, "gpt2", "GPT2LMHeadModel")
    theirs |= {"embd_pdrop": config.dropout, "bos_token_id": end, "eos_token_id": end}
    check_same(_our_config(known_fields(GPT2Settings, theirs, directory), directory), config, {"bias"}, "GPT-2")
    weights = named_weights(model, GPT2)
    if config.tie != "none":
        del weights["lm_head.weight"]
    for name in GPT2.values():
        if not name.endswith(".weight"):
            for i in range(theirs["n_layer"]):
                module = name.format(i)
                weights.setdefault(f"{module}.bias", zeros(weights[f"{module}.weight"].size(-1)))
    write_model(directory, theirs, weights)
    if tokenizer is not None:
        special = {"bos_token": end, "eos_token": end, "unk_token": end}
        write_json_tokenizer(directory, tokenizer, "GPT2Tokenizer", config.max_positions, special)


def _our_config(settings: GPT2Settings, directory: Path) -> TransformerConfig:
    """Translate the settings of config.json."""
    return our_config(our_fields(settings) | {"d_ff": settings.n_inner or 4 * settings.n_embd}, directory)
