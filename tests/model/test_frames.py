"""Frames as the encoder's input: without a map where they fit, and then the usual Transformer."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"

import torch.nn.functional as F
from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration, WhisperConfig
from transformers.models.speech_to_text.modeling_speech_to_text import Conv1dSubsampler
from transformers.models.whisper.modeling_whisper import WhisperEncoder
from transformers.utils import logging

from transduce.experiment.config import with_frames
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.inputs import ConvolvedInput
from transduce.model.presets import speech_tiny, transformer_tiny
from transduce.model.transformer import Transformer


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    logging.set_verbosity_error()


def model_of(frames: Frames, **settings) -> Transformer:
    """Two layers of width 12 over these frames."""
    torch.manual_seed(1)
    config = TransformerConfig(
        encoder=StackConfig(input=frames, n_layers=2),
        decoder=StackConfig(input=Tokens(vocab_size=11), n_layers=1),
        **({"d_model": 12, "n_heads": 2, "d_ff": 17, "norm_position": "pre"} | settings),
    )
    return Transformer(config).eval()


def encoder_input(model: Transformer, frames: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The input of the encoder's first layer."""
    seen = []
    handle = model.encoder.layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model.encode(frames, lengths)
    handle.remove()
    return seen[0]


def stacked(frames: np.ndarray, lengths: list[int], stack: int) -> np.ndarray:
    """By hand: position p holds the frames stack * p ... stack * p + stack - 1 side by side, zeros after the last."""
    rows, n_frames, n_features = frames.shape
    got = np.zeros((rows, -(-n_frames // stack), stack * n_features), dtype=frames.dtype)
    for row, length in enumerate(lengths):
        for t in range(length):
            start = t % stack * n_features
            got[row, t // stack, start : start + n_features] = frames[row, t]
    return got


@pytest.fixture
def batch(rng) -> tuple[torch.Tensor, torch.Tensor]:
    """Garbage beyond the lengths: the front end zeroes it."""
    return torch.randn(3, 11, 4, generator=rng) * 100, torch.tensor([11, 7, 1])


def test_frames_that_fit_reach_the_encoder_bit_for_bit(batch):
    model = model_of(Frames(n_features=4, stack=3), positions="none")
    assert list(model.source_input.parameters()) == []
    want = stacked(batch[0].numpy(), batch[1].tolist(), 3)
    assert np.array_equal(encoder_input(model, *batch).numpy(), want)


def test_only_positions_are_added_to_fitting_frames(batch):
    got = encoder_input(model_of(Frames(n_features=4, stack=3)), *batch).numpy()
    p, i = np.mgrid[:4, :12]
    angle = p / 10000 ** (2 * (i // 2) / 12)
    want = stacked(batch[0].numpy(), batch[1].tolist(), 3) + np.where(i % 2, np.cos(angle), np.sin(angle))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "frames", [Frames(n_features=4, stack=2), Frames(n_features=4, stack=3, project=True)], ids=str
)
def test_other_frames_pass_one_linear_map(batch, frames):
    model = model_of(frames, positions="none")
    assert {name: tuple(p.shape) for name, p in model.source_input.named_parameters()} == {
        "projection.weight": (12, frames.width), "projection.bias": (12,),
    }  # fmt: skip
    weight, bias = (p.detach().double().numpy() for p in model.source_input.parameters())
    want = stacked(batch[0].double().numpy(), batch[1].tolist(), frames.stack) @ weight.T + bias
    np.testing.assert_allclose(encoder_input(model, *batch).numpy(), want, rtol=0, atol=1e-4)


def test_project_adds_one_linear_map():
    straight = speech_tiny()
    projected = replace(straight, encoder=replace(straight.encoder, input=replace(straight.frames, project=True)))
    sizes = [sum(p.numel() for p in Transformer(config).parameters()) for config in (straight, projected)]
    assert sizes[1] - sizes[0] == 160 * 160 + 160
    assert straight.encoder.input.width == straight.d_model == 160
    assert straight.input_description == "40 features x 4 frames = 160 numbers per position = d_model: straight in"
    assert (
        projected.input_description
        == "40 features x 4 frames = 160 numbers per position = d_model: one linear map, as project=True"
    )


def test_input_description_names_the_d_model_without_a_map():
    config = with_frames(speech_tiny(), 13, 300)
    assert config.input_description == (
        "13 features x 4 frames = 52 numbers per position, one linear map to d_model=160; d_model=52 would need none"
    )
    assert config.decoder.input.vocab_size == 300
    fits = TransformerConfig(**(vars(config) | {"d_model": 52}))
    assert isinstance(Transformer(fits).source_input.projection, torch.nn.Identity)


def test_text_models_are_refused_for_speech():
    with pytest.raises(ValueError) as error:
        with_frames(transformer_tiny(), 40, 300)
    assert str(error.value).startswith("speech needs an encoder that takes Frames, but this model's takes tokens")


@pytest.mark.parametrize("n", [1, 2, 7, 23])
@pytest.mark.parametrize("kind", ["whisper", "speech2text"])
def test_convolutions_equal_those_of_whisper_and_speech2text(rng, kind, n):
    """And garbage after a shorter row, which their models would see, changes nothing."""
    if kind == "whisper":
        config = WhisperConfig(d_model=12, num_mel_bins=5, encoder_layers=1, encoder_attention_heads=2)
        encoder = WhisperEncoder(config)
        own = Frames(n_features=5, conv_strides=(1, 2))
        theirs = [encoder.conv1, encoder.conv2]

        def rival(x: torch.Tensor) -> torch.Tensor:
            return F.gelu(encoder.conv2(F.gelu(encoder.conv1(x.mT)))).mT

    else:
        config = Speech2TextConfig(d_model=12, input_feat_per_channel=5, conv_channels=14, conv_kernel_sizes=(5, 5))
        rival = Conv1dSubsampler(config)
        own = Frames(n_features=5, conv_strides=(2, 2), conv_kernel=5, conv_channels=7, conv_activation="glu")
        theirs = list(rival.conv_layers)
    ours, frames = ConvolvedInput(own, 12), torch.randn(2, n + 6, 5, generator=rng) * 100
    for convolution, other in zip(ours.convolutions, theirs, strict=True):
        convolution.load_state_dict(other.state_dict())
    with torch.no_grad():
        got, lengths = ours(frames, torch.tensor([n, n + 6]))
        for row, length in enumerate((n, n + 6)):
            want = rival(frames[row : row + 1, :length])[0]
            assert lengths[row] == len(want) == own.out_lengths(length)
            torch.testing.assert_close(got[row, : len(want)], want, rtol=1e-5, atol=1e-4)


def test_initial_convolutions_follow_xavier_or_gpt2():
    """Xavier's bounds, sqrt(6 / (what comes in + what goes out)), and no bias; all smaller in GPT-2's way."""
    for init, bound in (("xavier", (6 / (3 * 4 + 3 * 12)) ** 0.5), ("gpt2", 6 * 0.02)):
        model = model_of(Frames(n_features=4, conv_strides=(2, 2)), init=init, positions="none")
        first = model.source_input.convolutions[0]
        assert bound / 3 < first.weight.abs().max() <= bound and not first.bias.any(), init
    assert model.config.input_description == "4 features, convolutions with strides 2 and 2: a position for 4 frames"


def copy_encoder(rival: nn.Module, ours: nn.Module) -> None:
    """Copy the other library's weights into our encoder stack, name by name."""

    def put(linear: nn.Module, *others: nn.Module) -> None:
        linear.weight.copy_(torch.cat([other.weight for other in others]))
        linear.bias.copy_(torch.cat([other.bias for other in others]))

    with torch.no_grad():
        for layer, other in zip(ours.layers, rival.layers, strict=True):
            attention = other.self_attn
            put(layer.attention.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
            put(layer.attention.output, attention.out_proj)
            put(layer.attention_sublayer.norm, other.self_attn_layer_norm)
            put(layer.feed_forward.wide, other.fc1)
            put(layer.feed_forward.narrow, other.fc2)
            put(layer.feed_forward_sublayer.norm, other.final_layer_norm)
        put(ours.norm, rival.layer_norm)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_equals_that_of_speech2text(batch, rng, activation):
    """Without its convolutions and its positions, which are laid out differently."""
    config = Speech2TextConfig(
        vocab_size=11, d_model=12, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=17, decoder_layers=1,
        decoder_attention_heads=2, decoder_ffn_dim=17, num_conv_layers=0, conv_kernel_sizes=[], input_feat_per_channel=12,
        activation_function=activation, scale_embedding=False, attn_implementation="eager",
    )  # fmt: skip
    rival = Speech2TextForConditionalGeneration(config).eval().model.encoder
    with torch.no_grad():
        for parameter in rival.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.3)
        rival.embed_positions.weights.zero_()
    ours = model_of(Frames(n_features=4, stack=3), positions="none", activation=activation)
    copy_encoder(rival, ours.encoder)
    lengths = [4, 3, 1]
    vectors = torch.from_numpy(stacked(batch[0].numpy() / 100, batch[1].tolist(), 3))
    seen = (torch.arange(4) < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        want = rival(vectors, attention_mask=seen).last_hidden_state
        got = ours.encode(batch[0] / 100, batch[1])
    assert got.lengths.tolist() == lengths
    for row, length in enumerate(lengths):
        assert want[row, :length].std() > 0.1
        torch.testing.assert_close(got.states[row, :length], want[row, :length], rtol=0, atol=1e-5)
