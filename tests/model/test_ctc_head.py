"""The CTC head: the linear map from memory to vocabulary that a CTC loss needs."""

import math
import re
from dataclasses import replace

import pytest
import torch

from tests.contract import random_example, random_model
from transduce.config import from_dict, to_dict
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

CONFIG = TransformerConfig(
    encoder=StackConfig(input=Frames(n_features=5, stack=3), n_layers=1),
    decoder=StackConfig(input=Tokens(vocab_size=31), n_layers=1),
    d_model=14,
    n_heads=2,
    d_ff=23,
    ctc=True,
)


def size(config: TransformerConfig) -> int:
    return sum(parameter.numel() for parameter in Transformer(config).parameters())


@pytest.mark.parametrize("tie", ["output", "none"])
def test_ctc_head_is_one_matrix_and_a_bias(tie):
    config = replace(CONFIG, tie=tie)
    assert size(config) - size(replace(config, ctc=False)) == 14 * 31 + 31


def test_ctc_logits_are_the_linear_map_written_out(rng):
    model = random_model(CONFIG, rng)
    states = random_example(CONFIG, rng).memory(model).states
    got = model.ctc_logits(states)
    assert got.shape == (3, 8, 31)  # 23 frames, stacked in threes
    for b, s, v in ((0, 0, 0), (1, 4, 30), (2, 7, 13)):
        want = sum(w * x for w, x in zip(model.ctc.weight[v].tolist(), states[b, s].tolist(), strict=True))
        assert got[b, s, v].item() == pytest.approx(want + model.ctc.bias[v].item(), rel=1e-12)


def test_initial_weights_are_xavier_uniform_and_biases_zero():
    torch.manual_seed(0)
    model = Transformer(replace(CONFIG, d_model=64))
    bound = math.sqrt(6 / (64 + 31))
    assert 0.99 * bound < model.ctc.weight.abs().max() <= bound
    assert abs(model.ctc.weight.std() / (bound / math.sqrt(3)) - 1) < 0.05
    assert torch.all(model.ctc.bias == 0)


def test_ctc_head_does_not_change_decoder_logits(rng):
    model, example = random_model(CONFIG, rng), random_example(CONFIG, rng)
    without = Transformer(replace(CONFIG, ctc=False)).double().eval()
    without.load_state_dict({name: w for name, w in model.state_dict().items() if not name.startswith("ctc.")})
    assert torch.equal(example.logits(without), example.logits(model))


def test_decode_equals_projected_decoder_states(rng):
    model, example = random_model(CONFIG, rng), random_example(CONFIG, rng)
    memory = example.memory(model)
    states = model.decoder_states(example.target, memory=memory)
    assert torch.equal(model.project(states), model.decode(example.target, memory=memory))


def test_old_configurations_have_no_ctc_head():
    plain = to_dict(replace(CONFIG, ctc=False))
    del plain["ctc"]
    assert from_dict(TransformerConfig, plain, "config.json") == replace(CONFIG, ctc=False)


@pytest.mark.parametrize(
    ("halves", "got"),
    [
        ({"encoder": CONFIG.encoder}, "there is no decoder"),
        ({"decoder": CONFIG.decoder}, "there is no encoder"),
    ],
    ids=["encoder", "decoder"],
)
def test_ctc_needs_an_encoder_and_a_decoder(halves, got):
    message = f"ctc=True maps the encoder's memory to the decoder's vocabulary and needs both, but {got}; use ctc=False"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TransformerConfig(**halves, ctc=True)


def test_ctc_logits_without_a_head_is_an_error(rng):
    model = random_model(replace(CONFIG, ctc=False), rng)
    message = "ctc_logits() needs a CTC head, but this model was built with ctc=False"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        model.ctc_logits(torch.zeros(1, 1, 14))
