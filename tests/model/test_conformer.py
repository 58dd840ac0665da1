"""The Conformer layer against torchaudio's with the same weights; nothing leaks from padding or from the batch."""

import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torchaudio.models.conformer import ConformerLayer as TheirLayer

from tests.contract import random_model
from transduce.config import from_dict, to_dict
from transduce.interop.ctranslate2 import check_ctranslate2
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.layers import ConformerLayer
from transduce.model.transformer import Transformer

D = 12
CONFIG = TransformerConfig(
    encoder=StackConfig(input=Frames(n_features=D), n_layers=3),
    decoder=StackConfig(input=Tokens(vocab_size=11), n_layers=1),
    d_model=D,
    n_heads=2,
    d_ff=17,
    dropout=0.0,
    activation="silu",
    norm_position="pre",
    positions="none",
    conformer_kernel=5,
)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of (N, channels, T), where torchaudio has norms over time as well."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def theirs_of(layer: ConformerLayer) -> nn.Module:
    """torchaudio's layer with the weights of ours and with its BatchNorm replaced."""
    theirs = TheirLayer(D, CONFIG.d_ff, CONFIG.n_heads, CONFIG.conformer_kernel, dropout=0.0).double().eval()
    convolution = theirs.conv_module.sequential
    assert isinstance(convolution[3], nn.BatchNorm1d)
    convolution[3] = ChannelNorm(D).double()
    pairs = {
        theirs.self_attn_layer_norm: layer.attention_sublayer.norm,
        theirs.self_attn.out_proj: layer.attention.output,
        theirs.conv_module.layer_norm: layer.convolution_sublayer.norm,
        convolution[0]: layer.convolution.pointwise,
        convolution[2]: layer.convolution.depthwise,
        convolution[3]: layer.convolution.norm,
        convolution[5]: layer.convolution.output,
        theirs.final_layer_norm: layer.norm,
    }
    for feed_forward, sublayer, own in (
        (theirs.ffn1, layer.first_feed_forward_sublayer, layer.first_feed_forward),
        (theirs.ffn2, layer.feed_forward_sublayer, layer.feed_forward),
    ):
        first, wide, *_, narrow, _ = feed_forward.sequential
        pairs |= {first: sublayer.norm, wide: own.wide, narrow: own.narrow}
    with torch.no_grad():
        for their, own in pairs.items():
            their.weight.copy_(own.weight.view_as(their.weight))
            their.bias.copy_(own.bias)
        theirs.self_attn.in_proj_weight.copy_(layer.attention.qkv.weight)
        theirs.self_attn.in_proj_bias.copy_(layer.attention.qkv.bias)
    copied = sum(p.numel() for pair in pairs for p in pair.parameters()) + 3 * D * D + 3 * D
    assert copied == sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in layer.parameters())
    return theirs


@pytest.mark.parametrize("steps", [1, 3, 20])
def test_layers_equal_those_of_torchaudio(rng, steps):
    """Values and gradients of the input, through three layers with weights of their own."""
    layers = random_model(CONFIG, rng).encoder.layers
    x = torch.randn(4, steps, D, generator=rng, dtype=torch.float64, requires_grad=True)
    got, want = x, x.transpose(0, 1)
    for layer in layers:
        assert type(layer) is ConformerLayer
        got, want = layer(got), theirs_of(layer)(want, None)
    torch.testing.assert_close(got, want.transpose(0, 1), rtol=1e-10, atol=1e-10)
    direction = torch.randn(got.shape, generator=rng, dtype=torch.float64)
    ours, other = ((y * direction).sum() for y in (got, want.transpose(0, 1)))
    (one,), (two,) = torch.autograd.grad(ours, x), torch.autograd.grad(other, x)
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


