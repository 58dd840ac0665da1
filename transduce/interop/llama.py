"""Read and write models of Llama's kind as transformers saves them; SmolLM2 is a Llama. No number changes."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor, nn

from transduce.config import from_dict
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.imported import ImportedTokenizer
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.files import write_file
from transduce.interop.generation import read_generation, read_sampling
from transduce.interop.pretrained import (
    TOKENIZER,
    TRAINING,
    Imported,
    check_same,
    fill,
    read_optional,
    read_tensors,
    share_table,
    write_model,
    write_settings,
)
from transduce.interop.settings import ACTIVATIONS, CONFIG, DEFAULTS, read_settings, require_equal
from transduce.model.attention import SelfAttention
from transduce.model.config import TransformerConfig
from transduce.model.fill import blank_transformer
from transduce.model.layers import FeedForward, Layer
from transduce.model.size import check_fits
from transduce.model.transformer import Transformer

FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_positions",
    "attention_dropout": "attention_dropout",
}
"""The fields of TransformerConfig that their config.json holds under another name, by that name."""

BLOCKS: dict[str, Any] = {
    "norm": "rms",
    "norm_position": "pre",
    "gated": True,
    "positions": "rotary",
}
"""What every one of these models is, in fields of TransformerConfig."""

UNSTORED = TRAINING | {"tie", "scale_embeddings", "decoder.input.multiple", "qkv_bias", "head_width", "n_kv_heads"}
"""The fields of TransformerConfig that may have any value in an exported model, which computes the same in either case."""

KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma", "phi3", "olmo")

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}
"""By model_type, the classes whose models are written."""


def import_llama(directory: Path) -> Transformer:
    """Read config.json and the weights, in one file or in shards, as a model in evaluation mode.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            weights.
    Source: Touvron et al. (2023), LLaMA; Yang et al. (2024), Qwen2; Yang et al. (2025), Qwen3; Jiang et al. (2023),
    Mistral 7B; Gemma team (2024), Gemma; Abdin et al. (2024), Phi-3; Groeneveld et al. (2024), OLMo; file format of
    transformers' save_pretrained.
    """
    theirs = _read(directory)
    kind, config = theirs["model_type"], _our_config(theirs, directory)
    check_fits(config, torch.device("cpu"))
    model = blank_transformer(config)
    weights, own = read_tensors(directory, "model."), _their_weights(model, fused=kind == "phi3")
    if theirs["tie_word_embeddings"]:
        weights = share_table(weights, ("model.embed_tokens.weight", "lm_head.weight"), directory)
    norms = [name for name in own if name.endswith("norm.weight")]
    if kind == "olmo":  # which has no weights in norms, and so 1, as they begin here
        own = {name: weight for name, weight in own.items() if name not in norms}
    # older files hold the frequencies of rotation
    fill(own, weights, directory, unneeded=("lm_head.weight", ".rotary_emb.inv_freq"))
    if kind == "gemma":  # which stores what is added to 1
        for name in norms:
            own[name] += 1
    return model.eval()


def import_run(directory: Path) -> Imported:
    """Read a model and its tokenizer.json.

    Raises:
        InputError: as `import_llama`; or there is no tokenizer, or nothing ends texts.
    """
    model = import_llama(directory)
    return with_tokenizer(model, directory, read_settings(directory, *KINDS))


def _read(directory: Path) -> dict[str, Any]:
    """The settings of config.json that a model of its kind has, and no others, which transformers ignores."""
    kind = read_settings(directory, *KINDS)["model_type"]
    fixed: dict[str, Any] = {"clip_qkv": None, "use_bidirectional_attention": [None, False]}
    fixed = {name: value for name, value in fixed.items() if name in DEFAULTS[kind]}
    if kind != "llama":
        fixed["attention_bias"] = False
    theirs = read_settings(directory, kind, fixed=fixed)
    return {name: theirs[name] for name in ("model_type", *DEFAULTS[kind])}


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
    check_same(_our_config(DEFAULTS[kind] | theirs, directory), config, UNSTORED, kind.capitalize())
    write_model(directory, theirs, _their_weights(model, export=True))
    if tokenizer is not None:
        write_file(directory / "tokenizer.json", tokenizer.model)
        told = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.max_positions}
        special = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
        told |= {name: tokenizer.tokens([i])[0] for name, i in special.items() if i is not None}
        write_settings(directory / TOKENIZER, told)


def _our_config(theirs: dict[str, Any], directory: Path) -> TransformerConfig:
    """Translate the settings of config.json."""
    kind, act = theirs["model_type"], theirs["hidden_act"]
    if kind == "llama":
        way_out = "; a Transformer here has biases in all linear maps or in those to queries, keys and values"
        require_equal(theirs, "attention_bias", "mlp_bias", directory, way_out)
    if kind == "phi3":
        way_out = "; they matter in training alone, so make them equal in config.json"
        require_equal(theirs, "embd_pdrop", "resid_pdrop", directory, way_out)
    ours = (
        {our_name: theirs[their_name] for their_name, our_name in FIELDS.items()}
        | BLOCKS
        | _rotation(theirs, directory)
    )
    ours["decoder"] = {"input": {"vocab_size": theirs["vocab_size"]}, "n_layers": theirs["num_hidden_layers"]}
    ours["n_kv_heads"], ours["head_width"] = theirs["num_key_value_heads"], theirs["head_dim"]
    ours["activation"] = "gelu_tanh" if (kind, act) == ("gemma", "gelu") else ACTIVATIONS[act]  # its files say less
    ours["scale_embeddings"], ours["dropout"] = kind == "gemma", theirs.get("resid_pdrop", 0.0)
    ours |= (
        {"norm": "layer", "norm_eps": 1e-5} if kind == "olmo" else {"norm": "rms", "norm_eps": theirs["rms_norm_eps"]}
    )
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
        found["rotary_factor"] = told.get("factor")
    if kind == "llama3":
        names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        found["rotary_bands"] = [told.get(name) for name in names]
    return found


def _window(theirs: dict[str, Any], directory: Path) -> int | None:
    """How far every layer sees.

    Raises:
        InputError: some layers see further than others.
    """
    size = theirs.get("sliding_window") if theirs.get("use_sliding_window", True) else None
    first, last = theirs.get("max_window_layers", 0), max(0, theirs["num_hidden_layers"] - 1)
    kinds = theirs.get("layer_types") or [
        "sliding_attention" if size and i >= first else "full_attention" for i in (0, last)
    ]
    if len(set(kinds)) != 1 or kinds[0] not in ("full_attention", "sliding_attention"):
        raise InputError(f"all layers must see equally far, but in {directory} layer_types are {', '.join(kinds)}")
    return size if kinds[0] == "sliding_attention" else None


def _their_config(config: TransformerConfig, tokenizer: JSONTokenizer | None) -> dict[str, Any]:
    """Translate our fields into the settings of config.json, as far as it has them."""
    assert config.decoder is not None
    kind = "qwen3" if config.qk_norm else "qwen2" if config.attention_bias and not config.bias else "llama"
    if kind == "llama" and config.window is not None and not config.bias:
        kind = "mistral"
    activations = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    theirs = {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.decoder.n_layers,
        **{their_name: getattr(config, our_name) for their_name, our_name in FIELDS.items()},
        "rms_norm_eps": config.norm_eps,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "hidden_act": activations[config.activation],
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
        theirs["sliding_window"] = config.window
        theirs |= {} if kind == "mistral" else {"use_sliding_window": True, "max_window_layers": 0}
    if config.rotary_bands is not None:
        low, high, n = config.rotary_bands
        bands = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": n}
        theirs["rope_scaling"] = {"rope_type": "llama3", "factor": config.rotary_factor, **bands}
    elif config.rotary_factor != 1:
        theirs["rope_scaling"] = {"rope_type": "linear", "factor": config.rotary_factor}
    return theirs


def _their_weights(model: Transformer, *, fused: bool = False, export: bool = False) -> dict[str, Tensor]:
    """The parameters under their names, without rows that only fill up the table of tokens.

    Args:
        fused: whether maps of the same input are one matrix, as in Phi-3.
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
        theirs |= {f"model.layers.{i}.{name}": weight.detach() for name, weight in _their_layer(layer, fused).items()}
    return theirs


