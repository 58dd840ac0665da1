"""The fused loss against torch's own cross-entropy, and against the formula written out."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transduce.data.batch import IGNORE, pair_batch
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.data.text_batches import window_batch
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.losses import (
    CHUNK,
    consistent_cross_entropy,
    cross_entropy,
    distilled_cross_entropy,
    projected_loss,
)
from transduce.train.objectives import CrossEntropy

D, V = 7, 13


def problem(
    rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64, ignored: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    states = torch.randn(*shape, D, generator=rng, dtype=dtype)
    weight = torch.randn(V, D, generator=rng, dtype=dtype)
    targets = torch.randint(V, shape, generator=rng)
    targets[torch.rand(shape, generator=rng) < ignored] = IGNORE
    return states.requires_grad_(), weight.requires_grad_(), targets


def ours(states: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0, *, count: bool = True) -> Tensor:
    """The loss; count: whether it gets the number of targets."""
    n_targets = int((targets != IGNORE).sum()) if count else None
    loss = partial(cross_entropy, smoothing=smoothing)
    return projected_loss(loss, states.flatten(0, -2), weight, targets.flatten(), n_targets=n_targets)[0]


def rival(states: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    logits = states.flatten(0, -2) @ weight.T
    return F.cross_entropy(logits, targets.flatten(), label_smoothing=smoothing, ignore_index=IGNORE, reduction="sum")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(11,), (3, 5), (1, 1), (3, CHUNK["cpu"]), (2, CHUNK["cpu"] + 1)])
def test_loss_and_gradients_equal_those_of_torch(rng, shape, smoothing):
    states, weight, targets = problem(rng, *shape, ignored=0.3 if math.prod(shape) > 1 else 0.0)
    got = ours(states, weight, targets, smoothing)
    want = rival(states, weight, targets, smoothing)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(got, (states, weight)), torch.autograd.grad(want, (states, weight)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("multiple", [1, 8])
def test_output_bias_is_used_and_has_a_gradient(rng, multiple):
    stack = StackConfig(input=Tokens(vocab_size=V, multiple=multiple), n_layers=1)
    model = Transformer(TransformerConfig(decoder=stack, d_model=8, n_heads=2, d_ff=9, output_bias=True)).eval()
    torch.nn.init.normal_(model.output_bias, generator=rng)
    batch = window_batch(list(torch.randint(V, (3, 6), generator=rng).numpy()))
    got = CrossEntropy(model, label_smoothing=0.1)(batch).total
    logits = model(target_in=batch.target_in).flatten(0, 1)
    want = F.cross_entropy(logits, batch.target_out.flatten(), label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(got, want)
    wanted = model.output_bias, model.output
    for mine, theirs in zip(torch.autograd.grad(got, wanted), torch.autograd.grad(want, wanted), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_unpadded_batches_need_no_nonzero(rng, monkeypatch):
    """As in language modelling, where searching for padding would wait for the GPU."""
    states, weight, targets = problem(rng, 3, 5, ignored=0.0)
    want = rival(states, weight, targets, 0.1)
    monkeypatch.setattr(Tensor, "nonzero", None)
    got = ours(states, weight, targets, 0.1, count=False)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    stack = StackConfig(input=Tokens(vocab_size=V), n_layers=1)
    model = Transformer(TransformerConfig(decoder=stack, d_model=8, n_heads=2, d_ff=8, dropout=0.0)).double()
    batch = window_batch([targets[i].numpy() for i in range(3)])
    logits = model(target_in=targets[:, :-1])
    want = F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(CrossEntropy(model)(batch).total, want, rtol=1e-12, atol=1e-12)


def test_given_target_counts_need_no_nonzero(rng, monkeypatch):
    """So that the host need not wait for a GPU."""
    states, weight, targets = problem(rng, 4, 9)
    want, n = rival(states, weight, targets, 0.1), int((targets != IGNORE).sum())
    monkeypatch.setattr(Tensor, "nonzero", None)
    monkeypatch.setattr(Tensor, "__int__", None)
    loss = partial(cross_entropy, smoothing=0.1)
    (got,) = projected_loss(loss, states.flatten(0, 1), weight, targets.flatten(), n_targets=n)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_loss_is_the_formula_written_out(rng):
    states, weight, targets = problem(rng, 4)
    smoothing, want = 0.2, 0.0
    for row, target in zip(states.tolist(), targets.tolist(), strict=True):
        logits = [sum(a * b for a, b in zip(row, column, strict=True)) for column in weight.tolist()]
        norm = math.log(sum(math.exp(x) for x in logits))
        for v, logit in enumerate(logits):
            share = smoothing / V + (1 - smoothing) * (v == target)
            want -= share * (logit - norm) * (target != IGNORE)
    got = ours(states, weight, targets, smoothing)
    assert got.item() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradcheck(rng, smoothing):
    states, weight, targets = problem(rng, 2, 3)
    assert torch.autograd.gradcheck(lambda s, w: ours(s, w, targets, smoothing), (states, weight))


def test_upstream_gradient_scales_both_gradients(rng):
    """As when the loss is divided by the number of tokens, or multiplied by a loss scale."""
    states, weight, targets = problem(rng, 9)
    plain = torch.autograd.grad(ours(states, weight, targets), (states, weight))
    scaled = torch.autograd.grad(ours(states, weight, targets) * -2.5, (states, weight))
    for once, times in zip(plain, scaled, strict=True):
        torch.testing.assert_close(times, -2.5 * once, rtol=1e-14, atol=0)


def test_tied_weights_get_the_gradients_of_both_uses(rng):
    """Tied tables: the weight is embedding and projection at once."""
    _, weight, targets = problem(rng, 9)
    ids = torch.randint(V, (9,), generator=rng)
    (got,) = torch.autograd.grad(ours(weight[ids], weight, targets), weight)
    (want,) = torch.autograd.grad(rival(weight[ids], weight, targets, 0.0), weight)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_far_apart_logits_do_not_overflow():
    states, weight = torch.tensor([[1e3, 0.0]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    (wrong,) = projected_loss(cross_entropy, states.requires_grad_(), weight, torch.tensor([1]))
    assert wrong.item() == 2000.0
    (gradient,) = torch.autograd.grad(wrong, states)
    assert gradient.tolist() == [[2.0, 0.0]]


def test_bf16_autocast_is_close_to_float32(rng):
    states, weight, targets = problem(rng, 700, dtype=torch.float32)
    want = rival(states, weight, targets, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        got = ours(states, weight, targets, 0.1)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=4e-3, atol=0)  # bf16 has 8 bits: 2^-8 = 4e-3
    for mine, theirs in zip(
        torch.autograd.grad(got, (states, weight)), torch.autograd.grad(want, (states, weight)), strict=True
    ):
        assert mine.dtype == torch.float32
        assert (mine - theirs).norm() / theirs.norm() < 1e-2


def test_loss_without_targets_is_zero(rng):
    states, weight, targets = problem(rng, 2, 5, ignored=1.1)
    loss = ours(states, weight, targets, 0.1)
    assert loss.item() == 0
    for gradient in torch.autograd.grad(loss, (states, weight)):
        assert gradient.count_nonzero() == 0


def test_ignored_positions_do_not_change_the_loss(rng):
    states, weight, targets = problem(rng, 40)
    garbage = torch.where((targets == IGNORE)[:, None], 1e4, states)
    want = ours(states, weight, targets)
    torch.testing.assert_close(ours(garbage, weight, targets), want, rtol=0, atol=0)


def test_loss_is_the_same_without_gradients(rng):
    states, weight, targets = problem(rng, 40)
    want = ours(states, weight, targets).item()
    with torch.no_grad():
        assert ours(states, weight, targets).item() == want


class Sizes(TorchDispatchMode):
    """Notes the shape of every tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        got = func(*args, **(kwargs or {}))
        self.made += [each.shape for each in tree_leaves(got) if isinstance(each, Tensor) and not func.is_view]
        return got


