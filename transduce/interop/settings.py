"""What config.json says of a model of each model_type: settings with the types and the defaults of transformers.

config.json leaves out settings that have their defaults, and anybody may have written it. So it is read in one place.
"""

from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from transduce.config import NAMES
from transduce.errors import InputError
from transduce.files import read_json
from transduce.model.config import Activation, TransformerConfig

CONFIG = "config.json"

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Our name of each activation that transformers and a Transformer here both have, by the name in transformers."""

TYPES: dict[str, Any] = {
    "eos_token_id": int | list[int] | None,
    "decoder_start_token_id": int | None,
    "decoder_vocab_size": int | None,
    "conv_kernel_sizes": list[int],
    "num_key_value_heads": int | None,
    "head_dim": int | None,
    "n_inner": int | None,
    "word_embed_proj_dim": int | None,
    "sliding_window": int | None,
    "layer_types": list[str] | None,
    "rope_parameters": dict | None,
    "rope_scaling": dict | None,
    "clip_qkv": float | None,
    "use_bidirectional_attention": bool | None,
    "do_normalize": bool | None,
}
"""The types of settings that have several or that are lists; any other setting has the type of its default."""


def _halves(d_model: int, layers: tuple[int, int], heads: int, ffn_dim: int) -> dict[str, Any]:
    """The sizes of an encoder and a decoder."""
    sizes = {"d_model": d_model, "encoder_layers": layers[0], "decoder_layers": layers[1]}
    for half in ("encoder", "decoder"):
        sizes |= {f"{half}_attention_heads": heads, f"{half}_ffn_dim": ffn_dim}
    return sizes


BART: dict[str, Any] = {
    **_halves(1024, (12, 12), 16, 4096),
    "vocab_size": 50265,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "head_dim": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_parameters": None,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}

QWEN = LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": None,
    "layer_types": None,
    "max_window_layers": 28,
    "eos_token_id": None,
}

OPT: dict[str, Any] = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "ffn_dim": 3072,
    "activation_function": "relu",
    "max_position_embeddings": 2048,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "word_embed_proj_dim": None,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "eos_token_id": 50256,
    },
    "llama": LLAMA | {"mlp_bias": False},
    "qwen2": QWEN,
    "qwen3": QWEN | {"head_dim": 128},
    "mistral": LLAMA
    | {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "gemma": LLAMA
    | {"vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh"}
    | {"max_position_embeddings": 8192, "tie_word_embeddings": True, "eos_token_id": 1}
    | {"use_bidirectional_attention": None},
    "phi3": LLAMA
    | {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096}
    | {"rms_norm_eps": 1e-5, "sliding_window": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "eos_token_id": 32000},
    "olmo": LLAMA | {"vocab_size": 50304, "clip_qkv": None, "eos_token_id": 50279},
    "opt": OPT,
    "xglm": {
        "vocab_size": 256008,
        "d_model": 1024,
        "num_layers": 24,
        "attention_heads": 16,
        "ffn_dim": 4096,
        "activation_function": "gelu",
        "max_position_embeddings": 2048,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "pad_token_id": 1,
        "eos_token_id": 2,
    },
    "marian": BART
    | {"vocab_size": 58101, "decoder_vocab_size": None, "share_encoder_decoder_embeddings": True}
    | {"pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
    "m2m_100": BART
    | {"vocab_size": 128112, "attention_dropout": 0.1, "activation_function": "relu", "scale_embedding": True},
    "bart": BART,
    "mbart": BART,
    "pegasus": BART | {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    "blenderbot": BART
    | _halves(2560, (2, 24), 32, 10240)
    | {"vocab_size": 8008, "max_position_embeddings": 128, "pad_token_id": 0, "decoder_start_token_id": 1},
    "whisper": BART
    | _halves(384, (4, 4), 6, 1536)
    | {"vocab_size": 51865, "dropout": 0.0, "num_mel_bins": 80, "max_source_positions": 1500}
    | {"max_target_positions": 448, "pad_token_id": 50256, "eos_token_id": 50256, "decoder_start_token_id": 50257},
    "speech_to_text": BART
    | _halves(256, (12, 6), 4, 2048)
    | {"vocab_size": 10000, "activation_function": "relu", "scale_embedding": True, "max_source_positions": 6000}
    | {"max_target_positions": 1024, "conv_kernel_sizes": [5, 5], "conv_channels": 1024, "input_channels": 1}
    | {"input_feat_per_channel": 80},
}
"""By model_type, the settings that are read, with their defaults."""


FIXED: dict[str, dict[str, Any]] = {
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    "qwen2": {"attention_bias": False},
    "qwen3": {"attention_bias": False},
    "mistral": {"attention_bias": False},
    "phi3": {"attention_bias": False},
    "gemma": {"attention_bias": False, "use_bidirectional_attention": [None, False]},
    "olmo": {"attention_bias": False, "clip_qkv": None},
    "opt": {"_remove_final_layer_norm": False},
    "xglm": {"pad_token_id": [0, 1]},  # any other would make a position zero
    "whisper": {"tie_word_embeddings": True},
    "speech_to_text": {"tie_word_embeddings": True},
}
"""By model_type, the settings that must have one value, or one of a list: a Transformer here does them in one way."""

IN_TRAINING = "; they matter in training alone, so make them equal in config.json"
EQUAL = {
    ("embd_pdrop", "resid_pdrop"): IN_TRAINING,
    ("attention_bias", "mlp_bias"): "; a Transformer here has biases in all linear maps or in those to queries, keys "
    "and values",
    ("encoder_attention_heads", "decoder_attention_heads"): "",
    ("encoder_ffn_dim", "decoder_ffn_dim"): "",
}
"""Settings that must be equal, for a Transformer here has one field for both, and the way out."""

FIELDS = {
    **dict.fromkeys(("n_embd", "hidden_size", "d_model"), "d_model"),
    **dict.fromkeys(("n_layer", "num_hidden_layers", "num_layers", "decoder_layers"), "n_layers"),
    **dict.fromkeys(("n_head", "num_attention_heads", "attention_heads"), "n_heads"),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), "n_heads"),
    **dict.fromkeys(("n_inner", "intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), "d_ff"),
    **dict.fromkeys(("n_positions", "max_position_embeddings"), "max_positions"),
    **dict.fromkeys(("resid_pdrop", "dropout"), "dropout"),
    **dict.fromkeys(("attn_pdrop", "attention_dropout"), "attention_dropout"),
    **dict.fromkeys(("layer_norm_epsilon", "rms_norm_eps"), "norm_eps"),
    **dict.fromkeys(("activation_function", "hidden_act"), "activation"),
    "scale_embedding": "scale_embeddings",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_width",
}
"""Our field of each setting that config.json has under another name, in every family."""


def read_settings(directory: Path, *kinds: str) -> dict[str, Any]:
    """Read config.json, where settings that are missing have their defaults.

    Args:
        kinds: The values that model_type may have.

    Raises:
        InputError: the directory holds another kind of model, a setting has another type, or it would silently give
            other numbers here.
    """
    settings = {"model_type": None, **read_json(directory / CONFIG)}
    kind = settings["model_type"]
    if kind not in kinds:
        raise InputError(f"model_type must be {' or '.join(map(repr, kinds))}, but in {directory} it is {kind!r}")
    defaults = DEFAULTS[kind]
    fixed = {name: [*ACTIVATIONS] for name in ("activation_function", "hidden_act") if name in defaults}
    settings = complete_settings(settings, directory, fixed=fixed | FIXED.get(kind, {}), defaults=defaults)
    for (one, other), way_out in EQUAL.items():
        if {one, other} <= defaults.keys():
            require_equal(settings, one, other, directory, way_out)
    return settings


def complete_settings(
    settings: dict[str, Any], directory: Path, *, fixed: dict[str, Any], defaults: dict[str, Any]
) -> dict[str, Any]:
    """Check what a file in `directory` says, and add the defaults; see `read_settings`."""
    theirs = defaults | settings
    check_types(theirs, {name: TYPES.get(name, type(value)) for name, value in defaults.items()}, directory)
    for name, allowed in fixed.items():
        values = allowed if isinstance(allowed, list) else [allowed]
        if theirs[name] not in values:
            rule = " or ".join(map(repr, values))
            raise InputError(f"{name} must be {rule}, but in {directory} it is {theirs[name]!r}")
    return theirs


def our_fields(theirs: dict[str, Any]) -> dict[str, Any]:
    """Translate settings of config.json into fields of TransformerConfig, as far as all families have them alike."""
    ours = {FIELDS[name]: theirs[name] for name in DEFAULTS[theirs["model_type"]] if name in FIELDS}
    n_layers = ours.pop("n_layers")
    return ours | {
        "decoder": {"input": {"vocab_size": theirs["vocab_size"]}, "n_layers": n_layers},
        "activation": ACTIVATIONS[ours["activation"]],
        "tie": "output" if theirs["tie_word_embeddings"] else "none",
    }


def their_settings(config: TransformerConfig, kind: str, architecture: str) -> dict[str, Any]:
    """Translate our fields into the settings of config.json, the other way of `our_fields`."""
    assert config.decoder is not None
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}  # of two names, the first one counts
    ours = vars(config) | {
        "n_layers": config.decoder.n_layers,
        "n_kv_heads": config.kv_heads,
        "head_width": config.d_head,
        "activation": activations[config.activation],
    }
    return {
        "model_type": kind,
        "architectures": [architecture],
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie != "none",
        **{name: ours[FIELDS[name]] for name in DEFAULTS[kind] if name in FIELDS},
    }


def check_types(settings: dict[str, Any], kinds: dict[str, Any], directory: Path) -> None:
    """Raise InputError unless each of these settings has its type, such as int, list[int] or int | None."""
    for name, kind in kinds.items():
        if not _is(settings[name], kind):
            rule = " or ".join(map(_name_of, get_args(kind) if isinstance(kind, UnionType) else [kind]))
            raise InputError(f"{name} must be {rule}, but in {directory} it is {settings[name]!r:.60}")


def _is(value: object, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(_is(value, each) for each in get_args(kind))
    if get_origin(kind) is list:
        return type(value) is list and bool(value) and all(_is(each, *get_args(kind)) for each in value)
    return type(value) is kind or (kind is float and type(value) is int)


def _name_of(kind: Any) -> str:
    if get_origin(kind) is list:
        return f"a list, in which each is {_name_of(*get_args(kind))}"
    return {dict: "an object", NoneType: "null"}.get(kind) or NAMES[kind]


def require_equal(theirs: dict[str, Any], one: str, other: str, directory: Path, way_out: str = "") -> None:
    """Raise InputError unless two settings, for which a Transformer here has a single field, are equal."""
    if theirs[one] != theirs[other]:
        values = f"{theirs[one]} and {theirs[other]}"
        raise InputError(f"{one} must equal {other}, but in {directory} they are {values}{way_out}")
