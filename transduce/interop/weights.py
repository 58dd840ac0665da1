"""Weights of models of other libraries: tables of names, a reader, and the order of the residual
stream.

Other libraries' sinusoidal positions are all sines, then all cosines, while in the paper and here
sines and cosines alternate. But the order of the d_model dimensions is only a convention: if all
weights that read from or write to the residual stream are reordered, outputs stay the same. So
weights are reordered on reading, and the model needs no change.
"""

import re
from copy import deepcopy
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.errors import InputError
from transduce.files import Weights, copy_weights, read_json, read_weights, regular
from transduce.interop.pretrained import CONFIG, WEIGHTS
from transduce.model.config import Sinusoids, TransformerConfig
from transduce.model.inputs import TokenInput, sinusoidal
from transduce.model.linear import split_rows
from transduce.model.meta import blank_transformer, check_fits
from transduce.model.transformer import Transformer

PICKLE = "pytorch_model.bin"

HEADS = ("lm_head.", "proj_out.", "final_logits_bias")
"""Prefixes of the names of weights that are not part of a base model."""

UNNEEDED = (
    "lm_head.weight",
    "proj_out.weight",
    "shared.weight",
    "embed_tokens.weight",
    "embed_positions.weight",
    "embed_positions.weights",
    "coder.version",
    "EncDecAttention.relative_attention_bias.weight",
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
)
"""Suffixes of the names of tensors that a file may have although our model computes them or stores
them once."""


Names = dict[str, str]
"""Maps our name of a parameter, a module, or one map of a fused module to its name in the other
library. {} is the number of a layer."""


def prefixed(names: Names, ours: str, theirs: str) -> Names:
    """Turn a name table of a part of a model, such as its decoder, into one of the model."""
    return {ours + name: theirs + other for name, other in names.items()}


GPT2: Names = {
    "target_input.weight": "transformer.wte.weight",
    "output": "lm_head.weight",
    "decoder.positions.learned": "transformer.wpe.weight",
    "decoder.norm": "transformer.ln_f",
    "decoder.layers.{}.attention_sublayer.norm": "transformer.h.{}.ln_1",
    "decoder.layers.{}.attention.qkv": "transformer.h.{}.attn.c_attn",
    "decoder.layers.{}.attention.output": "transformer.h.{}.attn.c_proj",
    "decoder.layers.{}.feed_forward_sublayer.norm": "transformer.h.{}.ln_2",
    "decoder.layers.{}.feed_forward.wide": "transformer.h.{}.mlp.c_fc",
    "decoder.layers.{}.feed_forward.narrow": "transformer.h.{}.mlp.c_proj",
}

LLAMA: Names = {
    "target_input.weight": "model.embed_tokens.weight",
    "output": "lm_head.weight",
    "decoder.norm": "model.norm",
    "decoder.layers.{}.attention_sublayer.norm": "model.layers.{}.input_layernorm",
    "decoder.layers.{}.attention.qkv.q": "model.layers.{}.self_attn.q_proj",
    "decoder.layers.{}.attention.qkv.k": "model.layers.{}.self_attn.k_proj",
    "decoder.layers.{}.attention.qkv.v": "model.layers.{}.self_attn.v_proj",
    "decoder.layers.{}.attention.norm.query": "model.layers.{}.self_attn.q_norm",
    "decoder.layers.{}.attention.norm.key": "model.layers.{}.self_attn.k_norm",
    "decoder.layers.{}.attention.output": "model.layers.{}.self_attn.o_proj",
    "decoder.layers.{}.feed_forward_sublayer.norm": "model.layers.{}.post_attention_layernorm",
    "decoder.layers.{}.feed_forward.wide.gate": "model.layers.{}.mlp.gate_proj",
    "decoder.layers.{}.feed_forward.wide.value": "model.layers.{}.mlp.up_proj",
    "decoder.layers.{}.feed_forward.narrow": "model.layers.{}.mlp.down_proj",
}

PHI3: Names = LLAMA | {
    "decoder.layers.{}.attention.qkv": "model.layers.{}.self_attn.qkv_proj",
    "decoder.layers.{}.feed_forward.wide": "model.layers.{}.mlp.gate_up_proj",
}

