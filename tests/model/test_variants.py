"""Variants of the model, except their logits: angles, balance, recomputation, initial values, sizes, errors.

Their logits are in test_transformer.py (loops), test_against_transformers.py and test_contract.py.
"""

import cmath
import math
import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from tests.contract import GARBAGE, random_example, random_model
from tests.model.test_contract import CASES, EVERYTHING
from transduce.config import from_dict, to_dict
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig
from transduce.model.inputs import Positions, rotary, rotate
from transduce.model.layers import Experts, FeedForward, balance_loss
from transduce.model.presets import gpt2
from transduce.model.transformer import Transformer, cross_attention
from transduce.train.config import LossConfig
from transduce.train.objectives import CrossEntropy

TOKENS = StackConfig(input=Tokens(vocab_size=29), n_layers=2)
LANGUAGE = TransformerConfig(decoder=TOKENS, d_model=14, n_heads=2, d_ff=23, dropout=0.0)
TRANSLATION = replace(LANGUAGE, encoder=TOKENS)
EXPERTS = {"n_experts": 5, "experts_per_token": 2}


# Rotary positions


def test_rotary_is_a_complex_rotation(rng):
    """Su et al. (2021), equation 15, number by number; far from the start, too."""
    for start in (0, 9973):
        x = torch.randn(1, 1, 3, 6, generator=rng, dtype=torch.float64)
        got = rotate(x, rotary(start, start + 3, 6, 100.0))
        for t in range(3):
            for j in range(3):
                turned = complex(x[0, 0, t, j], x[0, 0, t, j + 3]) * cmath.exp(1j * (start + t) * 100.0 ** (-2 * j / 6))
                assert got[0, 0, t, j].item() == pytest.approx(turned.real, abs=1e-6)
                assert got[0, 0, t, j + 3].item() == pytest.approx(turned.imag, abs=1e-6)


def test_rotated_products_depend_on_the_distance_alone(rng):
    """Su et al. (2021), equation 11: what the rotation is for."""
    query, key = torch.randn(2, 1, 1, 1, 6, generator=rng, dtype=torch.float64)
    at = lambda t: rotary(t, t + 1, 6, 10000.0).double()
    products = [(rotate(query, at(t + 5)) * rotate(key, at(t))).sum().item() for t in (0, 7, 400)]
    assert products == pytest.approx([products[0]] * 3, abs=1e-6)
    assert (rotate(query, at(6)) * rotate(key, at(0))).sum().item() != pytest.approx(products[0], abs=1e-3)


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (3, 7), (5, 11), (7, 8), (101, 103)])
def test_rotary_angles_continue_beyond_the_table(start, stop):
    """Inside the table of seven rows, over its end, and beyond it."""
    layer = Positions(replace(LANGUAGE, positions="rotary", head_width=6, max_positions=7, rotary_theta=50.0))
    got = layer.distances(start, stop).rotation
    assert got is not None
    for t in range(start, stop):
        for j in range(3):
            angle = t * 50.0 ** (-2 * j / 6)
            assert got[:, t - start, j].tolist() == pytest.approx([math.cos(angle), math.sin(angle)], abs=1e-7)
    assert not list(layer.parameters()) and not layer.state_dict()
    x = torch.randn(2, 3, 14)
    assert layer(x, start) is x


def test_only_rotary_positions_rotate():
    assert Positions(LANGUAGE).distances(0, 5).rotation is None


def test_attention_maps_support_every_variant(rng):
    """The weights that maps.py finds, times the values, are what cross-attention gives in the model itself."""
    model = random_model(replace(CASES["tokens-tokens-everything"]), rng)
    example, seen = random_example(model.config, rng), []
    layers = model.decoder.layers
    for layer in layers:
        layer.cross.output.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        memory = example.memory(model)
        model.decode(example.target, memory=memory)
    for layer, got, heads in zip(layers, cross_attention(model, memory, example.target), list(seen), strict=False):
        value = layer.cross.project(memory).value.repeat_interleave(3, dim=1)  # 6 heads over 2
        want = torch.einsum("bhts,bhse->bthe", got, value).flatten(2)
        torch.testing.assert_close(heads.reshape(want.shape), want, rtol=0, atol=1e-10)


