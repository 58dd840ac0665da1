"""A model made on the meta device and filled with weights equals one that was built and loaded."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from transduce.files import weights_of
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.meta import blank_transformer, filled_transformer
from transduce.model.transformer import Transformer

STACK = StackConfig(input=Tokens(vocab_size=11, multiple=4), n_layers=2)
CONFIG = TransformerConfig(encoder=STACK, decoder=STACK, d_model=12, n_heads=2, d_ff=20, dropout=0.0, max_positions=9)
CPU = torch.device("cpu")

SOURCE, TARGET = torch.arange(10).view(2, 5), torch.arange(6).view(2, 3)


@pytest.mark.parametrize(
    "changes",
    [
        *({"tie": tie, "output_bias": True} for tie in ("all", "output", "none")),
        {"positions": "rotary", "norm_position": "pre"},
        {"positions": "learned", "encoder": replace(STACK, positions="sinusoidal", max_positions=4), "ctc": True},
    ],
    ids=str,
)
def test_filled_model_equals_the_built_model(changes):
    model = Transformer(replace(CONFIG, **changes)).eval()
    state = torch.get_rng_state()
    filled = filled_transformer(model.config, weights_of(model), "here", CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert not filled.training and all(parameter.requires_grad for parameter in filled.parameters())
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in filled.named_parameters()] == names == list(weights_of(filled))
    for (name, got), (other, want) in zip(filled.named_buffers(), model.named_buffers(), strict=True):
        assert name == other and torch.equal(got, want)
    logits = filled(source=SOURCE, target_in=TARGET)
    assert torch.equal(logits, model(source=SOURCE, target_in=TARGET))
    weight = filled.target_input.weight  # a tied table is one for its gradient, too
    (gradient,) = torch.autograd.grad(logits.sum(), weight)
    (want,) = torch.autograd.grad(model(source=SOURCE, target_in=TARGET).sum(), model.target_input.weight)
    assert torch.equal(gradient, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_of_other_dtypes_become_float32_copies(dtype):
    model = Transformer(CONFIG).to(dtype)
    filled = filled_transformer(CONFIG, weights_of(model), "here", CPU)
    again = filled_transformer(CONFIG, weights_of(filled), "here", CPU)
    for (name, weight), same in zip(filled.named_parameters(), again.parameters(), strict=True):
        assert weight.dtype == torch.float32 and torch.equal(weight, model.get_parameter(name).float())
        assert same.data_ptr() != weight.data_ptr()


def test_default_dtype_does_not_round_weights():
    model = Transformer(CONFIG)
    torch.set_default_dtype(torch.bfloat16)
    try:
        filled = filled_transformer(CONFIG, weights_of(model), "here", CPU)
    finally:
        torch.set_default_dtype(torch.float32)
    for got, want in zip(filled.parameters(), model.parameters(), strict=True):
        assert got.dtype == torch.float32 and torch.equal(got, want)


def test_weights_that_do_not_fit_are_refused():
    weights = weights_of(Transformer(CONFIG))
    del weights["decoder.layers.0.cross.q.bias"]
    with pytest.raises(ValueError) as caught:
        filled_transformer(CONFIG, weights, "a.safetensors", CPU)
    assert str(caught.value) == (
        "weights must fit the configuration, but in a.safetensors decoder.layers.0.cross.q.bias is missing"
    )


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_blank_model_has_identity_norms_and_zeros_elsewhere(norm):
    model = blank_transformer(replace(CONFIG, norm=norm, qk_norm=True))
    assert model.output is model.target_input.weight
    for name, weight in weights_of(model).items():
        ones = name.endswith(("norm.weight", "norm.query.weight", "norm.key.weight"))
        assert torch.equal(weight, torch.full_like(weight, float(ones))), name


@pytest.mark.process
def test_counting_and_blank_models_do_not_import_sympy():
    """Random numbers and arithmetic on the device meta import sympy and 900 other modules, which takes a second."""
    code = """
import sys
from transduce.model.presets import conformer_small, gpt2, transformer_base
from transduce.model.meta import blank_transformer
from transduce.model.meta import n_parameters
for config in (conformer_small(), gpt2(), transformer_base()):
    n_parameters(config)
blank_transformer(conformer_small())
sys.exit("sympy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