FAIRSEQ_STACK: Names = {
    "positions.learned": "embed_positions.weight",
    "embedding_norm": "layernorm_embedding",
    "norm": "layer_norm",
    "layers.{}.attention.qkv.q": "layers.{}.self_attn.q_proj",
    "layers.{}.attention.qkv.k": "layers.{}.self_attn.k_proj",
    "layers.{}.attention.qkv.v": "layers.{}.self_attn.v_proj",
    "layers.{}.attention.output": "layers.{}.self_attn.out_proj",
    "layers.{}.attention_sublayer.norm": "layers.{}.self_attn_layer_norm",
    "layers.{}.cross.q": "layers.{}.encoder_attn.q_proj",
    "layers.{}.cross.kv.k": "layers.{}.encoder_attn.k_proj",
    "layers.{}.cross.kv.v": "layers.{}.encoder_attn.v_proj",
    "layers.{}.cross.output": "layers.{}.encoder_attn.out_proj",
    "layers.{}.cross_sublayer.norm": "layers.{}.encoder_attn_layer_norm",
    "layers.{}.feed_forward.wide": "layers.{}.fc1",
    "layers.{}.feed_forward.narrow": "layers.{}.fc2",
    "layers.{}.feed_forward_sublayer.norm": "layers.{}.final_layer_norm",
}
"""The names in an encoder or a decoder of Marian and of models from fairseq."""


def _fairseq_decoder(prefix: str) -> Names:
    """The name table of a model whose decoder has this prefix."""
    tables = {"target_input.weight": f"{prefix}.embed_tokens.weight", "output": "lm_head.weight"}
    return tables | prefixed(FAIRSEQ_STACK, "decoder.", f"{prefix}.")


XGLM = _fairseq_decoder("model")
OPT = _fairseq_decoder("model.decoder") | {"decoder.norm": "model.decoder.final_layer_norm"}
ENCODER_DECODER: Names = {
    **_fairseq_decoder("model.decoder"),
    "source_input.weight": "model.encoder.embed_tokens.weight",
    **prefixed(FAIRSEQ_STACK, "encoder.", "model.encoder."),
    "output_bias": "final_logits_bias",
}
WHISPER = ENCODER_DECODER | {
    "source_input.convolutions.0": "model.encoder.conv1",
    "source_input.convolutions.1": "model.encoder.conv2",
    "output": "proj_out.weight",
}
SPEECH2TEXT = ENCODER_DECODER | {
    "source_input.convolutions.{}": "model.encoder.conv.conv_layers.{}"
}

CTRANSLATE2_STACK: Names = {
    "positions.learned": "position_encodings.encodings",
    "embedding_norm": "layernorm_embedding",
    "norm": "layer_norm",
    "layers.{}.attention_sublayer.norm": "layer_{}/self_attention/layer_norm",
    "layers.{}.attention.qkv": "layer_{}/self_attention/linear_0",
    "layers.{}.attention.norm.query": "layer_{}/self_attention/q_norm",
    "layers.{}.attention.norm.key": "layer_{}/self_attention/k_norm",
    "layers.{}.attention.output": "layer_{}/self_attention/linear_1",
    "layers.{}.cross_sublayer.norm": "layer_{}/attention/layer_norm",
    "layers.{}.cross.q": "layer_{}/attention/linear_0",
    "layers.{}.cross.kv": "layer_{}/attention/linear_1",
    "layers.{}.cross.output": "layer_{}/attention/linear_2",
    "layers.{}.feed_forward_sublayer.norm": "layer_{}/ffn/layer_norm",
    "layers.{}.feed_forward.wide.wide": "layer_{}/ffn/linear_0",
    "layers.{}.feed_forward.wide.gate": "layer_{}/ffn/linear_0",
    "layers.{}.feed_forward.wide.value": "layer_{}/ffn/linear_0_noact",
    "layers.{}.feed_forward.narrow": "layer_{}/ffn/linear_1",
}
CTRANSLATE2: Names = {
    "source_input.weight": "encoder/embeddings_0.weight",
    "target_input.weight": "decoder/embeddings.weight",
    "output": "decoder/projection.weight",
    "output_bias": "decoder/projection.bias",
    **prefixed(CTRANSLATE2_STACK, "encoder.", "encoder/"),
    **prefixed(CTRANSLATE2_STACK, "decoder.", "decoder/"),
}
"""CTranslate2's names of specifications (with slashes) and of their weights."""


