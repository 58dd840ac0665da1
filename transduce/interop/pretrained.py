"""Read and write directories in the format of transformers' save_pretrained.

The settings of config.json are fields of TransformerConfig under other names. The file omits
settings with default values, and may be malformed, so it is read in one place.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from safetensors.torch import save as serialize

from transduce.config import Json, differences, from_dict, to_dict
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import Features
from transduce.data.json_tokenizer import special_tokens
from transduce.errors import InputError
from transduce.files import Weights, read_json, read_optional, write_file, write_json
from transduce.interop.settings import (
    SETTINGS,
    EncoderDecoderSettings,
    Settings,
    Stored,
    one_of,
)
from transduce.model.config import Activation, Tokens, TransformerConfig
from transduce.model.inputs import BUCKETS, FURTHEST
from transduce.model.transformer import Transformer

CONFIG = "config.json"
WEIGHTS = "model.safetensors"

StoredT = TypeVar("StoredT", bound=Stored)

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Our names of activations, by their names in transformers."""

GATED = {f"gated-{theirs}": ours for theirs, ours in ACTIVATIONS.items()}
GATED["gated-gelu"] = "gelu_tanh"
"""The same for gated feed-forwards, by their names in T5."""

NAMES = {
    "d_model": "n_embd hidden_size d_model",
    "n_layers": "n_layer num_hidden_layers num_layers num_decoder_layers decoder_layers",
    "n_heads": "n_head num_attention_heads num_heads "
    "attention_heads encoder_attention_heads decoder_attention_heads",
    "d_ff": "n_inner d_ff intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim",
    "max_positions": "n_positions max_position_embeddings",
    "dropout": "embd_pdrop resid_pdrop dropout dropout_rate",
    "attention_dropout": "attn_pdrop attention_dropout",
    "norm_eps": "layer_norm_epsilon rms_norm_eps",
    "activation": "activation_function hidden_act feed_forward_proj dense_act_fn",
    "scale_embeddings": "scale_embedding",
    "n_kv_heads": "num_key_value_heads",
    "head_width": "head_dim d_kv",
    "bias": "mlp_bias",
    "rotary_theta": "rope_theta",
    "window": "sliding_window",
}
"""The names of the settings with the same meaning as each of our fields, in every model that has
them."""

FIELDS = {theirs: ours for ours, names in NAMES.items() for theirs in names.split()}
"""Our field for each of these settings."""

FIXED: dict[str, Collection[Any]] = {
    "activation_function": ACTIVATIONS,
    "hidden_act": ACTIVATIONS,
    "feed_forward_proj": ACTIVATIONS | GATED,
    "dense_act_fn": [None, *ACTIVATIONS],
    "scale_attn_weights": [True],
    "scale_attn_by_inverse_layer_idx": [False],
    "reorder_and_upcast_attn": [False],
    "add_cross_attention": [False],
    "use_bidirectional_attention": [None, False],
    "clip_qkv": [None],
    "use_sliding_window": [False],
    "layer_types": [None],
    "partial_rotary_factor": [1.0],
    "_remove_final_layer_norm": [False],
    "do_layer_norm_before": [True],
    "enable_bias": [True],
    "layer_norm_elementwise_affine": [True],
    "relative_attention_num_buckets": [BUCKETS],
    "relative_attention_max_distance": [FURTHEST],
}
"""The values of settings that Transformer supports."""

LLAMA = {"norm": "rms", "gated": True, "positions": "rotary", "scale_embeddings": False}
BIASLESS = LLAMA | {"bias": False}
T5 = {"norm": "rms", "positions": "relative", "bias": False, "scale_embeddings": False}
BLOCKS: dict[str, Json] = {
    "gpt2": {"positions": "learned", "scale_embeddings": False, "init": "gpt2"},
    "llama": LLAMA,
    "qwen2": BIASLESS | {"qkv_bias": True},
    "qwen3": BIASLESS | {"qk_norm": True},
    "mistral": BIASLESS,
    "gemma": BIASLESS | {"scale_embeddings": True},
    "phi3": BIASLESS,
    "olmo": BIASLESS | {"norm": "layer", "norm_eps": 1e-5},
    "opt": {"positions": "learned", "scale_embeddings": False},
    "xglm": {"sinusoids": "tensor2tensor", "first_position": 2},
    "marian": {"norm_position": "post"},
    "m2m_100": {"sinusoids": "tensor2tensor"},
    "bart": {"norm_position": "post", "positions": "learned", "embedding_norm": True},
    "mbart": {"positions": "learned", "embedding_norm": True},
    "pegasus": {},
    "blenderbot": {"positions": "learned"},
    "t5": T5,
    "mt5": T5,
    "whisper": {"sinusoids": "tensor2tensor", "positions": "learned", "scale_embeddings": False},
    "speech_to_text": {"sinusoids": "tensor2tensor"},
}
"""The fields of TransformerConfig with a fixed value for each model_type; norms come before
sublayers (pre-norm) unless given."""