# Experts


def test_balance_loss_is_the_formula_written_out(rng):
    """Fedus et al. (2021), equations 4 to 6, one position at a time; the second row has 7 of 11."""
    scores, lengths = torch.randn(2, 11, 5, generator=rng, dtype=torch.float64), torch.tensor([11, 7])
    shares, means, n = [0.0] * 5, [0.0] * 5, 18
    for row, length in zip(scores.tolist(), lengths.tolist(), strict=True):
        for position in row[:length]:
            odds = [math.exp(score) for score in position]
            for x in sorted(range(5), key=lambda x: -odds[x])[:2]:
                shares[x] += 1 / n
            means = [mean + odd / sum(odds) / n for mean, odd in zip(means, odds, strict=True)]
    want = 5 * sum(f * p for f, p in zip(shares, means, strict=True))
    assert balance_loss(scores, 2, lengths).item() == pytest.approx(want, abs=1e-12)
    scores[1, 7:] = GARBAGE
    assert balance_loss(scores, 2, lengths).item() == pytest.approx(want, abs=1e-12)


def test_balance_loss_is_least_for_equally_used_experts():
    """Section 2.2: with one expert per token, it is 1 if all are used equally, and X if one does everything."""
    assert balance_loss(20 * torch.eye(5)[None], 1).item() == pytest.approx(1.0, abs=1e-6)
    assert balance_loss(20 * torch.eye(5)[[2] * 5][None], 1).item() == pytest.approx(5.0, abs=1e-6)


def test_identical_experts_equal_one_feed_forward(rng):
    config = replace(LANGUAGE, **EXPERTS)
    one, many = FeedForward(config), Experts(config)
    for expert in many.experts:
        expert.load_state_dict(one.state_dict())
    x = torch.randn(2, 11, 14, generator=rng)
    torch.testing.assert_close(many(x), one(x), rtol=0, atol=1e-6)


def test_unused_experts_have_zero_gradients(rng):
    """And not None: DistributedDataParallel waits for the gradient of every parameter."""
    layer = Experts(replace(LANGUAGE, **EXPERTS))
    nn.init.zeros_(layer.router.weight)
    layer(torch.randn(1, 3, 14, generator=rng)).sum().backward()
    busy = [bool(expert.wide.weight.grad.any()) for expert in layer.experts]
    assert sum(busy) == 2
    assert all(parameter.grad is not None for parameter in layer.parameters())


@dataclass(frozen=True)
class Rows:
    """A batch as the losses read it."""

    source: torch.Tensor
    source_lengths: torch.Tensor
    target_in: torch.Tensor
    target_out: torch.Tensor
    target_lengths: torch.Tensor
    host_lengths: None = None
    ctc_targets: None = None
    ctc_target_lengths: None = None
    second_source: None = None

    @property
    def n_tokens(self) -> int:
        """As data/batch.py counts them."""
        return int(self.target_lengths.sum())


def rows(rng: torch.Generator) -> Rows:
    """Two rows, of 7 and 5 tokens."""
    source, target_in, target_out = (torch.randint(1, 29, (2, n), generator=rng) for n in (11, 7, 7))
    target_out[1, 5:] = -100
    return Rows(source, torch.tensor([11, 11]), target_in, target_out, torch.tensor([7, 5]))


@pytest.mark.parametrize("ctc", [False, True])
def test_balance_loss_is_added_in_training_only(ctc, rng):
    """Per token, so 12 times; four layers' losses, two of them over the source."""
    config = replace(TRANSLATION, **EXPERTS, ctc=ctc, balance_weight=0.25)
    model, batch = Transformer(config), rows(rng)
    objective = CrossEntropy(model, LossConfig(ctc_weight=0.3 * ctc))
    got: list[torch.Tensor] = []
    hooks = [
        m.router.register_forward_hook(lambda *a: got.append(a[2])) for m in model.modules() if hasattr(m, "router")
    ]
    trained, parts = objective.train()(batch)
    lengths = [batch.source_lengths] * 2 + [batch.target_lengths] * 2
    want = 12 * 0.25 * sum(balance_loss(s, 2, n) for s, n in zip(got, lengths, strict=True))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(trained - objective.eval()(batch).total, want, rtol=0, atol=1e-4)
    torch.testing.assert_close(parts["balance"], want.detach())
    assert "balance" not in objective(batch).parts
    router = model.decoder.layers[0].feed_forward.router.weight
    with_balance = torch.autograd.grad(objective.train()(batch).total, router)[0]
    assert not torch.allclose(with_balance, torch.autograd.grad(objective.eval()(batch).total, router)[0])