def named_weights(model: Transformer, names: Names) -> Weights:
    """The parameters of a model under the names of a family; they share memory with the model's.

    Padding rows of token tables are left out. A tied table is listed under each of its names.
    GPT-2's linear maps are stored transposed.
    """
    theirs: Weights = {}
    n_rows = {"target_input.weight": model.vocab_size, "output": model.vocab_size}
    if isinstance(model.source_input, TokenInput):
        n_rows["source_input.weight"] = model.source_input.tokens.vocab_size
    for name, parameter in model.named_parameters(remove_duplicate=False):
        weight = parameter.detach()
        if name in names:
            theirs[names[name]] = weight[: n_rows.get(name)]
            continue
        path, _, kind = name.rpartition(".")
        numbers = re.findall(r"\d+", path)
        module = path if path in names else re.sub(r"\d+", "{}", path)
        parts = {module: weight}
        if module not in names:
            fused = split_rows(model.get_submodule(path), weight)
            parts = {f"{module}.{part}": rows for part, rows in fused.items()}
        for part, rows in parts.items():
            stored = rows.t() if names is GPT2 else rows  # t() does not change the vector of a norm
            theirs[f"{names[part].format(*numbers)}.{kind}"] = stored
    return theirs


def reordered_weights(model: Transformer, names: Names) -> Weights:
    """`named_weights` of a copy whose residual stream has all sines first, then all cosines."""
    model = deepcopy(model)
    order = residual_order(model.config.d_model, model.config.sinusoids)
    reorder_residual(model, order.argsort())
    return named_weights(model, names)


def read_tensors(directory: Path, prefix: str = "model.", *, without_position: int = 0) -> Weights:
    """Read the weights by name, from one file or from the shards that an index lists.

    Args:
        prefix: Prefix of all names but those of heads. Files of models without a head lack it.
        without_position: Number of first rows of a position table that are not positions.

    Raises:
        InputError: there is no weights file, or it is damaged.
    """
    for file, read in ((WEIGHTS, read_weights), (PICKLE, _read_pickle)):
        index = directory / f"{file}.index.json"
        is_whole = (directory / file).exists()
        if is_whole or index.exists():
            shards = [file] if is_whole else _shards(index)
            weights = {
                name: weight for shard in shards for name, weight in read(directory / shard).items()
            }
            break
    else:
        raise InputError(
            f"weights are read from {WEIGHTS} or {PICKLE}, but {directory} has neither; write them "
            "with transformers: AutoModel.from_pretrained(NAME).save_pretrained(DIRECTORY)"
        )
    if not any(name.startswith(prefix) for name in weights):
        weights = {
            name if name.startswith(HEADS) else prefix + name: weight
            for name, weight in weights.items()
        }
    return {
        name: weight[without_position:] if name.endswith("embed_positions.weight") else weight
        for name, weight in weights.items()
    }


