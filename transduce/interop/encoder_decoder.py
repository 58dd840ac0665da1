"""Read encoder-decoder models of text as transformers saves them: Marian and those that come from fairseq."""

from pathlib import Path
from typing import Any, NamedTuple

from transduce.config import from_dict
from transduce.interop.names import ENCODER_DECODER
from transduce.interop.settings import CONFIG, our_fields, read_settings
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
    theirs: dict[str, Any]


def read_model(directory: Path, *kinds: str) -> EncoderDecoder:
    """Read config.json and the weights, in one file or in shards.

    Args:
        kinds: The values that model_type may have.

    Raises:
        InputError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            weights.
    """
    theirs = read_settings(directory, *kinds)
    kind = theirs["model_type"]
    weights = read_tensors(directory)
    bias = weights.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        weights["final_logits_bias"] = bias.flatten()
    config = _our_config(theirs, directory, output_bias="final_logits_bias" in weights)
    tables = [f"model.{half}.embed_tokens.weight" for half in ("encoder", "decoder")]
    shared = "model.shared.weight"
    if config.tie == "all":
        weights = share_table(weights, [shared, *tables, "lm_head.weight"], directory)
    if shared in weights:
        weights = dict.fromkeys(tables, weights[shared]) | weights
    if config.positions == "learned" and kind != "blenderbot":  # the first two rows stand for no position
        weights |= {name: table[2:] for name, table in weights.items() if name.endswith("embed_positions.weight")}
    return EncoderDecoder(fill_transformer(config, ENCODER_DECODER, weights, directory), theirs)


def _our_config(theirs: dict[str, Any], directory: Path, *, output_bias: bool) -> TransformerConfig:
    """Translate the settings of config.json."""
    ours = encoder_decoder_fields(theirs, {"vocab_size": theirs["vocab_size"]}) | MODELS[theirs["model_type"]]
    if theirs["tie_word_embeddings"] and theirs.get("share_encoder_decoder_embeddings", True):
        ours["tie"] = "all"
    elif not theirs.get("share_encoder_decoder_embeddings", True):
        ours["decoder"]["input"]["vocab_size"] = theirs["decoder_vocab_size"] or theirs["vocab_size"]
    if ours.get("sinusoids") == "tensor2tensor":
        ours["first_position"] = theirs["pad_token_id"] + 1
    return from_dict(TransformerConfig, ours | {"output_bias": output_bias}, str(directory / CONFIG))


def encoder_decoder_fields(theirs: dict[str, Any], encoder_input: dict[str, Any]) -> dict[str, Any]:
    """Translate the settings that all encoder-decoder models have alike into fields of TransformerConfig."""
    return our_fields(theirs) | {"encoder": {"input": encoder_input, "n_layers": theirs["encoder_layers"]}}
