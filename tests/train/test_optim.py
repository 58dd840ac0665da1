"""The learning rate against the paper's formula; the optimizer against Adam written out."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import get_polynomial_decay_schedule_with_warmup

from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.optim import OptimConfig, optimizer, step

LAST = 1_000_000
"""Of no matter to a schedule that is no cosine."""


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (1024, 4000), (128, 37)])
def test_schedule_equals_that_of_the_paper(d_model, warmup):
    """Vaswani et al. (2017), equation 3."""
    config = OptimConfig(peak_rate=(d_model * warmup) ** -0.5, warmup_steps=warmup)
    for n in (1, 2, 10, warmup - 1, warmup, warmup + 1, 2 * warmup, 100_000):
        assert config.rate(n, LAST) == pytest.approx(d_model**-0.5 * min(n**-0.5, n * warmup**-1.5), rel=1e-12)


def test_peak_rate_is_at_the_end_of_the_warmup():
    config = OptimConfig(peak_rate=2e-3, warmup_steps=100)
    rates = {update: config.rate(update, LAST) for update in range(1, 1001)}
    assert max(rates, key=rates.__getitem__) == 100 and rates[100] == 2e-3
    assert [rates[u] for u in (1, 25, 50)] == pytest.approx([2e-5, 5e-4, 1e-3])
    assert [rates[u] for u in (400, 900)] == pytest.approx([1e-3, 2e-3 / 3])


def test_constant_schedule_stays_at_the_peak():
    with pytest.raises(ValueError, match=r"beta_2 must lie in \[0, 1\), but beta_2=1\.5"):
        OptimConfig(betas=(0.9, 1.5))
    config = OptimConfig(peak_rate=2e-3, warmup_steps=10, schedule="constant")
    assert config.rate(5, LAST) == pytest.approx(1e-3)
    assert [config.rate(update, LAST) for update in (10, 11, 10_000)] == [2e-3] * 3


def test_cosine_schedule_equals_nanogpts():
    """nanoGPT's Shakespeare setting, 1e-3 to 1e-4 in 5000 updates: half way down in the middle, at the end the end."""
    config = OptimConfig(peak_rate=1e-3, final_rate=1e-4, warmup_steps=100, schedule="cosine")
    assert config.rate(50, 5000) == pytest.approx(5e-4)
    assert config.rate(100, 5000) == 1e-3
    assert config.rate(100 + 4900 // 2, 5000) == pytest.approx((1e-3 + 1e-4) / 2)
    assert config.rate(100 + 4900 // 3, 5000) == pytest.approx(1e-4 + 9e-4 * 3 / 4, rel=1e-3)  # cos 60 deg = 1 / 2
    assert config.rate(5000, 5000) == pytest.approx(1e-4)
    assert config.rate(6000, 5000) == pytest.approx(1e-4)


def test_a_cosine_no_longer_than_its_warmup_ends_at_the_peak():
    config = OptimConfig(peak_rate=1e-3, warmup_steps=100, schedule="cosine")
    assert config.rate(100, 100) == 1e-3


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_polynomial_schedule_equals_that_of_transformers(power):
    """Between peak and final rate, of transformers' get_polynomial_decay_schedule_with_warmup; its step n is our update."""
    config = OptimConfig(peak_rate=2e-3, final_rate=1e-4, warmup_steps=100, schedule="polynomial", power=power)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2e-3)
    theirs = get_polynomial_decay_schedule_with_warmup(optimizer, 100, 1000, lr_end=1e-4, power=power)
    for update in range(1, 1001):
        optimizer.step()
        theirs.step()
        assert config.rate(update, 1000) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant"])
def test_a_cooldown_is_a_straight_line_to_zero(schedule):
    hot, cold = (OptimConfig(warmup_steps=10, schedule=schedule, cooldown=c) for c in (0.0, 0.25))
    for update in (5, 10, 400, 750):
        assert cold.rate(update, 1000) == hot.rate(update, 1000)
    for update, share in ((800, 0.8), (875, 0.5), (975, 0.1), (1000, 0.0)):
        assert cold.rate(update, 1000) == pytest.approx(share * hot.rate(update, 1000))


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "constant"])
def test_cooldown_ends_at_the_earlier_limit(schedule):
    """After 400 of 1000 updates, 4/5 of the other limit are used up: for cosine and cooldown that is update 800."""
    config = OptimConfig(peak_rate=2e-3, final_rate=2e-4, warmup_steps=100, schedule=schedule, cooldown=0.25)
    own = {"inverse_sqrt": 1e-3, "cosine": 2e-4 + 9e-4 * (1 + math.cos(math.pi * 7 / 9)), "constant": 2e-3}
    assert config.rate(400, 1000, done=0.8) == pytest.approx(own[schedule] * 200 / 250)
    assert config.rate(400, 1000, done=1.0) == config.rate(400, 1000, done=1.1) == 0
    for update in (1, 99, 100, 101, 400, 760, 1000):
        assert config.rate(update, 1000, done=update / 1001) == config.rate(update, 1000)


