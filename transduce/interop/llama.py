"""Read and write Llama, Qwen2 and Qwen3 models as transformers saves them; SmolLM2 is a Llama. No number changes."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor

from transduce.config import from_dict
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.files import write_file
from transduce.interop.generation import read_generation, read_sampling
from transduce.interop.pretrained import (
    CONFIG,
    TOKENIZER,
    TRAINING,
    Imported,
    check_same,
    fill,
    read_optional,
    read_settings,
    read_tensors,
    require_equal,
    write_model,
    write_settings,
)
from transduce.model.attention import SelfAttention
from transduce.model.config import TransformerConfig
from transduce.model.layers import FeedForward, Layer
from transduce.model.size import check_fits
from transduce.model.transformer import Transformer, transformer_to_fill

FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_positions",
    "rms_norm_eps": "norm_eps",
    "attention_dropout": "attention_dropout",
}
"""The fields of TransformerConfig that their config.json holds under another name, by that name."""

BLOCKS: dict[str, Any] = {
    "norm": "rms",
    "norm_position": "pre",
    "gated": True,
    "activation": "silu",
    "positions": "rotary",
    "scale_embeddings": False,
    "dropout": 0.0,
}
"""What every one of these models is, in fields of TransformerConfig."""

UNSTORED = TRAINING | {"tie", "scale_embeddings", "decoder.input.multiple", "qkv_bias", "head_width", "n_kv_heads"}
"""The fields of TransformerConfig that may have any value in an exported model, which computes the same in either case."""

COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "head_dim": None,
    "attention_dropout": 0.0,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rope_parameters": None,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "layer_types": None,
    "max_window_layers": 28,
    "eos_token_id": None,
}
"""The values of settings that a file may leave out, whatever its model_type."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"rms_norm_eps": 1e-6, "num_key_value_heads": None, "attention_bias": False, "mlp_bias": False},
    "qwen2": {"rms_norm_eps": 1e-6, "num_key_value_heads": 32},
    "qwen3": {"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "attention_bias": False, "head_dim": 128},
}
"""By model_type, those of settings that differ between them, or that only one has."""

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def import_llama(directory: Path) -> Transformer:
    """Read config.json and model.safetensors, in one file or in shards, as a model in evaluation mode.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            safetensors.
    Source: Touvron et al. (2023), LLaMA; Yang et al. (2024), Qwen2; Yang et al. (2025), Qwen3; file format of
    transformers' save_pretrained.
    """
    kind = read_settings(directory, fixed={}, defaults={})["model_type"]
    theirs = read_settings(directory, fixed={"hidden_act": "silu"}, defaults=COMMON | DEFAULTS[kind])
    config = _our_config(theirs, directory)
    check_fits(config, torch.device("cpu"))
    model = transformer_to_fill(config)
    weights = read_tensors(directory, ARCHITECTURES[kind])
    # a tied table may be stored twice, and older files hold the frequencies of rotation
    fill(_their_weights(model), weights, directory, unneeded=("lm_head.weight", ".rotary_emb.inv_freq"))
    return model.eval()


def import_run(directory: Path) -> Imported:
    """Read a model and its tokenizer.json.

    Raises:
        InputError: as `import_llama`; or there is no tokenizer, or nothing in it ends texts as config.json says.
    """
    theirs = read_settings(directory, fixed={}, defaults={"eos_token_id": None})
    model, said = import_llama(directory), read_generation(directory, theirs)
    decoding = read_sampling(directory, said, model.config)
    return Imported(model, None, _tokenizer(directory, said["eos_token_id"]), decoding)


def export_llama(model: Transformer, directory: Path, *, tokenizer: JSONTokenizer | None = None) -> None:
    """Write what from_pretrained of LlamaForCausalLM reads, or of Qwen2ForCausalLM or Qwen3ForCausalLM, if it has their parts.

    Raises:
        InputError: the model is none of them; the message lists the fields that differ.
    """
    config = model.config
    if config.encoder is not None or config.decoder is None:
        raise InputError("a Llama is a decoder alone, but this model has an encoder; it cannot be exported as one")
    theirs = _their_config(config, tokenizer)
    kind = theirs["model_type"]
    check_same(_our_config(DEFAULTS[kind] | COMMON | theirs, directory), config, UNSTORED, kind.capitalize())
    write_model(directory, theirs, _their_weights(model, export=True))
    if tokenizer is not None:
        write_file(directory / "tokenizer.json", tokenizer.model)
        told = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.max_positions}
        special = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
        told |= {name: tokenizer.tokens([i])[0] for name, i in special.items() if i is not None}
        write_settings(directory / TOKENIZER, told)


