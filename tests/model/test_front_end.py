"""A front end of one's own is a class and its config: it gives its lengths, and its buffers are saved."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from tests.contract import GARBAGE
from transduce.files import read_weights, save_weights, set_weights
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

LENGTHS = torch.tensor([23, 18, 1])


@dataclass(frozen=True, kw_only=True)
class ConvolvedFrames(Frames):
    """Frames that two convolutions of stride 2 shorten."""

    def out_lengths(self, lengths):
        return -(-lengths // 4)


class ConvolvedInput(nn.Module):
    """Two convolutions with batch normalization; padding is zeroed before each, as they see frames to the right."""

    def __init__(self, frames: ConvolvedFrames, d_model: int) -> None:
        super().__init__()
        self.frames = frames
        self.first = nn.Conv1d(frames.n_features, d_model, 3, stride=2, padding=1)
        self.second = nn.Conv1d(d_model, d_model, 3, stride=2, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm1d(d_model) for _ in range(2))

    def forward(self, frames, lengths=None):
        x, halved = frames.transpose(1, 2), lengths
        for conv, norm in zip((self.first, self.second), self.norms, strict=True):
            if halved is not None:
                x = x.masked_fill((torch.arange(x.size(2)) >= halved[:, None])[:, None], 0.0)
                halved = -(-halved // 2)
            x = norm(conv(x)).relu()
        return x.transpose(1, 2), None if lengths is None else self.frames.out_lengths(lengths)


def convolved(seed: int) -> Transformer:
    torch.manual_seed(seed)
    frames = ConvolvedFrames(n_features=5)
    model = Transformer(
        TransformerConfig(
            encoder=StackConfig(input=frames, n_layers=2),
            decoder=StackConfig(input=Tokens(vocab_size=11), n_layers=1),
            d_model=14,
            n_heads=2,
            d_ff=17,
        )
    )
    model.source_input = ConvolvedInput(frames, 14)
    return model.double()


@pytest.fixture
def trained(rng) -> Transformer:
    """Its batch normalization has seen three batches."""
    model = convolved(1).train()
    for _ in range(3):
        model.encode(torch.randn(3, 23, 5, generator=rng, dtype=torch.float64) * 3 + 2, LENGTHS)
    return model.eval()


@torch.no_grad()
def test_padding_does_not_change_outputs_of_convolutions(trained, rng):
    frames = torch.randn(3, 23, 5, generator=rng, dtype=torch.float64)
    for row, length in enumerate(LENGTHS.tolist()):
        frames[row, length:] = GARBAGE
    target = torch.randint(11, (3, 7), generator=rng)
    memory = trained.encode(frames, LENGTHS)
    assert memory.lengths.tolist() == [6, 5, 1] and memory.states.shape == (3, 6, 14)
    logits = trained(source=frames, source_lengths=LENGTHS, target_in=target)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = trained(source=frames[row : row + 1, :length], target_in=target[row : row + 1])
        torch.testing.assert_close(logits[row], alone[0], rtol=0, atol=1e-12)


@torch.no_grad()
def test_batch_norm_statistics_are_saved_with_the_weights(trained, rng, tmp_path):
    frames = torch.randn(3, 23, 5, generator=rng, dtype=torch.float64)
    save_weights(tmp_path / "model.safetensors", trained)
    weights = read_weights(tmp_path / "model.safetensors")
    assert weights["source_input.norms.1.num_batches_tracked"].item() == 3
    other = convolved(2).eval()
    assert not torch.allclose(other.encode(frames, LENGTHS).states, trained.encode(frames, LENGTHS).states)
    set_weights(other, weights, "model.safetensors")
    assert torch.equal(other.encode(frames, LENGTHS).states, trained.encode(frames, LENGTHS).states)
    for name, tensor in trained.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    "frames",
    [*(Frames(n_features=2, stack=stack) for stack in (1, 3, 4)), Frames(n_features=2, conv_strides=(2, 1, 3))],
    ids=str,
)
def test_out_lengths_equal_the_lengths_of_the_input_layer(frames):
    """For one number, an array and a tensor, equal to the lengths that the encoder gets."""
    stack = frames.per_position
    config = TransformerConfig(encoder=StackConfig(input=frames, n_layers=1), d_model=2 * stack * 4, n_heads=1)
    lengths = torch.arange(1, 14)
    states, got = Transformer(config).eval().encode(torch.randn(13, 13, 2), lengths)
    assert torch.equal(frames.out_lengths(lengths), got) and states.size(1) == frames.out_lengths(13)
    assert frames.out_lengths(np.arange(1, 14)).tolist() == [len(range(0, n, stack)) for n in range(1, 14)]
