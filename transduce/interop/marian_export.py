"""Write translation models as transformers saves Marian models, with their tokenizer."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.imported import ImportedTokenizer
from transduce.data.text.sentencepiece_bpe import SentencePieceTokenizer
from transduce.errors import InputError
from transduce.files import write_file
from transduce.interop.config_json import their_settings
from transduce.interop.generation import GENERATION, generation_settings
from transduce.interop.names import ENCODER_DECODER, named_weights
from transduce.interop.pretrained import TOKENIZER, check_carried, write_model, write_settings
from transduce.interop.weights import reorder_residual, residual_order
from transduce.model.config import Tokens, TransformerConfig
from transduce.model.transformer import Transformer

CARRIED = {
    *("encoder", "decoder", "d_model", "n_heads", "d_ff", "activation", "max_positions", "scale_embeddings", "tie"),
    "output_bias",
}
"""The fields of TransformerConfig that a Marian model has; all others must have their defaults."""


def export_marian(
    model: Transformer,
    directory: Path,
    *,
    source: Tokenizer | None,
    target: Tokenizer,
    decoding: dict[str, Any] | None = None,
) -> bool:
    """Write a directory that MarianMTModel.from_pretrained reads, and, with SentencePiece, MarianTokenizer.from_pretrained.

    Args:
        source: of the encoder; the same as `target` where both sides share one.
        target: of the decoder.
        decoding: how the run searches, as fields of SearchConfig.

    Returns:
        Whether the tokenizers are there, too.

    Raises:
        InputError: the model is no Marian model; the message says why.
    """
    theirs = _their_config(model.config, target)
    model = deepcopy(model)
    reorder_residual(model, residual_order(model.config.d_model).argsort())
    weights = named_weights(model, ENCODER_DECODER)
    if model.config.tie == "all":
        weights["model.shared.weight"] = weights.pop("model.decoder.embed_tokens.weight")
        del weights["model.encoder.embed_tokens.weight"]
    if model.config.tie != "none":
        del weights["lm_head.weight"]
    bias = weights.get("final_logits_bias", torch.zeros(theirs["decoder_vocab_size"]))
    weights["final_logits_bias"] = bias[None]
    write_model(directory, theirs, weights)
    if source is None or sentencepiece_of(source) is None or sentencepiece_of(target) is None:
        return False
    _write_tokenizers(directory, source, target, model.config.max_positions)
    ids = {"decoder_start_token_id": target.bos_id, "eos_token_id": target.eos_id, "pad_token_id": target.pad_id}
    ids["max_length"] = model.config.max_positions
    write_settings(directory / GENERATION, ids | generation_settings(decoding or {}, target.suppressed))
    return True


def _their_config(config: TransformerConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Translate our fields into the settings of config.json, as far as it has them.

    Raises:
        InputError: the model has not both halves over tokens, or parts that Marian lacks.
    """
    encoder, decoder = config.encoder, config.decoder
    if encoder is None or decoder is None or not isinstance(encoder.input, Tokens):
        raise InputError(
            "a Marian model turns tokens into tokens, but this model does not; it cannot be exported as one"
        )
    check_carried(config, CARRIED, "Marian")
    theirs = their_settings(config, "marian", "MarianMTModel") | {
        "vocab_size": encoder.input.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "encoder_layers": encoder.n_layers,
        "share_encoder_decoder_embeddings": config.tie == "all",
    }
    start, end = tokenizer.required("bos_id", "eos_id")
    pad = end if tokenizer.pad_id is None else tokenizer.pad_id
    ids = {"decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": pad, "forced_eos_token_id": None}
    return theirs | ids


def sentencepiece_of(tokenizer: Tokenizer) -> bytes | None:
    """The SentencePiece model of a tokenizer of ours, or of one that came with a Marian; None: it is another kind."""
    if isinstance(tokenizer, ImportedTokenizer):
        return tokenizer.sentencepiece()
    return tokenizer.model if isinstance(tokenizer, SentencePieceTokenizer) else None


def _write_tokenizers(directory: Path, source: Tokenizer, target: Tokenizer, max_positions: int) -> None:
    """SentencePiece models and tables of their ids."""
    tables = [tokenizer.tokens(range(tokenizer.vocab_size)) for tokenizer in (source, target)]
    separate = tables[0] != tables[1]
    for side, tokenizer, table in zip(("source", "target"), (source, target), tables, strict=True):
        write_file(directory / f"{side}.spm", sentencepiece_of(tokenizer) or b"")
        pieces = {piece: i for i, piece in enumerate(table) if piece}
        if side == "source" or separate:
            name = "vocab.json" if side == "source" else "target_vocab.json"
            write_file(directory / name, json.dumps(pieces, ensure_ascii=False, indent=0) + "\n")
    told = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, "model_max_length": max_positions}
    pad, unk, eos = target.tokens(target.required("pad_id", "unk_id", "eos_id"))
    told |= {"pad_token": pad, "unk_token": unk, "eos_token": eos}
    write_settings(directory / TOKENIZER, told)
