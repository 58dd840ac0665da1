"""Read T5, 1.0 and 1.1, and mT5 as transformers saves them.

T5 does not divide attention scores by sqrt(d_head), so query weights are multiplied by it. If the
output table is tied to the embeddings, T5 divides states by sqrt(d_model); here, the weight of the
final norm is divided instead.
"""

from transduce.interop.encoder_decoder import read_run as read_run
from transduce.interop.pretrained import GATED, our_config, our_fields
from transduce.interop.settings import T5Settings
from transduce.interop.weights import (
    Names,
    fill_transformer,
    named_weights,
    prefixed,
    read_tensors,
)
from transduce.model.transformer import Transformer


def _t5_stack(half: str, feed_forward: int) -> Names:
    """The weight names in a T5 encoder or decoder, whose layers are lists of sublayers."""
    block, first = f"{half}.block.{{}}.layer", f"{half}.block.0.layer.0.SelfAttention"
    dense = f"{block}.{feed_forward}.DenseReluDense"
    names = {
        "positions.relative": f"{first}.relative_attention_bias.weight",
        "norm": f"{half}.final_layer_norm",
        "layers.{}.attention_sublayer.norm": f"{block}.0.layer_norm",
        "layers.{}.attention.output": f"{block}.0.SelfAttention.o",
        "layers.{}.cross_sublayer.norm": f"{block}.1.layer_norm",
        "layers.{}.cross.q": f"{block}.1.EncDecAttention.q",
        "layers.{}.cross.kv.k": f"{block}.1.EncDecAttention.k",
        "layers.{}.cross.kv.v": f"{block}.1.EncDecAttention.v",
        "layers.{}.cross.output": f"{block}.1.EncDecAttention.o",
        "layers.{}.feed_forward_sublayer.norm": f"{block}.{feed_forward}.layer_norm",
        "layers.{}.feed_forward.wide.wide": f"{dense}.wi",
        "layers.{}.feed_forward.wide.gate": f"{dense}.wi_0",
        "layers.{}.feed_forward.wide.value": f"{dense}.wi_1",
        "layers.{}.feed_forward.narrow": f"{dense}.wo",
        **{f"layers.{{}}.attention.qkv.{x}": f"{block}.0.SelfAttention.{x}" for x in "qkv"},
    }
    return prefixed(names, f"{half}.", "")


T5: Names = {
    "source_input.weight": "encoder.embed_tokens.weight",
    "target_input.weight": "decoder.embed_tokens.weight",
    "output": "lm_head.weight",
    **_t5_stack("encoder", 1),
    **_t5_stack("decoder", 2),
}


def read_model(settings: T5Settings) -> Transformer:
    """Read the weights, in one file or in shards, of the model that config.json describes.

    Raises:
        InputError: the model has parts that Transformer does not support, or there are no weights.
    Source: Raffel et al. (2020), T5; Shazeer (2020) for 1.1; Xue et al. (2021), mT5; file format of
    transformers' save_pretrained.
    """
    weights = read_tensors(settings.directory, "")
    scaled = settings.model_type == "t5" and settings.tie_word_embeddings
    if settings.scale_decoder_outputs is not None:
        scaled = settings.scale_decoder_outputs
    tied = "lm_head.weight" not in weights
    ours = our_fields(settings) | {
        "tie": "all" if tied else "none",
        "gated": settings.feed_forward_proj in GATED,
    }
    config = our_config(settings, ours)
    model = fill_transformer(config, T5, weights, settings.directory)
    for name, weight in named_weights(model, T5).items():
        if name.endswith("Attention.q.weight"):
            weight.mul_(config.d_head**0.5)
        elif name == "decoder.final_layer_norm.weight" and scaled:
            weight.mul_(config.d_model**-0.5)
    return model
