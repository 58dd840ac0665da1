"""Export to CTranslate2, which runs translation and text generation in C++, and to Argos Translate,
which uses it.

Its attention and feed-forward have the same layout as ours, so weights do not change. Positions are
written as a table with max_positions rows, because its own sinusoids are all sines, then all
cosines.
"""

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduce.config import Json
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.tokenizer_files import write_tokenizers
from transduce.errors import InputError, require
from transduce.files import write_file
from transduce.interop.encoder_decoder import sentencepiece_of
from transduce.interop.pretrained import Parts, check_exportable
from transduce.interop.weights import CTRANSLATE2, named_weights
from transduce.model.config import Tokens, TransformerConfig
from transduce.model.transformer import Stack, Transformer

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
"""CTranslate2's names of our activations."""

LACKING = ("attention", "window", "n_experts", "conformer_kernel", "ctc")
"""The fields of TransformerConfig that CTranslate2 does not support."""


def export_ctranslate2(parts: Parts, directory: Path) -> None:
    """Write a directory for ctranslate2.Translator, or, if it is decoder-only,
    ctranslate2.Generator.

    It includes the tokenizers' own files, under their names in a run.

    Raises:
        InputError: the library is not installed, or the model has a part that CTranslate2 lacks.
    """
    model, source, target, *_ = parts
    config = model.config
    special = {"bos_token": target.bos_id, "eos_token": target.eos_id, "unk_token": target.unk_id}
    vocabulary = vocabulary_of(target, config.vocab_size)
    settings: Json = {name: "" if i is None else vocabulary[i] for name, i in special.items()}
    source_vocabulary = None
    if config.encoder is not None and source is not None:
        assert isinstance(config.encoder.input, Tokens)
        source_vocabulary = vocabulary_of(source, config.encoder.input.vocab_size)
        # the engine does not add a language tag
        ends = not source.lacks_language and source.with_eos([[]]) == [[source.eos_id]]
        settings |= {"decoder_start_token": settings["bos_token"], "add_source_eos": ends}
    write_ctranslate2(model, directory, vocabulary, source=source_vocabulary, settings=settings)
    write_tokenizers(directory, source, target, alone=config.encoder is None)


def write_ctranslate2(
    model: Transformer,
    directory: Path,
    target: Sequence[str],
    *,
    source: Sequence[str] | None = None,
    settings: Json,
) -> None:
    """Write a model whose tokens have these names, by id.

    Args:
        source: the names of the encoder's tokens; None: those of the decoder.
        settings: entries of CTranslate2's config.json: the names of bos_token, eos_token and
            unk_token, "" if there is none, and, for a model with an encoder, decoder_start_token
            and add_source_eos.

    Raises:
        InputError: as for `export_ctranslate2`.
    """
    check_ctranslate2(model.config)
    require("ctranslate2", "this export", "ctranslate2")
    from ctranslate2.specs.model_spec import index_spec
    from ctranslate2.specs.transformer_spec import TransformerDecoderModelSpec, TransformerSpec

    config = model.config
    decoder = _stack_spec(model.decoder, config)
    if model.encoder is None:
        spec = TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(list(target))
    else:
        spec = TransformerSpec(_stack_spec(model.encoder, config), decoder)
        spec.register_source_vocabulary(list(target if source is None else source))
        spec.register_target_vocabulary(list(target))
    for name, weight in named_weights(model, CTRANSLATE2).items():
        scope, _, kind = name.rpartition(".")
        _set_weight(index_spec(spec, scope), kind, weight.clone())
    for name, value in (settings | {"layer_norm_epsilon": config.norm_eps}).items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(quantization="float32")
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def export_argos(parts: Parts, path: Path, languages: tuple[str, str]) -> None:
    """Write the package that Argos Translate and LibreTranslate install: a zip with a model of
    CTranslate2, the SentencePiece model, and the languages' codes (ISO 639).

    They split texts into sentences by a model that they download, and use their own search
    settings.

    Raises:
        InputError: as for `export_ctranslate2`, or the two sides do not share a SentencePiece
            model, or the run translates several pairs of languages.
    """
    model, source, target, *_ = parts
    pieces = sentencepiece_of(target)
    many = target.lacks_language or len(target.tagged_languages) > 1
    if model.config.encoder is None or source is not target or not pieces or many:
        raise InputError(
            "a package of Argos Translate must translate one pair of languages whose sides share "
            "a SentencePiece model, but this run does not; export it --to ctranslate2"
        )
    of, to = languages
    metadata = {"package_version": "1.0", "argos_version": "1.9"}
    metadata |= {"from_code": of, "from_name": of, "to_code": to, "to_name": to}
    with TemporaryDirectory() as folder:
        package = Path(folder) / f"translate-{of}_{to}-1_0"
        export_ctranslate2(parts, package / "model")
        (package / "sentencepiece.model").write_bytes(pieces)
        (package / "metadata.json").write_text(json.dumps(metadata, indent=1))
        archive = shutil.make_archive(str(package), "zip", folder, package.name)
        write_file(path, Path(archive).read_bytes())


