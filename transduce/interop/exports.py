"""Write models for other engines.

CTranslate2 runs translation and text generation in C++, for Argos Translate, too. Its attention and
feed-forward have the layout of ours, so no number changes. Positions are written as a table with
max_positions rows, since the sinusoids that it makes by itself are all sines, then all cosines.

Of ONNX, which many programs run, there are the encoder, and one step of the decoder with its cache.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.tokenizer_files import write_tokenizers
from transduce.errors import InputError, require
from transduce.files import write_file
from transduce.interop.encoder_decoder import sentencepiece_of
from transduce.interop.pretrained import CONFIG, check_exportable, write_settings
from transduce.interop.weights import CTRANSLATE2, named_weights
from transduce.model.cache import Cache, LayerCache
from transduce.model.config import Tokens, TransformerConfig
from transduce.model.layers import Layer
from transduce.model.transformer import Stack, Transformer

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
"""CTranslate2's names of our activations."""

LACKING = ("attention", "window", "n_experts", "conformer_kernel", "ctc")
"""The fields of TransformerConfig that CTranslate2 does not know."""


def export_ctranslate2(
    model: Transformer, directory: Path, *, source: Tokenizer | None, target: Tokenizer
) -> None:
    """Write what ctranslate2.Translator loads, or ctranslate2.Generator for a decoder alone.

    The tokenizers' own files are beside it, under the names that a run has for them.

    Args:
        source: of the encoder; the same as `target` where both sides share one.
        target: of the decoder.

    Raises:
        InputError: the library is not installed, or the model has a part that CTranslate2 lacks.
    """
    config = model.config
    check_ctranslate2(config)
    special = {"bos_token": target.bos_id, "eos_token": target.eos_id, "unk_token": target.unk_id}
    vocabulary = vocabulary_of(target, config.vocab_size)
    settings: dict[str, Any] = {
        name: "" if i is None else vocabulary[i] for name, i in special.items()
    }
    source_vocabulary = None
    if config.encoder is not None and source is not None:
        assert isinstance(config.encoder.input, Tokens)
        source_vocabulary = vocabulary_of(source, config.encoder.input.vocab_size)
        # the engine adds no tag of a language
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
    settings: dict[str, Any],
) -> None:
    """Write a model whose tokens have these names, by id.

    Args:
        source: the names of the encoder's tokens; None: those of the decoder.
        settings: of CTranslate2's config.json: which of the names are bos_token, eos_token and
            unk_token, "" where there is none, and, of a model with an encoder, decoder_start_token
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


def export_argos(
    model: Transformer,
    path: Path,
    *,
    source: Tokenizer | None,
    target: Tokenizer,
    languages: tuple[str, str],
) -> None:
    """Write the package that Argos Translate and LibreTranslate install: a zip with a model of
    CTranslate2, the SentencePiece model, and the languages' codes (ISO 639).

    They cut texts into sentences by a model that they fetch, and search by their own settings.

    Raises:
        InputError: as for `export_ctranslate2`, and for sides that share no SentencePiece model.
    """
    pieces = sentencepiece_of(target)
    if model.config.encoder is None or source is not target or not pieces or target.lacks_language:
        raise InputError(
            "a package of Argos Translate is a translator of one pair of languages whose sides "
            "share one SentencePiece model, which this run is not; export it --to ctranslate2"
        )
    of, to = languages
    metadata = {"package_version": "1.0", "argos_version": "1.9"}
    metadata |= {"from_code": of, "from_name": of, "to_code": to, "to_name": to}
    with TemporaryDirectory() as folder:
        package = Path(folder) / f"translate-{of}_{to}-1_0"
        export_ctranslate2(model, package / "model", source=source, target=target)
        (package / "sentencepiece.model").write_bytes(pieces)
        (package / "metadata.json").write_text(json.dumps(metadata, indent=1))
        archive = shutil.make_archive(str(package), "zip", folder, package.name)
        write_file(path, Path(archive).read_bytes())


def check_ctranslate2(config: TransformerConfig) -> None:
    """Raise InputError where a model has a part that CTranslate2 lacks; the message names it."""
    check_exportable(config, "CTranslate2", LACKING)
    if config.encoder is not None and config.qk_norm:
        raise InputError(
            "CTranslate2 does not normalize the keys of a memory, but qk_norm=True; it cannot be "
            "exported"
        )


def vocabulary_of(tokenizer: Tokenizer, size: int) -> list[str]:
    """The names of the ids below `size`, ids without a token have names of their own."""
    names = [*tokenizer.tokens(range(tokenizer.vocab_size)), *[""] * (size - tokenizer.vocab_size)]
    return [name or f"<unused {i}>" for i, name in enumerate(names)]


def _set_weight(layer: Any, kind: str, weight: Tensor) -> None:
    """Set the weight or the bias of a linear map, of a table or of a norm."""
    if hasattr(layer, "gamma"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    setattr(layer, kind, weight)
    if kind == "gamma" and hasattr(layer, "beta"):  # our norm of mean and variance may have no bias
        layer.beta = torch.zeros_like(weight)


def _stack_spec(stack: Stack | None, config: TransformerConfig) -> Any:
    """The specification of a half, with everything that is no parameter of ours."""
    from ctranslate2.specs.attention_spec import RotaryScalingType
    from ctranslate2.specs.common_spec import Activation
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    assert stack is not None
    config = config.for_stack(config.decoder if stack.causal else config.encoder)
    make: Any = TransformerEncoderSpec
    if stack.causal:
        crosses = config.encoder is not None
        make = partial(TransformerDecoderSpec, with_encoder_attention=crosses)
    is_plain = config.rotary_bands is None
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
        rotary_scaling_type=RotaryScalingType.Linear if is_plain else RotaryScalingType.Llama3,
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
            vars(
                layer.self_attention
            ).update(  # the engine reads them all, but the class has only names for two
                rotary_low_freq_factor=np.float32(low),
                rotary_high_freq_factor=np.float32(high),
                rotary_scaling_factor=np.float32(config.rotary_factor),
                original_max_position_embeddings=np.int32(n),
            )
    return spec


ENCODER, STEP = "encoder.onnx", "step.onnx"
OPSET = 18
AXES = {
    "source": {0: "sentences", 1: "source positions"},
    "lengths": {0: "sentences"},
    "memory_keys": {1: "sentences", 3: "positions"},
    "memory_values": {1: "sentences", 3: "positions"},
    "memory_lengths": {0: "sentences"},
    "tokens": {0: "rows"},
    "keys": {1: "rows", 3: "length"},
    "values": {1: "rows", 3: "length"},
    "logits": {0: "rows"},
    "new_keys": {1: "rows", 3: "length + 1"},
    "new_values": {1: "rows", 3: "length + 1"},
}
"""The axes of any size, of each input and output."""


MemoryKeys = Float[Tensor, "C B K M E"]
"""Keys or values of the memory: C layers, K heads, M positions."""


class GivenCache(LayerCache):
    """The cache of one layer as tensors that come in; what `append` gives goes out."""

    def __init__(self, past: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.buffers = list(past)
        self.memory = memory
        self.length = past[0].size(2)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All positions, in new tensors."""
        keys, values = self.buffers
        self.buffers = [torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)]
        return self.buffers[0], self.buffers[1]


