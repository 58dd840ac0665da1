"""Names of tensors in other libraries: one table per family, for reading and for writing."""

import re

from torch import Tensor

from transduce.model.inputs import TokenInput
from transduce.model.linear import FusedLinear, split_rows
from transduce.model.transformer import Transformer

Names = dict[str, str]
"""By the name of a parameter, or of a module, or of one map of a fused module, its name there. {}
is a layer's number."""

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
"""The names in an encoder or a decoder of Marian and of the models from fairseq."""


def _fairseq_decoder(prefix: str) -> Names:
    """The table of a model whose decoder has this name."""
    tables = {"target_input.weight": f"{prefix}.embed_tokens.weight", "output": "lm_head.weight"}
    return tables | {
        f"decoder.{ours}": f"{prefix}.{theirs}" for ours, theirs in FAIRSEQ_STACK.items()
    }


XGLM = _fairseq_decoder("model")
OPT = _fairseq_decoder("model.decoder") | {"decoder.norm": "model.decoder.final_layer_norm"}
ENCODER_DECODER: Names = {
    **_fairseq_decoder("model.decoder"),
    "source_input.weight": "model.encoder.embed_tokens.weight",
    **{f"encoder.{ours}": f"model.encoder.{theirs}" for ours, theirs in FAIRSEQ_STACK.items()},
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
    **{f"encoder.{ours}": f"encoder/{theirs}" for ours, theirs in CTRANSLATE2_STACK.items()},
    **{f"decoder.{ours}": f"decoder/{theirs}" for ours, theirs in CTRANSLATE2_STACK.items()},
}
"""CTranslate2's names of specifications, with slashes, and of their weights."""


def named_weights(model: Transformer, names: Names) -> dict[str, Tensor]:
    """The parameters of a model under the names of a family; they share memory with the model's.

    Rows that only fill up a table of tokens are left out. A table that is tied stands under each of
    its names. GPT-2's linear maps are stored transposed.
    """
    theirs: dict[str, Tensor] = {}
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
            fused_maps = model.get_submodule(path)
            assert isinstance(fused_maps, FusedLinear)
            fused = split_rows(fused_maps, weight)
            parts = {f"{module}.{part}": rows for part, rows in fused.items()}
        for part, rows in parts.items():
            stored = rows.t() if names is GPT2 else rows  # the vector of a norm stays as it is
            theirs[f"{names[part].format(*numbers)}.{kind}"] = stored
    return theirs