def _shards(index: Path) -> list[str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or any(Path(str(n)).name != n for n in names.values()):
        raise InputError(
            f"{index} must have a weight_map from names to files beside it, but it does not"
        )
    return sorted({*names.values()})


def _read_pickle(path: Path) -> Weights:
    """Read tensors by name from a pickle, without running its code."""
    try:
        tensors = torch.load(regular(path), map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises nothing narrower
        refused = re.search(r"unsupported (global: )?GLOBAL \S+", str(error), re.IGNORECASE)
        reason = refused[0] if refused else type(error).__name__
        raise InputError(
            f"{path} must be a complete file with nothing but tensors, but torch.load with "
            f"weights_only=True refuses it: {reason}; take another copy, or {WEIGHTS}"
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str)
        and isinstance(w, Tensor)
        and (w.layout, w.device.type) == (torch.strided, "cpu")
        for name, w in tensors.items()
    ):
        raise InputError(
            f"{path} must hold dense tensors by name, but it holds something else; take {WEIGHTS}"
        )
    return tensors


def fill_transformer(
    config: TransformerConfig,
    names: Names,
    weights: Weights,
    directory: Path,
    *,
    optional: str = "$^",
) -> Transformer:
    """Make a model from the weights read from `directory`, in evaluation mode.

    Args:
        names: The name table of the model family.
        optional: Pattern of names that a file may lack: biases, which are then zeros, and norms,
            which are then ones.

    Raises:
        InputError: a name is missing or unknown, a shape differs, tied tables differ, a number is
            not finite, or positions are not the configured sinusoids.
    """
    check_fits(config, torch.device("cpu"))
    model = blank_transformer(config)
    ours = named_weights(model, names)
    weights = {
        name: weight.clone() for name, weight in ours.items() if re.search(optional, name)
    } | weights
    weights = _share_tables(weights, ours, directory)
    needed = {
        name: weight
        for name, weight in weights.items()
        if name in ours or not name.endswith(UNNEEDED)
    }
    copy_weights(ours, needed, str(directory))
    if broken := [name for name, weight in ours.items() if not weight.isfinite().all()]:
        raise InputError(
            f"weights must be finite numbers of float32, but in {directory} "
            f"{', '.join(broken[:3])} are not; take another copy"
        )
    if any(half and half.positions.kind == "sinusoidal" for half in (model.encoder, model.decoder)):
        for name, table in weights.items():
            if name.endswith("embed_positions.weight") and name not in ours:
                _check_sinusoids(directory, table, config.sinusoids)
        reorder_residual(model, residual_order(config.d_model, config.sinusoids))
    return model


def _share_tables(weights: Weights, ours: Weights, directory: Path) -> Weights:
    """The weights with each tied table under all of its names; a file may store it under one of
    them, or as the table that encoder and decoder share.

    Raises:
        InputError: tables under two of the names differ.
    """
    tables: dict[int, list[str]] = {}
    for name, weight in ours.items():
        tables.setdefault(weight.data_ptr(), []).append(name)
    shared = [name for name in weights if name.endswith("shared.weight")]
    for tied in tables.values():
        is_stored = len(tied) == 1 and tied[0] in weights
        is_embedding = any(name.endswith("embed_tokens.weight") for name in tied)
        names = [*shared, *tied] if is_embedding and not is_stored else tied
        stored = [name for name in names if name in weights]
        for name in stored[1:]:
            if not torch.equal(weights[name].float(), weights[stored[0]].float()):
                raise InputError(
                    f"tied tables must be equal, but in {directory} {name} differs from "
                    f"{stored[0]}; set tie_word_embeddings to false in {CONFIG}"
                )
        weights = weights | {name: weights[stored[0]] for name in tied if stored}
    return weights


def _check_sinusoids(directory: Path, table: Tensor, kind: Sinusoids) -> None:
    """Raise InputError if a position table differs from the one that is computed here."""
    n_positions, d_model = table.shape
    ours = torch.empty(table.shape)
    ours[:, residual_order(d_model, kind)] = sinusoidal(0, n_positions, d_model, kind=kind)
    if (distance := float((ours - table).abs().max())) > 1e-2:
        raise InputError(
            f"positions must be sinusoids, but in {directory} embed_positions differs from them by "
            f"{distance:.4g}"
        )


def residual_order(d_model: int, sinusoids: Sinusoids = "paper") -> Int[Tensor, " D"]:
    """Our dimension i of the residual stream is their dimension order[i]: sine 0, cosine 0, sine 1,
    cosine 1, ...

    If the width is odd, the last dimension is a sine in the paper, and 0 in tensor2tensor.
    """
    n_sines = (d_model + (sinusoids == "paper")) // 2
    ours = torch.arange(d_model)
    order = ours // 2 + n_sines * (ours % 2)
    if d_model % 2 and sinusoids == "tensor2tensor":
        order[-1] = d_model - 1
    return order


WRITES = re.compile(r"(norm|attention\.output|cross\.output|narrow)\.(weight|bias)$")
"""Parameters that write to the residual stream, with a row for each of its dimensions; most others
have a column for each."""


@torch.no_grad()
def reorder_residual(model: Transformer, order: Int[Tensor, " D"]) -> None:
    """Reorder all parameters so that dimension i of the residual stream is the former dimension
    order[i]."""
    last = f"convolutions.{len(getattr(model.source_input, 'convolutions', ())) - 1}."
    for name, parameter in model.named_parameters():
        writes = WRITES.search(name) or last in name
        if not writes and (name.endswith("bias") or "convolutions" in name):
            continue
        dimension = 0 if writes else 1
        for part in parameter.split(len(order), dimension):  # gated convolutions have two
            part.copy_(part.index_select(dimension, order))