def rms_norm(norm: nn.RMSNorm, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """RMSNorm as its formula, for ONNX has no operator for it in this version."""
    assert norm.eps is not None
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + norm.eps) * norm.weight


class Traced(nn.Module):
    """A function of a model and tensors as a module, for the exporter."""

    def __init__(self, model: Transformer, function: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What the function gives."""
        return self.function(self.model, *tensors)


def encode_memory(
    model: Transformer, source: Int[Tensor, "B S"], lengths: Int[Tensor, " B"]
) -> tuple[MemoryKeys, MemoryKeys, Int[Tensor, " B"]]:
    """The projected keys and values of every layer's cross-attention, and the lengths of the
    memory."""
    memory = model.encode(source, lengths)
    assert model.decoder is not None and memory.lengths is not None
    crosses = [layer.cross for layer in model.decoder.layers if isinstance(layer, Layer)]
    parts = [cross.project(memory.states) for cross in crosses if cross is not None]
    keys, values = (torch.stack(side) for side in zip(*parts, strict=True))
    return keys, values, memory.lengths


def decode_step(
    model: Transformer,
    tokens: Int[Tensor, " N"],
    keys: Float[Tensor, "C N K L E"],
    values: Float[Tensor, "C N K L E"],
    *memory: Tensor,
) -> tuple[Float[Tensor, "N V"], Float[Tensor, "C N K P E"], Float[Tensor, "C N K P E"]]:
    """The logits of one more token of every row, and keys and values with one position more.

    Args:
        memory: what `encode_memory` gives; nothing for a decoder alone.
    """
    cache = Cache(len(keys))
    for i in range(len(keys)):
        cross = (memory[0][i], memory[1][i]) if memory else None
        cache.layers[i] = GivenCache((keys[i], values[i]), cross)
    cache.memory_lengths = memory[2] if memory else None
    logits = model.decode(tokens[:, None], cache=cache)
    new_keys, new_values = (
        torch.stack([layer.buffers[side] for layer in cache.layers]) for side in (0, 1)
    )
    return logits[:, 0], new_keys, new_values


def export_onnx(
    model: Transformer,
    directory: Path,
    *,
    source: Tokenizer | None,
    target: Tokenizer,
    suppress: Collection[int] = (),
) -> None:
    """Write step.onnx, of a model with an encoder encoder.onnx, and config.json with what a search
    needs to know.

    Args:
        suppress: ids that the run never writes, beside those that have no text.

    Batches and lengths may have any size, up to the model's max_positions where positions come from
    a table.

    Raises:
        InputError: the library onnx is not installed, or the model has no decoder, or parts that
            are not written.
    """
    config = model.config
    check_exportable(config, "ONNX", ("attention", "window", "n_experts"))
    require("onnx", "this export", "onnx")
    model = deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.forward = partial(rms_norm, module)  # type: ignore[method-assign]
    directory.mkdir(parents=True, exist_ok=True)
    assert model.decoder is not None
    n_layers = len(model.decoder.layers)
    past = torch.zeros(n_layers, 2, config.kv_heads, 3, config.d_head)
    inputs = {"tokens": torch.zeros(2, dtype=torch.long), "keys": past, "values": past}
    if config.encoder is not None:
        sources = {"source": torch.zeros(2, 5, dtype=torch.long), "lengths": torch.tensor([5, 4])}
        names = ["memory_keys", "memory_values", "memory_lengths"]
        _write_onnx(Traced(model, encode_memory), directory / ENCODER, sources, names)
        with torch.no_grad():
            inputs |= dict(zip(names, encode_memory(model, *sources.values()), strict=True))
    _write_onnx(
        Traced(model, decode_step), directory / STEP, inputs, ["logits", "new_keys", "new_values"]
    )
    write_tokenizers(directory, source, target, alone=config.encoder is None)
    never = {*target.suppressed, *range(target.vocab_size, config.vocab_size), *suppress}
    write_settings(directory / CONFIG, _onnx_settings(config, target, never))


def _onnx_settings(config: TransformerConfig, target: Tokenizer, never: set[int]) -> dict[str, Any]:
    """What a search needs to know; `never` are ids that it does not write."""
    assert config.decoder is not None
    return {
        "n_layers": config.decoder.n_layers,
        "n_kv_heads": config.kv_heads,
        "d_head": config.d_head,
        "vocab_size": config.vocab_size,
        "bos_id": target.bos_id,
        "eos_id": target.eos_id,
        "suppressed": sorted(never),
    }


def _write_onnx(
    module: nn.Module, path: Path, inputs: dict[str, Tensor], outputs: list[str]
) -> None:
    """Trace a module with these inputs and write what it computes."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter(
            "ignore"
        )  # sizes are taken as constants where they choose a way to compute
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            str(path),
            input_names=[*inputs],
            output_names=outputs,
            dynamic_axes={name: AXES[name] for name in (*inputs, *outputs)},
            opset_version=OPSET,
            dynamo=False,
        )
