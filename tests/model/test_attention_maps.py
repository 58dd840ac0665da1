"""Where the decoder looks: the weights that its output is made of, and how straight they run."""

import math

import numpy as np
import pytest
import torch

from tests import contract
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import cross_attention, self_attention

CONFIG = TransformerConfig(
    encoder=StackConfig(input=Frames(n_features=5, stack=3), n_layers=2),
    decoder=StackConfig(input=Tokens(vocab_size=31), n_layers=3),
    d_model=14,
    n_heads=2,
    d_ff=23,
)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_weights_times_values_equal_the_cross_attention_output(norm, rng):
    model = contract.random_model(TransformerConfig(**(vars(CONFIG) | {"norm_position": norm})), rng)
    example = contract.random_example(model.config, rng)
    seen = []
    for layer in model.decoder.layers:
        layer.cross.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs, output)))
    with torch.no_grad():
        memory = example.memory(model)
        model.decode(example.target, memory=memory)
    watched = list(seen)
    weights = cross_attention(model, memory, example.target)
    n_places = -(-contract.SOURCE // 3)
    assert weights.shape == (3, contract.ROWS, 2, contract.TARGET, n_places)
    for (module, (_, context), output), got in zip(watched, weights, strict=True):
        value, lengths = module.project(context.memory).value.detach(), context.memory.lengths
        heads = np.einsum("bhts,bhse->bthe", got.numpy(), value.numpy())
        joined = heads.reshape(contract.ROWS, contract.TARGET, 14)
        want = joined @ module.output.weight.detach().numpy().T + module.output.bias.detach().numpy()
        np.testing.assert_allclose(output.numpy(), want, rtol=0, atol=1e-10)
        np.testing.assert_allclose(got.sum(dim=-1).numpy(), 1.0, rtol=0, atol=1e-12)
        for row, length in enumerate(lengths.tolist()):
            assert torch.all(got[row, :, :, length:] == 0) and torch.all(got[row, :, :, :length] > 0)


@torch.no_grad()
def test_the_first_layers_weights_are_the_formula_written_out(rng):
    """By hand for one head and one step, from nothing but parameters and memory."""
    model = contract.random_model(TransformerConfig(**(vars(CONFIG) | {"positions": "none"})), rng)
    memory = contract.random_example(model.config, rng).memory(model)
    got = cross_attention(model, memory, torch.tensor([[7]] * contract.ROWS))
    layer = model.decoder.layers[0]
    x = model.target_input.weight[7] * math.sqrt(14)
    x = layer.attention_sublayer(x[None, None], layer.attention)[0, 0]
    query = (layer.cross.q.weight @ x + layer.cross.q.bias)[7:]
    keys = [(layer.cross.kv.weight @ state + layer.cross.kv.bias)[7:14] for state in memory.states[1]]
    exps = [math.exp(float(query @ key) / math.sqrt(7)) for key in keys[: int(memory.lengths[1])]]
    want = torch.tensor([e / sum(exps) for e in exps], dtype=torch.float64)
    torch.testing.assert_close(got[0, 1, 1, 0, : len(exps)], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("half", [{"encoder": None}, {"decoder": None}])
def test_cross_attention_maps_need_an_encoder_and_a_decoder(half, rng):
    model = contract.random_model(TransformerConfig(**(vars(CONFIG) | half)), rng)
    memory = contract.random_example(CONFIG, rng).memory(contract.random_model(CONFIG, rng))
    with pytest.raises(ValueError) as error:
        cross_attention(model, memory, torch.tensor([[7]] * contract.ROWS))
    assert str(error.value) == ("cross-attention needs an encoder and a decoder, but this model has one of them only")


@pytest.mark.parametrize("half", ["encoder", "decoder"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"positions": "rotary"},
        {"window": 2},
        {"qk_norm": True, "n_heads": 2, "n_kv_heads": 1, "norm_position": "pre"},
    ],
    ids=str,
)
def test_weights_times_values_equal_the_self_attention_output(half, fields, rng):
    """The values are those of the matrix qkv, written out; weights are 0 in the future, beyond a window and on padding."""
    stack = StackConfig(input=Tokens(vocab_size=31), n_layers=3)
    config = TransformerConfig(encoder=stack, decoder=stack, **{"d_model": 14 * 2, "n_heads": 2, "d_ff": 23, **fields})
    model = contract.random_model(config, rng)
    example = contract.random_example(config, rng)
    seen = []
    for layer in getattr(model, half).layers:
        layer.attention.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs[0], output)))
    with torch.no_grad():
        memory = example.memory(model)
        model.decode(example.target, memory=memory)
    watched = list(seen)
    if half == "encoder":
        got = self_attention(model, source=example.source, source_lengths=example.source_lengths)
    else:
        got = self_attention(model, target_in=example.target, memory=memory)
    assert len(got) == len(watched) == 3
    for (module, x, output), weights in zip(watched, got, strict=True):
        value = module.qkv(x).detach()[..., -module.qkv.widths["v"] :].unflatten(-1, (-1, 14)).numpy()
        value = value.repeat(2 // value.shape[2], axis=2)
        heads = np.einsum("nhts,nshe->nthe", weights.numpy(), value).reshape(*x.shape[:2], -1)
        want = heads @ module.output.weight.detach().numpy().T + module.output.bias.detach().numpy()
        np.testing.assert_allclose(output.detach().numpy(), want, rtol=0, atol=1e-10)
        n = weights.size(-1)
        t, s = np.mgrid[:n, :n]
        may = (abs(t - s) < fields.get("window", n)) & ((half == "encoder") | (s <= t))
        assert (weights.numpy()[..., ~may] == 0).all()
        if half == "encoder":
            for row, length in enumerate(example.source_lengths.tolist()):
                assert (weights[row, :, :, length:] == 0).all()


def test_invalid_requests_for_self_attention_maps_are_refused(rng):
    """A missing half, both halves at once, and linear attention are refused."""
    config = TransformerConfig(
        decoder=StackConfig(input=Tokens(vocab_size=31), n_layers=1), d_model=14, n_heads=2, d_ff=23
    )
    model, ids = contract.random_model(config, rng), torch.tensor([[7, 8]])
    for given in ({}, {"source": ids}, {"source": ids, "target_in": ids}):
        with pytest.raises(ValueError, match="give the one that fits"):
            self_attention(model, **given)
    linear = contract.random_model(TransformerConfig(**(vars(config) | {"attention": "linear"})), rng)
    with pytest.raises(ValueError, match="attention='linear' has no weights"):
        self_attention(linear, target_in=ids)