def _our_config(theirs: dict[str, Any], directory: Path) -> TransformerConfig:
    """Translate the settings of config.json."""
    kind, width = theirs["model_type"], theirs["head_dim"]
    if kind == "llama":
        way_out = "; a Transformer here has biases in all linear maps or in those to queries, keys and values"
        require_equal(theirs, "attention_bias", "mlp_bias", directory, way_out)
    elif theirs.get("attention_bias"):
        raise InputError(f"attention_bias must be False, but in {directory} it is True")
    ours = (
        {our_name: theirs[their_name] for their_name, our_name in FIELDS.items()}
        | BLOCKS
        | _rotation(theirs, directory)
    )
    ours["decoder"] = {"input": {"vocab_size": theirs["vocab_size"]}, "n_layers": theirs["num_hidden_layers"]}
    ours["n_kv_heads"], ours["head_width"] = theirs["num_key_value_heads"], width
    ours["bias"], ours["qkv_bias"] = bool(theirs.get("mlp_bias")), True if kind == "qwen2" else None
    ours["qk_norm"] = kind == "qwen3"
    ours["window"] = _window(theirs, directory)
    ours["tie"] = "output" if theirs["tie_word_embeddings"] else "none"
    return from_dict(TransformerConfig, ours, str(directory / CONFIG))


def _rotation(theirs: dict[str, Any], directory: Path) -> dict[str, Any]:
    """How positions rotate; older files have rope_theta beside rope_scaling, newer ones rope_parameters."""
    told = theirs["rope_parameters"] or theirs["rope_scaling"] or {}
    found = {"rotary_theta": told.get("rope_theta", theirs["rope_theta"])}
    kind = told.get("rope_type", told.get("type", "default"))
    if kind not in ("default", "linear", "llama3") or told.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(
            f"rope_type must be 'default' or 'linear' or 'llama3', of whole heads, but in {directory} it is {told}"
        )
    if kind != "default":
        found["rotary_factor"] = told["factor"]
    if kind == "llama3":
        names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        found["rotary_bands"] = [told[name] for name in names]
    return found


def _window(theirs: dict[str, Any], directory: Path) -> int | None:
    """How far every layer sees.

    Raises:
        InputError: some layers see further than others.
    """
    size, n_layers = theirs["sliding_window"] if theirs["use_sliding_window"] else None, theirs["num_hidden_layers"]
    first = theirs["max_window_layers"]
    kinds = theirs["layer_types"] or [
        "sliding_attention" if size and i >= first else "full_attention" for i in range(n_layers)
    ]
    if len(set(kinds)) > 1 or kinds[0] not in ("full_attention", "sliding_attention"):
        raise InputError(f"all layers must see equally far, but in {directory} layer_types are {', '.join(kinds)}")
    return size if kinds[0] == "sliding_attention" else None


def _their_config(config: TransformerConfig, tokenizer: JSONTokenizer | None) -> dict[str, Any]:
    """Translate our fields into the settings of config.json, as far as it has them."""
    assert config.decoder is not None
    kind = "qwen3" if config.qk_norm else "qwen2" if config.attention_bias and not config.bias else "llama"
    theirs = {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.decoder.n_layers,
        **{their_name: getattr(config, our_name) for their_name, our_name in FIELDS.items()},
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "hidden_act": "silu",
        "rope_theta": config.rotary_theta,
        "rope_scaling": None,
        "tie_word_embeddings": config.tie != "none" and not config.scale_embeddings,
        "bos_token_id": tokenizer.bos_id if tokenizer else None,
        "eos_token_id": tokenizer.eos_id if tokenizer else None,
        "pad_token_id": tokenizer.pad_id if tokenizer else None,
    }
    if kind == "llama":
        theirs |= {"attention_bias": config.bias, "mlp_bias": config.bias}
    if config.window is not None and kind != "llama":
        theirs |= {"use_sliding_window": True, "sliding_window": config.window, "max_window_layers": 0}
    if config.rotary_bands is not None:
        low, high, n = config.rotary_bands
        bands = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": n}
        theirs["rope_scaling"] = {"rope_type": "llama3", "factor": config.rotary_factor, **bands}
    elif config.rotary_factor != 1:
        theirs["rope_scaling"] = {"rope_type": "linear", "factor": config.rotary_factor}
    return theirs


