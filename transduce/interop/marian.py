"""Read and write Marian translation models (opus-mt) as transformers saves them."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.imported import ImportedTokenizer
from transduce.data.text.sentencepiece_bpe import SentencePieceTokenizer
from transduce.errors import InputError
from transduce.files import write_file
from transduce.interop.config_json import read_settings, their_settings
from transduce.interop.encoder_decoder import piece_tokenizer, read_model
from transduce.interop.generation import (
    GENERATION,
    generation_settings,
    read_decoding,
    read_generation,
    require_settings,
)
from transduce.interop.names import ENCODER_DECODER, named_weights
from transduce.interop.pretrained import (
    TOKENIZER,
    Imported,
    check_carried,
    read_optional,
    write_model,
    write_settings,
)
from transduce.interop.settings import MarianSettings
from transduce.interop.weights import reorder_residual, residual_order
from transduce.model.config import Tokens, TransformerConfig
from transduce.model.transformer import Transformer

CARRIED = {
    "encoder",
    "decoder",
    "d_model",
    "n_heads",
    "d_ff",
    "activation",
    "max_positions",
    "scale_embeddings",
    "tie",
    "output_bias",
}
"""The fields of TransformerConfig that a Marian model has; all others must have their defaults."""


class Marian(NamedTuple):
    """A model in evaluation mode, and the ids that its search needs."""

    model: Transformer
    bos_id: int
    """The first id of target_in; in Marian's models it is the padding id."""
    eos_id: int
    pad_id: int


def import_marian(directory: Path) -> Marian:
    """Read config.json and the weights, in one file or in shards, of a MarianMTModel.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer
            here lacks, or no weights.
    Source: Junczys-Dowmunt et al. (2018), Marian; file format of transformers' save_pretrained.
    """
    settings = read_settings(directory, ["marian"])
    assert isinstance(settings, MarianSettings) and settings.decoder_start_token_id is not None
    model = read_model(directory, settings)
    return Marian(
        model, settings.decoder_start_token_id, settings.eos_token_id[0], settings.pad_token_id
    )


def read_run(directory: Path, settings: MarianSettings) -> Imported:
    """Read a MarianMTModel with its MarianTokenizer: source.spm, target.spm, vocab.json and perhaps
    target_vocab.json.

    Raises:
        InputError: the model has parts that a Transformer here lacks, or a file is missing or does
            not fit it.
    """
    model = read_model(directory, settings)
    generation = read_generation(directory, settings)
    starts = (generation.pad_token_id, generation.end_id)
    require_settings(
        directory,
        generation,
        ("forced_bos_token_id", "null", generation.forced_bos_token_id is None),
        (
            "decoder_start_token_id",
            "pad_token_id or eos_token_id",
            generation.decoder_start_token_id in starts,
        ),
    )
    separate = read_optional(directory / TOKENIZER).get("separate_vocabs") is True

    source = piece_tokenizer(directory, generation, settings.vocab_size, "source.spm")
    table = "target_vocab.json" if separate else "vocab.json"
    target = piece_tokenizer(directory, generation, model.vocab_size, "target.spm", table)
    decoding = read_decoding(directory, generation, model.vocab_size)
    return Imported(model, target if source.model == target.model else source, target, decoding)


def export_marian(
    model: Transformer,
    directory: Path,
    *,
    source: Tokenizer | None,
    target: Tokenizer,
    decoding: dict[str, Any] | None = None,
) -> bool:
    """Write what MarianMTModel.from_pretrained reads, and, with SentencePiece,
    MarianTokenizer.from_pretrained.

    Args:
        source: of the encoder; the same as `target` where both sides share one.
        target: of the decoder.
        decoding: how the run searches, as fields of SearchConfig.

    Returns:
        Whether the tokenizers are there, too.

    Raises:
        InputError: the model is no Marian model; the message says why.
    """
    config = model.config
    theirs = _their_config(config, target)
    model = deepcopy(model)
    reorder_residual(model, residual_order(config.d_model).argsort())
    weights = named_weights(model, ENCODER_DECODER)
    weights.setdefault("final_logits_bias", torch.zeros(config.vocab_size))
    weights["final_logits_bias"] = weights["final_logits_bias"][None]
    if config.tie != "none":
        del weights["lm_head.weight"]
    if config.tie == "all":
        weights["model.shared.weight"] = weights.pop("model.decoder.embed_tokens.weight")
        del weights["model.encoder.embed_tokens.weight"]
    write_model(directory, theirs, weights)
    if source is None or sentencepiece_of(source) is None or sentencepiece_of(target) is None:
        return False
    _write_tokenizers(directory, source, target, config.max_positions)
    search = {
        "decoder_start_token_id": target.bos_id,
        "eos_token_id": target.eos_id,
        "pad_token_id": target.pad_id,
        "max_length": config.max_positions,
    }
    write_settings(
        directory / GENERATION, search | generation_settings(decoding or {}, target.suppressed)
    )
    return True


def _their_config(config: TransformerConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Translate our fields into the settings of config.json, as far as it has them.

    Raises:
        InputError: the model has not both halves over tokens, or parts that Marian lacks.
    """
    encoder, decoder = config.encoder, config.decoder
    if encoder is None or decoder is None or not isinstance(encoder.input, Tokens):
        raise InputError(
            "a Marian model turns tokens into tokens, but this model does not; it cannot be "
            "exported as one"
        )
    check_carried(config, CARRIED, "Marian")
    start, end = tokenizer.required("bos_id", "eos_id")
    return their_settings(config, "marian", "MarianMTModel") | {
        "vocab_size": encoder.input.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "encoder_layers": encoder.n_layers,
        "share_encoder_decoder_embeddings": config.tie == "all",
        "decoder_start_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end if tokenizer.pad_id is None else tokenizer.pad_id,
        "forced_eos_token_id": None,
    }


def _write_tokenizers(
    directory: Path, source: Tokenizer, target: Tokenizer, max_positions: int
) -> None:
    """Write SentencePiece models, tables of their ids and tokenizer_config.json."""
    tables = {"vocab.json": source.tokens(range(source.vocab_size))}
    target_table = target.tokens(range(target.vocab_size))
    separate = target_table != tables["vocab.json"]
    if separate:
        tables["target_vocab.json"] = target_table
    for name, table in tables.items():
        pieces = {piece: i for i, piece in enumerate(table) if piece}
        write_file(directory / name, json.dumps(pieces, ensure_ascii=False, indent=0) + "\n")
    for name, tokenizer in {"source.spm": source, "target.spm": target}.items():
        write_file(directory / name, sentencepiece_of(tokenizer) or b"")
    pad, unk, eos = target.tokens(target.required("pad_id", "unk_id", "eos_id"))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "model_max_length": max_positions,
        "pad_token": pad,
        "unk_token": unk,
        "eos_token": eos,
    }
    write_settings(directory / TOKENIZER, settings)


def sentencepiece_of(tokenizer: Tokenizer) -> bytes | None:
    """The SentencePiece model of a tokenizer; None: it is of another kind."""
    if isinstance(tokenizer, ImportedTokenizer):
        return tokenizer.sentencepiece()
    return tokenizer.model if isinstance(tokenizer, SentencePieceTokenizer) else None