# Recomputation


@pytest.mark.parametrize("fields", [{}, EVERYTHING | {"n_heads": 6}], ids=["plain", "everything"])
def test_recomputed_layers_have_the_same_loss_and_gradients_with_dropout(fields, rng):
    batch, gradients, calls = rows(rng), [], []
    for recompute in (False, True):
        torch.manual_seed(5)
        config = replace(TRANSLATION, **fields, dropout=0.3, attention_dropout=0.2, recompute=recompute)
        model = Transformer(config).train()
        seen: list[int] = []
        model.decoder.layers[0].attention.qkv.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        loss = CrossEntropy(model)(batch).total
        loss.backward()
        gradients.append([loss, *(p.grad for p in model.parameters())])
        calls.append(len(seen))
        model.eval()
        CrossEntropy(model)(batch)
        assert len(seen) == calls[-1] + 1
    assert calls == [1, 2]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


# Initial values


def test_initial_gpt2_weights_follow_the_paper():
    """Normal with 0.02; residual maps with 0.02 / sqrt(2 n_layers), or sqrt(3 n_layers) with cross-attention."""
    torch.manual_seed(0)
    small = replace(gpt2(211), d_model=96, d_ff=384, n_heads=4)
    stack = StackConfig(input=Tokens(vocab_size=211), n_layers=3)
    for config, residuals in ((replace(small, decoder=stack), 6), (replace(small, encoder=stack, decoder=stack), 9)):
        model = Transformer(config)
        for name, parameter in model.decoder.named_parameters():
            if parameter.dim() == 1:
                assert torch.all(parameter == float("norm.weight" in name)), name
            else:
                residual = name.endswith(("output.weight", "narrow.weight"))
                want = 0.02 / math.sqrt(residuals) if residual else 0.02
                assert abs(parameter.std().item() / want - 1) < 0.05, name
        assert abs(model.output.std().item() / 0.02 - 1) < 0.05


def test_initial_gated_and_grouped_matrices_are_xavier_per_part():
    """Glorot and Bengio (2010), equation 16."""
    torch.manual_seed(0)
    layer = Transformer(replace(TRANSLATION, d_model=64, n_heads=4, n_kv_heads=2, d_ff=192, gated=True)).decoder.layers[
        0
    ]
    fused = [*layer.attention.qkv.weight.split([64, 32, 32]), *layer.cross.kv.weight.split([32, 32])]
    for matrix in (*fused, *layer.feed_forward.wide.weight.split([192, 192])):
        bound = math.sqrt(6 / sum(matrix.shape))
        assert 0.98 * bound < matrix.abs().max() <= bound


# Sizes


