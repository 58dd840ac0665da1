"""An encoder alone, as in masked language modelling, against two other libraries with the same weights."""

import pytest
import torch
import transformers
from torch import nn
from transformers.models.bert.modeling_bert import BertEncoder

from tests.contract import output_lengths, random_example, random_model
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

STACK = StackConfig(input=Tokens(vocab_size=29), n_layers=3)


def config(**fields) -> TransformerConfig:
    return TransformerConfig(encoder=STACK, d_model=14, n_heads=2, d_ff=23, dropout=0.0, **fields)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch says that pre-norm takes its slower path
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("tie", ["output", "none"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_logits_equal_torch_nn_transformer_encoder(norm_position, tie, rng):
    ours = random_model(config(norm_position=norm_position, activation="gelu", tie=tie), rng)
    layer = nn.TransformerEncoderLayer(
        14, 2, 23, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_position == "pre"
    )
    theirs = nn.TransformerEncoder(layer, 3, norm=ours.encoder.norm).double().eval()
    for a, b in zip(ours.encoder.layers, theirs.layers, strict=True):
        b.self_attn.in_proj_weight, b.self_attn.in_proj_bias = a.attention.qkv.weight, a.attention.qkv.bias
        b.self_attn.out_proj = a.attention.output
        b.linear1, b.linear2 = a.feed_forward.wide, a.feed_forward.narrow
        b.norm1, b.norm2 = a.attention_sublayer.norm, a.feed_forward_sublayer.norm
    example = random_example(ours.config, rng)
    with torch.no_grad():
        vectors, lengths = ours.source_input(example.source, example.source_lengths)
        padding = torch.arange(vectors.size(1)) >= lengths[:, None]  # there, True = ignore
        states = theirs(ours.encoder.positions(vectors), src_key_padding_mask=padding)
        got = example.logits(ours)
    table = ours.output if tie == "none" else ours.source_input.weight
    for row, length in enumerate(output_lengths(ours.config, example)):
        torch.testing.assert_close(got[row, :length], states[row, :length] @ table.T, rtol=0, atol=1e-10)


def test_states_equal_those_of_bert(rng):
    """Post-norm, GELU, learned positions; BERT's norm and segments before the stack are not part of ours."""
    ours = random_model(
        config(activation="gelu", positions="learned", max_positions=31, norm_eps=1e-12, scale_embeddings=False), rng
    )
    shape = transformers.BertConfig(
        hidden_size=14, num_hidden_layers=3, num_attention_heads=2, intermediate_size=23, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12, attn_implementation="eager",
    )  # fmt: skip
    theirs = BertEncoder(shape).double().eval()
    theirs.load_state_dict(bert_weights(ours))
    example = random_example(ours.config, rng)
    with torch.no_grad():
        embedded = ours.source_input.weight[example.source] + ours.encoder.positions.learned[: example.source.size(1)]
        got, want = ours.encode(example.source).states, theirs(embedded).last_hidden_state
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def bert_weights(ours: Transformer) -> dict[str, torch.Tensor]:
    """Our weights by BERT's names; maps that are fused here are separate there."""
    theirs = {}
    for i, layer in enumerate(ours.encoder.layers):
        for kind in ("weight", "bias"):
            fused = getattr(layer.attention.qkv, kind).chunk(3)
            parts = dict(zip(("query", "key", "value"), fused, strict=True))
            theirs |= {f"layer.{i}.attention.self.{name}.{kind}": part for name, part in parts.items()}
            for name, module in (
                ("attention.output.dense", layer.attention.output),
                ("attention.output.LayerNorm", layer.attention_sublayer.norm),
                ("intermediate.dense", layer.feed_forward.wide),
                ("output.dense", layer.feed_forward.narrow),
                ("output.LayerNorm", layer.feed_forward_sublayer.norm),
            ):
                theirs[f"layer.{i}.{name}.{kind}"] = getattr(module, kind)
    return theirs