EQUAL = {
    "embd_pdrop": "resid_pdrop",
    "attention_bias": "mlp_bias",
    "encoder_attention_heads": "decoder_attention_heads",
    "encoder_ffn_dim": "decoder_ffn_dim",
}
"""Settings that must be equal, as TransformerConfig has one field for both."""


def read_settings(directory: Path) -> Settings:
    """Read config.json.

    Raises:
        InputError: the directory has another kind of model, or a setting has another type, or a
            value that would silently give other outputs here.
    """
    path = directory / CONFIG
    if not directory.is_file() and not path.exists():
        raise InputError(
            f"a model of transformers is a folder with {CONFIG}, but {directory} has none; fetch "
            "one with hf download NAME --local-dir DIRECTORY, or merge an adapter of peft into its "
            "model (merge_and_unload) and save that"
        )
    plain = read_json(path)
    kind = plain.get("model_type")
    if not isinstance(kind, str) or kind not in SETTINGS:
        ours = "; it is a run of transduce already" if "experiment" in plain else ""
        raise InputError(
            f"model_type must be {one_of(SETTINGS)}, but in {directory} it is {kind!r}{ours}"
        )
    settings = known_fields(SETTINGS[kind], plain, path)
    for name, allowed in FIXED.items():
        if hasattr(settings, name):
            settings.require(name, *allowed)
    for one, other in EQUAL.items():
        if hasattr(settings, one) and hasattr(settings, other):
            settings.require_equal(one, other)
    return settings


def known_fields(kind: type[StoredT], plain: Json, path: Path) -> StoredT:
    """A dataclass with the settings of a file; other settings in the file are ignored.

    Raises:
        InputError: a setting is missing or has another type.
    """
    values = {field.name: plain[field.name] for field in fields(kind) if field.name in plain}
    values["directory"] = str(path.parent)
    ends = values.get("eos_token_id", ())
    if not isinstance(ends, list | tuple):  # one id or null
        values["eos_token_id"] = [] if ends is None else [ends]
    return from_dict(kind, values, str(path))


def our_fields(settings: Settings) -> Json:
    """Translate the settings that all models share into fields of TransformerConfig."""
    theirs = vars(settings)
    values = {
        FIELDS[name]: value
        for name, value in theirs.items()
        if name in FIELDS and value is not None
    }
    tokens = {"vocab_size": settings.vocab_size}
    ours: Json = {"dropout": 0.0, "norm_position": "pre"}
    ours |= values | BLOCKS[settings.model_type]
    ours["decoder"] = {"input": tokens, "n_layers": ours.pop("n_layers")}
    ours["activation"] = (ACTIVATIONS | GATED)[ours["activation"]]
    ours["tie"] = "output" if settings.tie_word_embeddings else "none"
    if isinstance(settings, EncoderDecoderSettings):
        n_layers = theirs.get("encoder_layers", theirs.get("num_layers"))
        ours["encoder"] = {"input": tokens, "n_layers": n_layers}
    return ours


def our_config(settings: Settings, ours: Json) -> TransformerConfig:
    """Make a configuration of these fields; errors name the settings' config.json.

    Raises:
        InputError: one of them is out of its range.
    """
    return from_dict(TransformerConfig, ours, str(settings.directory / CONFIG))


def their_settings(config: TransformerConfig, model_type: str, architecture: str) -> Json:
    """Translate fields of TransformerConfig into settings, the inverse of `our_fields`."""
    assert config.decoder is not None
    # if two names have the same value, the first one is used
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    ours = vars(config) | {
        "n_layers": config.decoder.n_layers,
        "n_kv_heads": config.kv_heads,
        "head_width": config.d_head,
        "activation": activations[config.activation],
    }
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie != "none",
        **{
            field.name: ours[FIELDS[field.name]]
            for field in fields(SETTINGS[model_type])
            if field.name in FIELDS
        },
    }


TOKENIZER = "tokenizer_config.json"
CLEAN_UP = "clean_up_tokenization_spaces"


