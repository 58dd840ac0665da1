"""Read encoder-decoder models of text as transformers saves them: Marian and those that come from fairseq."""

from pathlib import Path
from typing import Any, NamedTuple

from transduce.config import from_dict
from transduce.interop.config_json import CONFIG, our_fields, read_settings
from transduce.interop.names import ENCODER_DECODER
from transduce.interop.settings import BARTSettings, EncoderDecoderSettings, MarianSettings
from transduce.interop.weights import fill_transformer, read_tensors, share_table
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer

BART: dict[str, Any] = {"positions": "learned", "embedding_norm": True}
MODELS: dict[str, dict[str, Any]] = {
    "marian": {},
    "m2m_100": {"norm_position": "pre", "sinusoids": "tensor2tensor"},
    "bart": BART,
    "mbart": {**BART, "norm_position": "pre"},
    "pegasus": {"norm_position": "pre"},
    "blenderbot": {"norm_position": "pre", "positions": "learned"},
}
"""By model_type, the fields of TransformerConfig that all models of it have."""


class EncoderDecoder(NamedTuple):
    """A model in evaluation mode, and the settings of config.json."""

    model: Transformer
    settings: BARTSettings


def read_model(directory: Path, kind: type[BARTSettings] = BARTSettings) -> EncoderDecoder:
    """Read config.json and the weights, in one file or in shards.

    Args:
        kind: Whose settings they must be.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            weights.
    """
    settings = read_settings(directory, kind)
    weights = read_tensors(directory)
    bias = weights.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        weights["final_logits_bias"] = bias.flatten()
    config = _our_config(settings, directory, output_bias="final_logits_bias" in weights)
    tables = [f"model.{half}.embed_tokens.weight" for half in ("encoder", "decoder")]
    shared = "model.shared.weight"
    if config.tie == "all":
        weights = share_table(weights, [shared, *tables, "lm_head.weight"], directory)
    if shared in weights:
        weights = dict.fromkeys(tables, weights[shared]) | weights
    if (
        config.positions == "learned" and settings.model_type != "blenderbot"
    ):  # the first two rows stand for no position
        weights |= {name: table[2:] for name, table in weights.items() if name.endswith("embed_positions.weight")}
    return EncoderDecoder(fill_transformer(config, ENCODER_DECODER, weights, directory), settings)


def _our_config(settings: BARTSettings, directory: Path, *, output_bias: bool) -> TransformerConfig:
    """Translate the settings of config.json."""
    ours = encoder_decoder_fields(settings, {"vocab_size": settings.vocab_size}) | MODELS[settings.model_type]
    if isinstance(settings, MarianSettings) and not settings.share_encoder_decoder_embeddings:
        ours["decoder"]["input"]["vocab_size"] = settings.decoder_vocab_size or settings.vocab_size
    elif settings.tie_word_embeddings:
        ours["tie"] = "all"
    if ours.get("sinusoids") == "tensor2tensor":
        ours["first_position"] = settings.pad_token_id + 1
    return from_dict(TransformerConfig, ours | {"output_bias": output_bias}, str(directory / CONFIG))


def encoder_decoder_fields(settings: EncoderDecoderSettings, encoder_input: dict[str, Any]) -> dict[str, Any]:
    """Translate the settings that all encoder-decoder models have alike into fields of TransformerConfig."""
    return our_fields(settings) | {"encoder": {"input": encoder_input, "n_layers": settings.encoder_layers}}