def _their_layer(layer: Layer, fused: bool) -> dict[str, Tensor]:
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
    qkv, gated = attention.qkv, feed_forward.wide
    parts: dict[tuple[str, ...], tuple[str, nn.Linear, list[int]]] = {
        ("q_proj", "k_proj", "v_proj"): ("self_attn", qkv, list(qkv.widths.values())),
        ("gate_proj", "up_proj"): ("mlp", gated, list(gated.widths.values())),
    }
    if fused:
        parts = {
            ("qkv_proj",): ("self_attn", qkv, [len(qkv.weight)]),
            ("gate_up_proj",): ("mlp", gated, [len(gated.weight)]),
        }
    parts[("o_proj",)] = "self_attn", attention.output, [len(attention.output.weight)]
    parts[("down_proj",)] = "mlp", feed_forward.narrow, [len(feed_forward.narrow.weight)]
    for names, (part, linear, widths) in parts.items():
        for kind in ("weight", "bias"):
            if (values := getattr(linear, kind)) is not None:
                for name, value in zip(names, values.split(widths), strict=True):
                    theirs[f"{part}.{name}.{kind}"] = value
    return theirs


def with_tokenizer(model: Transformer, directory: Path, theirs: dict[str, Any]) -> Imported:
    """A language model with its tokenizer and how prompts go on; `theirs` are the settings of config.json."""
    said = read_generation(directory, theirs)
    tokenizer = text_tokenizer(directory, said["eos_token_id"], model.config.vocab_size)
    return Imported(model, None, tokenizer, read_sampling(directory, said, model.config))


def text_tokenizer(directory: Path, ends: int | list[int] | None, size: int) -> Tokenizer:
    """The tokenizer.json, in which nothing but what begins and ends this model's texts is special by its name.

    A vocabulary of a family names more tokens so than one model uses: those of chats, say, which no text shows. Where the
    names do not say what begins and ends texts, the tokenizer has the ids beside it.

    Args:
        ends: what ends texts; of several, the one that tokenizer_config.json names, else the first.
        size: of the model's vocabulary.

    Raises:
        InputError: nothing ends texts, or several tokens begin them.
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
    if tokenizer.eos_id == end and tokenizer.bos_id in (begins or (None, end)) and begins != [end]:
        return tokenizer
    if not isinstance(end, int) or len(begins) > 1:
        raise InputError(
            f"texts must begin with one token at most and end with one, but in {directory} they begin with {begins} and "
            f"end with {ends}; name what ends them in {CONFIG} (eos_token_id)"
        )
    special = {"bos": (begins or [end])[0], "eos": end, "pad": end, "unk": end}
    return ImportedTokenizer.of({"tokenizer": plain}, size=size, special=special, opening=begins)