def _their_weights(model: Transformer, *, export: bool = False) -> dict[str, Tensor]:
    """The parameters under their names, without rows that only fill up the table of tokens.

    Args:
        export: whether embeddings that the model multiplies by sqrt(d_model) are so multiplied, and stand beside the output
            table; else all share memory with the model's.
    """
    own = {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}
    table, size = own["target_input.weight"][: model.vocab_size], model.vocab_size
    scaled = export and model.config.scale_embeddings
    theirs = {"model.embed_tokens.weight": table * model.config.d_model**0.5 if scaled else table}
    if model.config.tie == "none" or scaled:
        theirs["lm_head.weight"] = own["output"][:size].clone() if scaled else own["output"][:size]
    assert model.decoder is not None
    theirs["model.norm.weight"] = own["decoder.norm.weight"]
    for i, layer in enumerate(model.decoder.layers):
        assert isinstance(layer, Layer) and isinstance(layer.feed_forward, FeedForward)
        theirs |= {f"model.layers.{i}.{name}": weight.detach() for name, weight in _their_layer(layer).items()}
    return theirs


def _their_layer(layer: Layer) -> dict[str, Tensor]:
    attention, feed_forward = layer.attention, layer.feed_forward
    assert isinstance(attention, SelfAttention) and isinstance(feed_forward, FeedForward)
    norms = {
        "input_layernorm": layer.attention_sublayer.norm,
        "post_attention_layernorm": layer.feed_forward_sublayer.norm,
    }
    theirs: dict[str, Tensor] = {f"{name}.weight": norm.get_parameter("weight") for name, norm in norms.items()}
    if attention.norm is not None:
        theirs["self_attn.q_norm.weight"] = attention.norm.query.weight
        theirs["self_attn.k_norm.weight"] = attention.norm.key.weight
    fused = {
        ("q_proj", "k_proj", "v_proj"): ("self_attn", attention.qkv, attention.widths),
        ("o_proj",): ("self_attn", attention.output, [len(attention.output.weight)]),
        ("gate_proj", "up_proj"): ("mlp", feed_forward.wide, [len(feed_forward.wide.weight) // 2] * 2),
        ("down_proj",): ("mlp", feed_forward.narrow, [len(feed_forward.narrow.weight)]),
    }
    for names, (part, linear, widths) in fused.items():
        for kind in ("weight", "bias"):
            if (values := getattr(linear, kind)) is not None:
                for name, value in zip(names, values.split(widths), strict=True):
                    theirs[f"{part}.{name}.{kind}"] = value
    return theirs


def _tokenizer(directory: Path, ends: int | list[int] | None) -> JSONTokenizer:
    """The tokenizer.json, in which nothing but what begins and ends this model's texts is special by its name.

    A vocabulary of a family names more tokens so than one model uses: those of chats, say, which no text shows.

    Args:
        ends: what ends texts; of several, the one that tokenizer_config.json names, else the first.

    Raises:
        InputError: `ends` is not known by its name as an end, or what begins texts is not known.
    """
    tokenizer = JSONTokenizer.load(directory)
    library, plain = LibraryTokenizer.from_str(tokenizer.model.decode()), json.loads(tokenizer.model)
    begins, end = library.encode("").ids, ends
    if isinstance(ends, list):
        told = read_optional(directory / TOKENIZER).get("eos_token")
        named = library.token_to_id(str(told["content"] if isinstance(told, dict) else told))
        end = named if named in ends else next(iter(ends), None)
    if tokenizer.eos_id != end:
        kept = (*begins, end, tokenizer.pad_id)
        hidden = [token for token in plain["added_tokens"] if token["special"] and token["id"] not in kept]
        for token in hidden:
            token["special"] = False
        if hidden and plain["decoder"]:
            names = {"Regex": "|".join(re.escape(token["content"]) for token in hidden)}
            steps = [{"type": "Replace", "pattern": names, "content": ""}, plain["decoder"]]
            plain["decoder"] = {"type": "Sequence", "decoders": steps}
        tokenizer = JSONTokenizer(json.dumps(plain, ensure_ascii=False).encode())
    found = tokenizer.bos_id, tokenizer.eos_id
    if found[1] != end or found[0] not in (begins or (None, end)):
        raise InputError(
            f"the tokenizer of {directory} must name what begins and ends texts as others do, but its ids are {found}, "
            f"where texts begin with {begins} and end with {ends}; rename these tokens in tokenizer.json"
        )
    return tokenizer