def check_ctranslate2(config: TransformerConfig) -> None:
    """Raise InputError if a model has a part that CTranslate2 lacks; the message names it."""
    check_exportable(config, "CTranslate2", LACKING)
    if config.encoder is not None and config.qk_norm:
        raise InputError(
            "CTranslate2 does not normalize the keys of a memory, but qk_norm=True; it cannot be "
            "exported"
        )


def vocabulary_of(tokenizer: Tokenizer, size: int) -> list[str]:
    """The names of the ids below `size`; ids without a token get unique names."""
    names = [*tokenizer.all_tokens, *[""] * (size - tokenizer.vocab_size)]
    return [name or f"<unused {i}>" for i, name in enumerate(names)]


def _set_weight(layer: Any, kind: str, weight: Tensor) -> None:
    """Set the weight or the bias of a linear map, a table or a norm."""
    if hasattr(layer, "gamma"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    setattr(layer, kind, weight)
    if kind == "gamma" and hasattr(layer, "beta"):  # our LayerNorm may have no bias
        layer.beta = torch.zeros_like(weight)


def _stack_spec(stack: Stack | None, config: TransformerConfig) -> Any:
    """The specification of an encoder or a decoder, with all settings that are not parameters."""
    from ctranslate2.specs.attention_spec import RotaryScalingType
    from ctranslate2.specs.common_spec import Activation
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    assert stack is not None
    config = config.for_stack(config.decoder if stack.causal else config.encoder)
    make: Any = TransformerEncoderSpec
    if stack.causal:
        crosses = config.encoder is not None
        make = partial(TransformerDecoderSpec, with_encoder_attention=crosses)
    spec = make(
        len(stack.layers),
        config.n_heads,
        pre_norm=config.norm_position == "pre",
        activation=Activation[ACTIVATIONS[config.activation]],
        ffn_glu=config.gated,
        rms_norm=config.norm == "rms",
        layernorm_embedding=config.embedding_norm,
        qk_norm=config.qk_norm,
        num_heads_kv=None if config.kv_heads == config.n_heads else config.kv_heads,
        head_dim=config.head_width,
        rotary_dim=0 if config.positions == "rotary" else None,
        rotary_interleave=False,
        rotary_base=config.rotary_theta,
        rotary_scaling_type=RotaryScalingType.Linear,
        rotary_scaling_factor=config.rotary_factor,
    )
    spec.scale_embeddings = config.scale_embeddings
    if config.positions == "none":
        spec.position_encodings.encodings = torch.zeros(config.max_positions, config.d_model)
    elif config.positions == "sinusoidal":
        spec.position_encodings.encodings = stack.positions.table
    if config.rotary_bands is not None:
        low, high, n = config.rotary_bands
        for layer in spec.layer:
            # the engine reads all of these, but the class has attributes for some only
            vars(layer.self_attention).update(
                rotary_scaling_type=np.int8(RotaryScalingType.Llama3),
                rotary_low_freq_factor=np.float32(low),
                rotary_high_freq_factor=np.float32(high),
                original_max_position_embeddings=np.int32(n),
            )
    return spec
