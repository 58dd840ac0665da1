"""Muon against torch.optim.Muon, against singular values, and together with AdamW."""

import pytest
import torch
from torch import nn

from tests.train.test_optim import translator
from transduce.train.config import OptimConfig
from transduce.train.optim import optimizer, orthogonal, step


@pytest.mark.parametrize("narrow", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (48, 16), (16, 48)])
def test_singular_vectors_stay_and_singular_values_become_nearly_one(rng, monkeypatch, rows, columns, narrow):
    monkeypatch.setattr("transduce.train.optim.computes_bf16", lambda _: narrow)
    u, _, v = torch.linalg.svd(torch.randn(3, rows, columns, generator=rng), full_matrices=False)
    matrices = u * torch.linspace(0.05, 1, u.size(-1)) @ v
    turned = u.mT @ orthogonal(matrices) @ v.mT  # diagonal, if the vectors are the same
    values = turned.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(turned, torch.diag_embed(values), rtol=0, atol=0.05 if narrow else 1e-4)
    assert values.min() > 0.5 and values.max() < 1.3


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("narrow", [False, True], ids=["fp32", "bf16"])
def test_steps_equal_muon_and_adamw_of_torch(rng, monkeypatch, narrow, gated):
    """torch.optim.Muon always rounds to bfloat16; queries, keys and values, and gate and value, are matrices of their own."""
    monkeypatch.setattr("transduce.train.optim.computes_bf16", lambda _: narrow)
    if not narrow:
        monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    model = translator(gated=gated)
    config = OptimConfig(optimizer="muon", weight_decay=0.1)
    ours, start = optimizer(model, config), {name: p.detach().clone() for name, p in model.named_parameters()}
    parts = {"attention.qkv.weight": 3, "cross.kv.weight": 2, "feed_forward.wide.weight": 1 + gated}
    theirs = {
        name: [nn.Parameter(part.clone()) for part in weight.chunk(parts.get(name.split(".", 3)[-1], 1))]
        for name, weight in start.items()
        if ".layers." in name and weight.dim() == 2
    }
    assert len(theirs) == 3 * 4 + 2 * 7
    every = [part for some in theirs.values() for part in some]
    reference = torch.optim.Muon(every, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adam = {name: nn.Parameter(weight.clone()) for name, weight in start.items() if name not in theirs}
    decays = [([p for p in adam.values() if (p.dim() > 1) is matrix], 0.1 * matrix) for matrix in (True, False)]
    beside = torch.optim.AdamW(
        [{"params": some, "weight_decay": decay} for some, decay in decays], lr=0.02, betas=config.betas, eps=config.eps
    )
    for _ in range(4):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=rng)
            if name in theirs:
                for part, grad in zip(theirs[name], parameter.grad.chunk(len(theirs[name])), strict=True):
                    part.grad = grad.clone()
            else:
                adam[name].grad = parameter.grad.clone()
        step(ours, rate=0.02, finite=torch.tensor(True))
        reference.step()
        beside.step()
    for name, parameter in model.named_parameters():
        want = torch.cat([part.detach() for part in theirs[name]]) if name in theirs else adam[name].detach()
        if narrow:  # the order of sums decides the last of eight bits
            apart, moved = parameter.detach() - want, want - start[name]
            assert apart.norm() < 0.1 * moved.norm()
        else:
            torch.testing.assert_close(parameter.detach(), want, rtol=1e-4, atol=1e-5)


def test_non_finite_steps_change_nothing(rng):
    model = translator()
    steps = optimizer(model, OptimConfig(optimizer="muon"))

    def take(value: float) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=rng) * value
        step(steps, rate=0.1, finite=torch.tensor(value == 1))

    take(1)
    before = [p.detach().clone() for p in model.parameters()]
    state = [value.clone() for p in model.parameters() for value in steps.state[p].values()]
    take(float("nan"))
    assert all(map(torch.equal, before, model.parameters()))
    assert all(map(torch.equal, state, [value for p in model.parameters() for value in steps.state[p].values()]))
    take(1)
    assert not any(map(torch.equal, before, model.parameters()))


def test_layer_wise_rates_and_frozen_weights(rng):
    model = translator()
    model.decoder.requires_grad_(False)
    steps = optimizer(model, OptimConfig(optimizer="muon", layer_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradient = torch.randn(8, 8, generator=rng)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.grad = gradient.clone() if name.endswith("output.weight") else torch.ones_like(parameter)
    step(steps, rate=0.1, finite=torch.tensor(True))
    moved = {name: before[name] - p.detach() for name, p in model.named_parameters()}
    last, first = (moved[f"encoder.layers.{i}.attention.output.weight"] for i in (2, 0))
    torch.testing.assert_close(first, last / 4)
    assert last.abs().max() > 0 and not moved["decoder.layers.1.cross.q.weight"].any()