def size(config: TransformerConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


@pytest.mark.parametrize(
    ("printed", "layers", "width"),
    [
        (124_439_808, 12, 768),
        (354_823_168, 24, 1024),
        (774_030_080, 36, 1280),
        (1_557_611_200, 48, 1600),
    ],
)
def test_sizes_of_gpt2_are_those_of_the_published_weights(printed, layers, width):
    """And of the formula: a table of tokens and one of positions, layers of 12 D^2 + 13 D, a last norm."""
    config = replace(gpt2(n_layers=layers), d_model=width, d_ff=4 * width, n_heads=width // 64)
    assert size(config) == printed == (50257 + 1024) * width + layers * (12 * width**2 + 13 * width) + 2 * width
    assert config.d_head == 64


def test_sizes_of_the_variants_by_formula():
    """Two layers of D = 14, F = 23, vocabulary 29."""
    plain = size(LANGUAGE)
    attention, wide = 4 * 14 * 14, 2 * 14 * 23
    assert plain == 29 * 14 + 2 * (attention + 4 * 14 + wide + 23 + 14 + 2 * 2 * 14)
    assert size(replace(LANGUAGE, bias=False)) == 29 * 14 + 2 * (attention + wide + 2 * 14)
    assert size(replace(LANGUAGE, norm="rms")) == plain - 2 * 2 * 14
    assert size(replace(LANGUAGE, gated=True)) == plain + 2 * (14 * 23 + 23)
    assert size(replace(LANGUAGE, n_kv_heads=1)) == plain - 2 * 2 * (7 * 14 + 7)
    assert size(replace(LANGUAGE, head_width=10)) == plain + 2 * (4 * 6 * 14 + 3 * 6)
    assert size(replace(LANGUAGE, qk_norm=True)) == plain + 2 * 2 * 7
    assert size(replace(LANGUAGE, **EXPERTS)) == plain + 2 * (4 * (wide + 23 + 14) + 5 * 14)
    speech = replace(TRANSLATION, encoder=StackConfig(input=Frames(n_features=5, stack=3), n_layers=2), ctc=True)
    names = [name for name, _ in Transformer(replace(speech, bias=False)).named_parameters()]
    assert not [name for name in names if name.endswith("bias")]


# Configurations


def test_old_configurations_load_with_the_papers_defaults():
    """Files without the new fields load, and mean what they meant."""
    old = to_dict(TRANSLATION)
    new = set(EVERYTHING) - {"positions", "max_positions", "activation", "n_heads"}
    for name in {*new, "balance_weight", "init", "recompute"}:
        del old[name]
    assert from_dict(TransformerConfig, old, "config.json") == TRANSLATION
    everything = CASES["tokens-tokens-everything"]
    assert from_dict(TransformerConfig, to_dict(everything), "config.json") == everything


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_kv_heads": 0}, "n_kv_heads=0"),
        ({"head_width": 0}, "head_width=0"),
        ({"window": 0}, "window=0"),
        ({"n_kv_heads": 3}, "n_kv_heads must divide n_heads, but n_kv_heads=3 and n_heads=2"),
        (
            {"positions": "rotary"},
            "rotary positions need heads of an even width, but theirs is 7; set head_width",
        ),
        ({"rotary_theta": 1.0}, "rotary_theta=1.0"),
        (
            {"attention": "linear", "window": 5},
            "linear attention sums over all positions, without a window, but window=5; use window=None "
            "(--model.window None), or attention='softmax'",
        ),
        (
            {"attention": "linear", "head_width": 6, "decoder": replace(TOKENS, positions="rotary")},
            "rotary positions are for softmax attention, and relative ones for softmax attention without a window, but "
            "positions='rotary', attention='linear' and window=None; use other positions (--model.decoder.positions "
            "sinusoidal), or attention='softmax' without a window",
        ),
        (
            {"attention": "linear", "head_width": 6, "positions": "rotary", "window": 5},
            "window=5; use window=None (--model.window None), or attention='softmax'",
        ),
        (
            {"attention": "linear", "positions": "relative"},
            "attention='linear' and window=None; use other positions (--model.positions sinusoidal), or attention=",
        ),
        ({"n_experts": -1}, "n_experts=-1"),
        ({"experts_per_token": 0}, "experts_per_token=0"),
        ({"n_experts": 1}, "experts_per_token=2"),
        ({"balance_weight": -0.5}, "balance_weight=-0.5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_variants_are_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(LANGUAGE, **fields)


def test_head_width_need_not_divide_d_model():
    assert replace(LANGUAGE, n_heads=3, head_width=8).d_head == 8


def test_bf16_training_of_all_variants_has_no_warnings(rng):
    """Warnings are errors here: PyTorch would warn once about a kernel that is not fused, and stay slow."""
    config = replace(CASES["decoder-everything"], d_model=32, d_ff=48, dropout=0.0)
    # rounding would choose another expert where two are nearly as good
    config = replace(config, experts_per_token=config.n_experts)
    model = Transformer(config).train()
    ids = torch.randint(31, (3, 19), generator=rng)
    want = model(target_in=ids)
    with torch.autocast("cpu", torch.bfloat16):
        got = model(target_in=ids)
    got.float().logsumexp(-1).sum().backward()
    assert (got - want).abs().max() < 0.03 * want.abs().max()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