def consistent(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return projected_loss(partial(consistent_cross_entropy, alpha=0.5), states, weight, targets[0])[0]


def distilled(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    states, targets = states.flatten(0, 1), targets.flatten()
    loss = partial(distilled_cross_entropy, tables=[torch.ones(V, 2, dtype=states.dtype)], share=0.5)
    return projected_loss(loss, states, weight, targets, torch.ones_like(states).detach()[..., :2])[0]


@pytest.mark.parametrize("loss", [ours, consistent, distilled])
@pytest.mark.parametrize("wanted", [(), ("states",), ("weight",)])
def test_only_needed_gradients_are_computed(rng, loss, wanted):
    """A validation has room for weights alone, and a frozen output table needs no gradient."""
    states, weight, targets = problem(rng, 2, 3, ignored=0.0)
    targets[1] = targets[0]
    own = {"states": states, "weight": weight}
    both = dict(zip(own, torch.autograd.grad(loss(states, weight, targets), (states, weight)), strict=True))
    for name, tensor in own.items():
        tensor.requires_grad_(name in wanted or not wanted)
    with Sizes() as sizes, torch.set_grad_enabled(bool(wanted)):
        total = loss(states, weight, targets)
    assert sizes.made and ((V, D) in sizes.made) == ("weight" in wanted)
    if wanted:
        total.backward()
    for name, tensor in own.items():
        assert (tensor.grad is not None) == (name in wanted)
        if name in wanted:
            assert torch.equal(tensor.grad, both[name])


def test_batch_loss_equals_that_of_its_logits():
    stack = StackConfig(input=Tokens(vocab_size=V), n_layers=1)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(encoder=stack, decoder=stack, d_model=8, n_heads=2, d_ff=16)).double().eval()
    batch = pair_batch([[5, 6, EOS], [7, EOS]], [[8, EOS], [9, 10, 11, EOS]], bos=BOS)
    logits = model(source=batch.source, source_lengths=batch.source_lengths, target_in=batch.target_in)
    probabilities = logits.softmax(-1).tolist()
    wanted = enumerate(([8, EOS], [9, 10, 11, EOS]))
    want = -sum(math.log(probabilities[row][t][v]) for row, ids in wanted for t, v in enumerate(ids))
    assert CrossEntropy(model)(batch).total.item() == pytest.approx(want, rel=1e-10)