def test_training_mode_and_batch_do_not_change_outputs(rng):
    """With BatchNorm it would not."""
    model = random_model(CONFIG, rng)
    source, lengths = torch.randn(3, 9, D, generator=rng, dtype=torch.float64), torch.tensor([9, 4, 7])
    want = model.encode(source, lengths).states
    got = model.train().encode(source, lengths).states
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for row, length in enumerate(lengths.tolist()):
        alone = model.encode(source[row : row + 1, :length]).states[0]
        torch.testing.assert_close(alone, want[row, :length], rtol=0, atol=1e-12)


def test_the_decoder_has_plain_layers():
    model = Transformer(CONFIG)
    assert all(type(layer) is ConformerLayer for layer in model.encoder.layers)
    assert not any(isinstance(layer, ConformerLayer) for layer in model.decoder.layers)
    plain = Transformer(replace(CONFIG, conformer_kernel=0))
    assert not any(isinstance(module, ConformerLayer) for module in plain.modules())


@pytest.mark.parametrize("init", ["xavier", "gpt2"])
def test_initial_weights_follow_xavier_or_gpt2(init):
    torch.manual_seed(0)
    model = Transformer(replace(CONFIG, d_model=120, conformer_kernel=31, init=init))
    layer = model.encoder.layers[0].convolution
    if init == "gpt2":  # four sublayers in each of three layers
        assert layer.pointwise.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert layer.output.weight.std().item() == pytest.approx(0.02 / math.sqrt(12), rel=0.05)
        assert layer.depthwise.weight.std().item() == pytest.approx(0.02, rel=0.05)
        return
    for matrix in (*layer.pointwise.weight.split(120), layer.output.weight):  # value and gate each by itself
        bound = math.sqrt(6 / (120 + 120))
        assert 0.99 * bound < matrix.abs().max() <= bound
    bound = math.sqrt(6 / (31 + 31))
    assert 0.99 * bound < layer.depthwise.weight.abs().max() <= bound
    assert not any(part.bias.any() for part in (layer.pointwise, layer.depthwise, layer.output))


def test_old_configurations_have_no_conformer_layers():
    plain = to_dict(replace(CONFIG, conformer_kernel=0))
    del plain["conformer_kernel"]
    assert from_dict(TransformerConfig, plain, "config.json") == replace(CONFIG, conformer_kernel=0)


def test_ctranslate2_refuses_conformer_layers():
    text = replace(CONFIG, encoder=StackConfig(input=Tokens(vocab_size=11), n_layers=1), positions="sinusoidal")
    with pytest.raises(
        ValueError, match="CTranslate2 supports only conformer_kernel=0, but this model has conformer_kernel=5"
    ):
        check_ctranslate2(text)


@pytest.mark.parametrize(
    "changes",
    [{"conformer_kernel": 4}, {"norm_position": "post"}, {"n_experts": 2}, {"encoder": None}],
    ids=lambda changes: next(iter(changes)),
)
def test_incompatible_settings_are_refused(changes):
    got = {name: getattr(CONFIG, name) for name in ("encoder", "norm_position", "n_experts", "conformer_kernel")}
    got |= changes
    message = (
        "Conformer layers need an encoder with pre-norm, no experts and an odd conformer_kernel, but "
        f"there is {'an' if got['encoder'] else 'no'} encoder, norm_position={got['norm_position']}, n_experts={got['n_experts']} and "
        f"conformer_kernel={got['conformer_kernel']}; use conformer_kernel=0 (--model.conformer-kernel 0)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        replace(CONFIG, **changes)


FEW = """
import torch
from transduce.model.layers import ConvolutionModule
from transduce.model.presets import conformer_tiny
from dataclasses import replace
module = ConvolutionModule(replace(conformer_tiny(), d_model=16, n_heads=2)).bfloat16()
x = torch.randn(2, 64, 16)
print((module(x.bfloat16()).float() - module.float()(x)).abs().max().item())
"""


@pytest.mark.process
def test_bf16_convolution_with_few_channels_does_not_hang():
    """oneDNN's kernel for planes does not, for so many positions."""
    done = subprocess.run([sys.executable, "-c", FEW], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) < 0.05
