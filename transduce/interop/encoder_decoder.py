"""Read encoder-decoder models of text as transformers saves them: Marian and those that come from fairseq."""

from pathlib import Path

from transduce.interop.config_json import our_config, our_fields
from transduce.interop.names import ENCODER_DECODER
from transduce.interop.settings import BARTSettings, MarianSettings
from transduce.interop.weights import fill_transformer, read_tensors, share_table
from transduce.model.transformer import Transformer


def read_model(directory: Path, settings: BARTSettings) -> Transformer:
    """Read the weights, in one file or in shards, of the model that config.json describes.

    Raises:
        InputError: the model has parts that a Transformer here lacks, or there are no weights.
    """
    weights = read_tensors(directory)
    bias = weights.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        weights["final_logits_bias"] = bias.flatten()
    ours = our_fields(settings) | {"output_bias": "final_logits_bias" in weights}
    if isinstance(settings, MarianSettings) and not settings.share_encoder_decoder_embeddings:
        ours["decoder"]["input"] = {"vocab_size": settings.decoder_vocab_size or settings.vocab_size}
    elif settings.tie_word_embeddings:
        ours["tie"] = "all"
    if settings.model_type == "m2m_100":
        ours["first_position"] = settings.pad_token_id + 1
    config = our_config(ours, directory)
    tables = [f"model.{half}.embed_tokens.weight" for half in ("encoder", "decoder")]
    shared = "model.shared.weight"
    if config.tie == "all":
        weights = share_table(weights, [shared, *tables, "lm_head.weight"], directory)
    if shared in weights:
        weights = dict.fromkeys(tables, weights[shared]) | weights
    if config.positions == "learned" and settings.model_type != "blenderbot":  # the first two rows stand for none
        weights |= {name: table[2:] for name, table in weights.items() if name.endswith("embed_positions.weight")}
    return fill_transformer(config, ENCODER_DECODER, weights, directory)