def test_cosine_ending_within_its_warmup_reaches_the_final_rate():
    config = OptimConfig(peak_rate=2e-3, final_rate=2e-4, warmup_steps=100, schedule="cosine")
    assert config.rate(10, 1000, done=0.5) == 2e-4  # still on the ramp
    assert config.rate(50, 1000, done=1.0) == pytest.approx(2e-4)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cooldown", (0.0, 1.0), (-0.1, 1.5)),
        ("final_rate", (0.0, 1e-3), (-1e-5, 2e-3)),
        ("peak_rate", (1e-9,), (0.0, -1e-3, math.inf)),
        ("warmup_steps", (0,), (-1,)),
        ("clip_norm", (0.0,), (-1.0,)),
        ("weight_decay", (0.0,), (-1.0,)),
    ],
)
def test_numbers_out_of_range_are_refused(name, good, bad):
    """The final rate is at most the peak."""
    for value in good:
        assert getattr(OptimConfig(**{"peak_rate": 1e-3, name: value}), name) == value
    for value in bad:
        with pytest.raises(ValueError, match=f"{name}={value}"):
            OptimConfig(**{"peak_rate": 1e-3, name: value})


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant"])
def test_no_warmup_begins_at_the_peak(schedule):
    config = OptimConfig(peak_rate=2e-3, warmup_steps=0, schedule=schedule)
    assert config.rate(1, LAST) == 2e-3
    assert config.rate(4, LAST) == pytest.approx(1e-3 if schedule == "inverse_sqrt" else 2e-3)


def test_defaults_equal_those_of_the_paper():
    """Vaswani et al. (2017), section 5.3."""
    config = OptimConfig()
    assert (config.betas, config.eps, config.warmup_steps) == ((0.9, 0.98), 1e-9, 4000)


def a_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))
    return model.double()


def test_weight_decay_applies_only_to_matrices():
    """A gradient of zero leaves only the decay: w - rate * decay * w."""
    model = a_model()
    model[2].weight.data.fill_(0.7)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    steps = optimizer(model, OptimConfig(weight_decay=0.25))
    for group in steps.param_groups:
        group["lr"] = 0.1
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    steps.step()
    decayed = {"0.weight", "1.weight", "3.weight"}
    assert decayed < set(before)
    for name, parameter in model.named_parameters():
        want = before[name] * (1 - 0.1 * 0.25 if name in decayed else 1)
        torch.testing.assert_close(parameter.detach(), want, rtol=1e-14, atol=0)


