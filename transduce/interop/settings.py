"""The settings of config.json by model_type, with the types and defaults of transformers."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import dataclass_transform

from transduce.config import Json
from transduce.errors import InputError


def one_of(values: Collection[Any]) -> str:
    """The rule that a value is one of these."""
    return " or ".join(map(repr, values))


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Stored:
    """The settings in a JSON file. Every subclass becomes a frozen, keyword-only dataclass."""

    directory: Path = field(default=Path(), compare=False)

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def require(self, name: str, *allowed: Any) -> None:
        """Raise InputError unless a setting has one of the allowed values."""
        if (value := getattr(self, name)) not in allowed:
            raise InputError(
                f"{name} must be {one_of(allowed)}, but in {self.directory} it is {value!r}"
            )

    def require_equal(self, one: str, other: str) -> None:
        """Raise InputError unless two settings are equal, for which we have a single field."""
        if (a := getattr(self, one)) != (b := getattr(self, other)):
            raise InputError(
                f"{one} must equal {other}, but in {self.directory} they are {a} and {b}"
            )


class Settings(Stored):
    """Settings of all models."""

    model_type: str
    vocab_size: int
    tie_word_embeddings: bool = True
    eos_token_id: tuple[int, ...] = (2,)


class LanguageModelSettings(Settings):
    """Settings of all decoder-only models."""


class GPT2Settings(LanguageModelSettings):
    """Settings of GPT-2."""

    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    add_cross_attention: bool = False
    eos_token_id: tuple[int, ...] = (50256,)


class LlamaLikeSettings(LanguageModelSettings):
    """Settings that Llama and similar models share."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    hidden_act: str = "silu"
    head_dim: int | None = None
    attention_bias: bool = False
    attention_dropout: float = 0.0
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_parameters: Json | None = None
    rope_scaling: Json | None = None
    tie_word_embeddings: bool = False


class LlamaSettings(LlamaLikeSettings):
    """Settings of Llama."""

    mlp_bias: bool = False


class Qwen2Settings(LlamaLikeSettings):
    """Settings of Qwen2."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    eos_token_id: tuple[int, ...] = ()


class Qwen3Settings(Qwen2Settings):
    """Settings of Qwen3."""

    head_dim: int | None = 128


class MistralSettings(LlamaLikeSettings):
    """Settings of Mistral."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] | None = None


class GemmaSettings(LlamaLikeSettings):
    """Settings of Gemma."""

    num_key_value_heads: int | None = 16
    hidden_act: str = "gelu_pytorch_tanh"
    head_dim: int | None = 256
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    eos_token_id: tuple[int, ...] = (1,)
    use_bidirectional_attention: bool | None = None


class Phi3Settings(LlamaLikeSettings):
    """Settings of Phi-3."""

    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    eos_token_id: tuple[int, ...] = (32000,)


class OlmoSettings(LlamaLikeSettings):
    """Settings of OLMo."""

    clip_qkv: float | None = None
    eos_token_id: tuple[int, ...] = (50279,)


class OPTSettings(LanguageModelSettings):
    """Settings of OPT."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    ffn_dim: int
    activation_function: str = "relu"
    max_position_embeddings: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    do_layer_norm_before: bool = True
    _remove_final_layer_norm: bool = False
    word_embed_proj_dim: int | None = None
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True


class XGLMSettings(LanguageModelSettings):
    """Settings of XGLM."""

    d_model: int
    num_layers: int
    attention_heads: int
    ffn_dim: int
    activation_function: str = "gelu"
    max_position_embeddings: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.1
    scale_embedding: bool = True
    pad_token_id: int = 1


class EncoderDecoderSettings(Settings):
    """Settings of all models with an encoder and a decoder."""

    d_model: int
    pad_token_id: int = 1
    decoder_start_token_id: int | None = 2


class BARTSettings(EncoderDecoderSettings):
    """Settings of BART, and of the other models that have its names and defaults."""

    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_function: str = "gelu"
    max_position_embeddings: int = 1024
    scale_embedding: bool = False


class MarianSettings(BARTSettings):
    """Settings of Marian."""

    decoder_vocab_size: int | None = None
    share_encoder_decoder_embeddings: bool = True
    pad_token_id: int = 58100
    eos_token_id: tuple[int, ...] = (0,)
    decoder_start_token_id: int | None = 58100


class M2M100Settings(BARTSettings):
    """Settings of M2M-100 and NLLB."""

    attention_dropout: float = 0.1
    activation_function: str = "relu"
    scale_embedding: bool = True


class PegasusSettings(BARTSettings):
    """Settings of Pegasus."""

    pad_token_id: int = 0
    eos_token_id: tuple[int, ...] = (1,)
    decoder_start_token_id: int | None = 0


class BlenderbotSettings(BARTSettings):
    """Settings of Blenderbot."""

    max_position_embeddings: int = 128
    pad_token_id: int = 0
    decoder_start_token_id: int | None = 1


class T5Settings(EncoderDecoderSettings):
    """Settings of T5, also Flan-T5, ByT5 and MADLAD-400."""

    num_layers: int
    num_decoder_layers: int | None = None
    num_heads: int
    d_kv: int = 64
    d_ff: int
    feed_forward_proj: str = "relu"
    dense_act_fn: str | None = None
    """The activation, if it is not that of feed_forward_proj."""
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    scale_decoder_outputs: bool | None = None
    pad_token_id: int = 0
    eos_token_id: tuple[int, ...] = (1,)
    decoder_start_token_id: int | None = 0


class MT5Settings(T5Settings):
    """Settings of mT5."""

    feed_forward_proj: str = "gated-gelu"


class SpeechSettings(BARTSettings):
    """Settings of models of speech."""

    max_source_positions: int
    max_target_positions: int


class WhisperSettings(SpeechSettings):
    """Settings of Whisper."""

    dropout: float = 0.0
    num_mel_bins: int = 80
    pad_token_id: int = 50256
    eos_token_id: tuple[int, ...] = (50256,)
    decoder_start_token_id: int | None = 50257


class Speech2TextSettings(SpeechSettings):
    """Settings of Speech2Text."""

    activation_function: str = "relu"
    scale_embedding: bool = True
    conv_kernel_sizes: tuple[int, ...] = (5, 5)
    conv_channels: int = 1024
    input_channels: int = 1
    input_feat_per_channel: int = 80


SETTINGS: dict[str, type[Settings]] = {
    "gpt2": GPT2Settings,
    "llama": LlamaSettings,
    "qwen2": Qwen2Settings,
    "qwen3": Qwen3Settings,
    "mistral": MistralSettings,
    "gemma": GemmaSettings,
    "phi3": Phi3Settings,
    "olmo": OlmoSettings,
    "opt": OPTSettings,
    "xglm": XGLMSettings,
    "marian": MarianSettings,
    "m2m_100": M2M100Settings,
    "bart": BARTSettings,
    "mbart": BARTSettings,
    "pegasus": PegasusSettings,
    "blenderbot": BlenderbotSettings,
    "t5": T5Settings,
    "mt5": MT5Settings,
    "whisper": WhisperSettings,
    "speech_to_text": Speech2TextSettings,
}
"""The class of settings of each model_type."""