class Parts(NamedTuple):
    """A model with everything that belongs to it in a run directory."""

    model: Transformer
    source_tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer
    decoding: Json
    """The default search: fields of SearchConfig or, for a decoder-only model, of
    GenerationConfig."""
    feature_extractor: Features | None = None
    """How sound becomes frames, if the source is not text."""


def write_model(directory: Path, theirs: Json, weights: Weights) -> None:
    """Write config.json and model.safetensors into a directory, which is created if needed."""
    contiguous = {name: weight.cpu().contiguous() for name, weight in weights.items()}
    write_file(directory / WEIGHTS, serialize(contiguous, metadata={"format": "pt"}))
    write_json(directory / CONFIG, theirs)  # last, as it makes this a model


def write_tokenizer_settings(
    directory: Path, kind: str, max_positions: int, settings: Json
) -> None:
    """Write tokenizer_config.json.

    Args:
        kind: the class in transformers.
        settings: the special tokens, as eos_token, and others.
    """
    known = {"tokenizer_class": kind, "model_max_length": max_positions}
    write_json(directory / TOKENIZER, known | settings)


def pieces_settings(directory: Path) -> Json:
    """The optional parts of an `ImportedTokenizer` of a SentencePiece model."""
    config = read_optional(directory / TOKENIZER)
    special = special_tokens(read_optional(directory / "special_tokens_map.json") | config)
    added = read_optional(directory / "added_tokens.json")
    tokens = [{"content": name, "id": i, "special": name in special} for name, i in added.items()]
    return {"added_tokens": tokens, "clean_up": config.get(CLEAN_UP)}


def read_table(path: Path, size: int) -> list[str]:
    """The pieces of a vocab.json by id, for ids below `size`; "" if there is none.

    Raises:
        InputError: the file is invalid, or has an id outside of this range.
    """
    pieces = [""] * size
    for piece, i in read_json(path).items():
        if type(i) is not int or not 0 <= i < size:
            raise InputError(
                f"{path} must have an id of 0 to {size - 1} for every piece, but {piece!r} has "
                f"{i!r}"
            )
        pieces[i] = piece
    if "<unk>" not in pieces:
        raise InputError(f"{path} must have the piece <unk>, but it does not")
    return pieces


TRAINING = {
    "dropout",
    "attention_dropout",
    "init",
    "init_gain",
    "recompute",
    "balance_weight",
    "experts_per_token",
}
"""The fields of TransformerConfig that do not change the outputs of a trained model without
experts."""


def check_same(
    theirs: Json,
    read_config: Callable[[Any], TransformerConfig],
    config: TransformerConfig,
    *free: str,
) -> None:
    """Raise InputError unless reading these settings gives the model's own configuration.

    Args:
        theirs: the settings of config.json.
        free: fields that may differ, besides those of `TRAINING` and those for how tables are
            stored.
    """
    kind = theirs["model_type"]
    stored = read_config(known_fields(SETTINGS[kind], theirs, Path(CONFIG)))
    same = TRAINING | {"tie", "encoder.input.multiple", "decoder.input.multiple", *free}
    lines = differences(to_dict(stored), to_dict(config))
    if changed := [line for line in lines if line.split(":")[0] not in same]:
        raise InputError(
            f"a {kind} has fixed values of some fields, but in this model they differ: "
            f"{'; '.join(changed)}"
        )


def check_exportable(config: TransformerConfig, name: str, lacking: Sequence[str]) -> None:
    """Raise InputError unless a model generates tokens, takes tokens if it has an encoder, and has
    no part that a format lacks.

    Args:
        name: the name of the format.
        lacking: the fields that must have their default values.
    """
    if config.decoder is None:
        raise InputError(
            f"{name} runs a decoder, but this model has only an encoder; it cannot be exported"
        )
    if config.encoder is not None and not isinstance(config.encoder.input, Tokens):
        raise InputError(
            f"{name} takes tokens, but this model's encoder takes frames; it cannot be exported"
        )
    stacks = [stack for stack in (config.encoder, config.decoder) if stack]
    if any(config.for_stack(stack).positions == "relative" for stack in stacks):
        raise InputError(
            f"{name} export does not support relative positions, which this model has; it cannot "
            "be exported"
        )
    for field in lacking:
        known = getattr(TransformerConfig, field)
        if (value := getattr(config, field)) != known:
            raise InputError(
                f"{name} supports only {field}={known!r}, but this model has {field}={value!r}; "
                "it cannot be exported"
            )