def test_every_trained_parameter_is_in_one_group_and_a_frozen_one_in_none():
    model = a_model()
    model[0].weight.requires_grad_(False)
    ids = [id(p) for group in optimizer(model, OptimConfig()).param_groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def translator(**changes) -> Transformer:
    """Three layers and two, learned positions, a CTC head."""
    torch.manual_seed(0)
    encoder, decoder = (StackConfig(input=Tokens(vocab_size=11), n_layers=n) for n in (3, 2))
    config = TransformerConfig(
        encoder=encoder,
        decoder=decoder,
        d_model=8,
        n_heads=2,
        d_ff=8,
        positions="learned",
        norm_position="pre",
        ctc=True,
    )
    return Transformer(replace(config, **changes))


@pytest.mark.parametrize("tie", ["none", "output", "all"])
def test_layer_wise_rates_are_the_formula(tie):
    """Rate of layer l = rate of layer l + 1 / 2.6: with equal gradients, Adam's first step is the rate itself."""
    model = translator(tie=tie)
    steps = optimizer(model, OptimConfig(layer_decay=1 / 2.6, eps=1e-30))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    step(steps, rate=0.1, finite=torch.tensor(True))
    powers = {
        "output": 0, "ctc.weight": 0, "ctc.bias": 0, "encoder.norm.weight": 0, "decoder.norm.bias": 0,
        "encoder.layers.2.attention.qkv.weight": 1, "encoder.layers.1.feed_forward.wide.bias": 2,
        "encoder.layers.0.attention_sublayer.norm.weight": 3, "encoder.positions.learned": 4,
        "decoder.layers.1.cross.q.weight": 1, "decoder.layers.0.attention.output.weight": 2,
        "decoder.positions.learned": 3,
    }  # fmt: skip
    powers |= {"none": {"source_input.weight": 4, "target_input.weight": 3}, "output": {"source_input.weight": 4}}.get(
        tie, {}
    )
    after = dict(model.named_parameters())
    for name, power in powers.items():
        moved = before[name] - after[name].detach()
        torch.testing.assert_close(moved, torch.full_like(moved, 0.1 / 2.6**power), rtol=1e-4, atol=1e-6)
    groups = [id(p) for group in steps.param_groups for p in group["params"]]
    assert sorted(groups) == sorted(map(id, model.parameters()))


def test_parameter_groups_are_matrices_and_the_rest():
    model = translator()
    groups = optimizer(model, OptimConfig()).param_groups
    assert [[id(p) for p in group["params"]] for group in groups] == [
        [id(p) for p in model.parameters() if p.dim() >= 2],
        [id(p) for p in model.parameters() if p.dim() < 2],
    ]


def test_steps_are_those_of_adam_written_out():
    """Kingma and Ba (2015), algorithm 1."""
    weight = nn.Linear(1, 1, bias=False).double()
    config = OptimConfig(betas=(0.9, 0.98), eps=1e-9)
    steps = optimizer(weight, config)
    x = want = weight.weight.item()
    m = v = 0.0
    for t, g in enumerate((0.5, -2.0, 0.1, 0.0, 3.0), start=1):
        rate = 0.01 * t
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        want -= rate * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.98**t)) + 1e-9)
        for group in steps.param_groups:
            group["lr"] = rate
        weight.weight.grad = torch.full_like(weight.weight, g)
        steps.step()
    assert weight.weight.item() == pytest.approx(want, rel=1e-6) and want != x


def stepped(finite: list[bool]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights, and Adam's state, after a step per entry; those that are not finite have a NaN in their gradient."""
    rng = torch.Generator().manual_seed(2)
    model = torch.nn.Linear(5, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    ours = optimizer(model, OptimConfig(weight_decay=0.1))
    for i, good in enumerate(finite):
        rng.manual_seed(sum(finite[:i]))  # the good ones see the same gradients, whatever lies between
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=rng)
            if not good:
                parameter.grad.view(-1)[1] = math.nan
        step(ours, rate=0.1 / (1 + sum(finite[:i])), finite=torch.tensor(good))
    state = {f"{i}.{key}": v for i, values in ours.state_dict()["state"].items() for key, v in values.items()}
    return {name: p.detach() for name, p in model.named_parameters()}, state


def test_non_finite_steps_leave_no_trace():
    weights, state = stepped([True] * 3)
    for finite in ([False, True, True, True], [True, False, False, True, True, False]):
        others, other_state = stepped(finite)
        assert all(torch.equal(weights[name], others[name]) for name in weights)
        assert state.keys() == other_state.keys()
        assert all(torch.equal(state[name], other_state[name]) for name in state)
        assert {float(v) for name, v in other_state.items() if name.endswith(".step")} == {3.0}


def test_finite_steps_equal_adamw():
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    mine = optimizer(ours, OptimConfig())
    plain = torch.optim.AdamW(theirs.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True)
    for i in range(1, 4):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        step(mine, rate=0.1 / i, finite=torch.tensor(True))
        plain.param_groups[0]["lr"] = 0.1 / i
        plain.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert not hasattr(mine, "found_inf")
