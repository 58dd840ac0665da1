"""Consistency of two views: against torch's losses on the full logits of two passes, and in small trainings."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.contract import GARBAGE, random_model
from tests.train import toy
from tests.train.test_ctc import CONFIG, batch
from transduce.data.batch import IGNORE, Batch, batch_of
from transduce.experiment.validation import held_out_loss
from transduce.files import read_json_lines
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.config import LossConfig
from transduce.train.losses import consistent_cross_entropy, ctc_consistency, ctc_loss, projected_loss
from transduce.train.objectives import CrossEntropy, two_views


def training(config: TransformerConfig, rng: torch.Generator) -> Transformer:
    """A float64 model in training, of weights so large that another source makes another output."""
    model = random_model(config, rng).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


def speech(rng: torch.Generator) -> Batch:
    """Three utterances, each with a second view of the same length."""
    examples = batch(rng)
    return replace(examples, second_source=torch.randn(examples.source.shape, generator=rng, dtype=torch.float64))


def symmetric_kl(first: Tensor, second: Tensor, *, constant: bool) -> Tensor:
    """The sum of both divergences of logits (n, V), by torch.nn.functional.kl_div on probabilities."""
    p, q = first.softmax(-1), second.softmax(-1)
    p_target, q_target = (p.detach(), q.detach()) if constant else (p, q)
    return F.kl_div(q.log(), p_target, reduction="sum") + F.kl_div(p.log(), q_target, reduction="sum")


def check_gradients(model: Transformer, got: Tensor, want: Tensor) -> None:
    parameters = list(model.parameters())
    ours, theirs = (torch.autograd.grad(x, parameters, allow_unused=True, retain_graph=True) for x in (got, want))
    assert any(gradient is not None and gradient.count_nonzero() for gradient in ours)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


# The divergence of what two views give


def test_ctc_consistency_is_the_formula_written_out(rng):
    first, second = (torch.randn(2, 3, 7, generator=rng, dtype=torch.float64) for _ in range(2))
    want = [0.0, 0.0]
    for row in range(2):
        for t in range(3):
            p, q = (
                [math.exp(x) / sum(map(math.exp, logits[row, t].tolist())) for x in logits[row, t].tolist()]
                for logits in (first, second)
            )
            want[row] += sum(a * math.log(a / b) + b * math.log(b / a) for a, b in zip(p, q, strict=True))
            if row == 0 and t == 1:
                short = want[0]
    assert ctc_consistency(first, second).item() == pytest.approx(sum(want), rel=1e-12)
    lengths = torch.tensor([2, 3])
    assert ctc_consistency(first, second, lengths).item() == pytest.approx(short + want[1], rel=1e-12)


def test_gradcheck_of_both_views(rng):
    states = torch.randn(2, 4, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(5, (4,), generator=rng)

    def loss(states: Tensor, weight: Tensor) -> Tensor:
        return projected_loss(partial(consistent_cross_entropy, alpha=0.7), states, weight, targets)[0]

    assert torch.autograd.gradcheck(loss, (states, weight))


def test_ctc_consistency_moves_each_view_towards_the_other(rng):
    """The slope of KL(q || softmax(x)) is p - q where q is constant."""
    first, second = (torch.randn(2, 4, 5, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(2))
    got = torch.autograd.grad(ctc_consistency(first, second), (first, second))
    p, q = first.detach().softmax(-1), second.detach().softmax(-1)
    torch.testing.assert_close(got[0], p - q, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(got[1], q - p, rtol=1e-12, atol=1e-14)


def test_half_precision_logits_are_compared_in_float32(rng):
    first, second = (torch.randn(2, 4, 5, generator=rng).bfloat16() for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        got = ctc_consistency(first, second)
    assert got.dtype == torch.float32 and torch.equal(got, ctc_consistency(first.float(), second.float()))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("n", [1, 4, 11])
def test_chunks_do_not_change_losses_or_gradients(rng, monkeypatch, n, smoothing):
    """Neither to the sums nor to any gradient; padding rows of the table are not classes."""
    monkeypatch.setattr("transduce.train.losses.CHUNK", {"cpu": 4})
    states = torch.randn(2, n, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(5, (n,), generator=rng)
    padded = F.pad(states, (0, 0, 1, 1), value=GARBAGE)
    loss = partial(consistent_cross_entropy, alpha=0.7, smoothing=smoothing)
    wanted = F.pad(targets, (1, 1), value=IGNORE)
    got, entropy, apart = projected_loss(loss, padded, weight, wanted, n_targets=n, n_classes=5)
    first, second = states @ weight[:5].T
    divergence = symmetric_kl(first, second, constant=False)
    both = [F.cross_entropy(x, targets, label_smoothing=smoothing, reduction="sum") for x in (first, second)]
    want = sum(both) + 0.7 * divergence
    torch.testing.assert_close(apart, divergence.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(entropy, sum(both).detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    given = (states, weight)
    for ours, theirs in zip(torch.autograd.grad(got, given), torch.autograd.grad(want, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


# The objectives


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_consistency_loss_equals_r_drop(rng, smoothing):
    """R-Drop, Liang et al. (2021), with half the sum of both losses."""
    model, examples, alpha = training(replace(CONFIG, ctc=False), rng), speech(rng), 0.7
    sources = (examples.source, examples.second_source)
    views = [
        model(source=s, source_lengths=examples.source_lengths, target_in=examples.target_in).flatten(0, 1)
        for s in sources
    ]
    targets = examples.target_out.flatten()
    entropy = sum(F.cross_entropy(v, targets, label_smoothing=smoothing, reduction="sum") for v in views) / 2
    apart = symmetric_kl(*(v[targets != IGNORE] for v in views), constant=False) / 2
    got, parts = CrossEntropy(model, LossConfig(label_smoothing=smoothing, consistency=alpha))(examples)
    assert list(parts) == ["cross_entropy", "consistency"] and not any(part.requires_grad for part in parts.values())
    torch.testing.assert_close(parts["cross_entropy"], entropy.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(parts["consistency"], apart.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(got, entropy + alpha * apart, rtol=1e-12, atol=0)
    check_gradients(model, got, entropy + alpha * apart)


@pytest.mark.parametrize(("alpha", "ctc_alpha"), [(0.0, 0.2), (0.7, 0.2), (0.7, 0.0)])
def test_ctc_consistency_loss_equals_cr_ctc(rng, alpha, ctc_alpha):
    """CR-CTC, Yao et al. (2024): half the sum of both CTC losses, and alpha times half the sum of both divergences."""
    model, examples, weight = training(CONFIG, rng), speech(rng), 0.3
    positions, targets = torch.tensor([11, 4, 7]), examples.target_out.flatten()  # frames are stacked in twos
    entropy, ctc, heads, outputs = 0.0, 0.0, [], []
    for source in (examples.source, examples.second_source):
        memory = model.encode(source, examples.source_lengths)
        outputs.append(model.decode(examples.target_in, memory=memory).flatten(0, 1))
        entropy += F.cross_entropy(outputs[-1], targets, reduction="sum") / 2
        logits = F.linear(memory.states, model.ctc.weight, model.ctc.bias)
        ctc += ctc_loss(logits, positions, examples.target_out, examples.target_lengths) / 2
        heads.append(torch.cat([row[:n] for row, n in zip(logits, positions, strict=True)]))
    apart = symmetric_kl(*(v[targets != IGNORE] for v in outputs), constant=False) / 2
    ctc_apart = symmetric_kl(*heads, constant=True) / 2
    want = (1 - weight) * (entropy + alpha * apart) + weight * (ctc + ctc_alpha * ctc_apart)
    got, parts = CrossEntropy(model, LossConfig(ctc_weight=weight, consistency=alpha, ctc_consistency=ctc_alpha))(
        examples
    )
    named = {"cross_entropy": entropy, "ctc": ctc}
    named |= {"consistency": apart} if alpha else {}
    named |= {"ctc_consistency": ctc_apart} if ctc_alpha else {}
    assert parts.keys() == named.keys()
    for name, part in named.items():
        torch.testing.assert_close(parts[name], part.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    check_gradients(model, got, want)


def test_ctc_targets_are_used_for_both_views(rng):
    model, examples = training(CONFIG, rng), speech(rng)
    labels, lengths = torch.tensor([[9, 9, 2], [4, 6, 2], [5, 2, 0]]), torch.tensor([3, 3, 2])
    both = replace(examples, ctc_targets=labels, ctc_target_lengths=lengths).to(torch.device("cpu"))
    ctc = 0.0
    for source in (examples.source, examples.second_source):
        logits = model.ctc_logits(model.encode(source, examples.source_lengths).states)
        ctc += ctc_loss(logits, torch.tensor([11, 4, 7]), labels, lengths) / 2
    got = CrossEntropy(model, LossConfig(ctc_weight=0.3, ctc_consistency=0.2))(both)
    torch.testing.assert_close(got.parts["ctc"], ctc.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("n_experts", [0, 3])
def test_identical_views_give_the_plain_loss(rng, n_experts):
    """Without dropout and other masks, two views give the plain loss and its gradients, also with experts."""
    model = training(replace(CONFIG, n_experts=n_experts), rng)
    examples, weights = batch(rng), {"ctc_weight": 0.3, "label_smoothing": 0.1}
    want = CrossEntropy(model, LossConfig(**weights))(examples)
    got = CrossEntropy(model, LossConfig(**weights, consistency=3.0, ctc_consistency=0.5))(examples)
    assert max(got.parts["consistency"], got.parts["ctc_consistency"]) < 1e-20  # rows of one product round differently
    for name, part in want.parts.items():
        torch.testing.assert_close(got.parts[name], part, rtol=1e-12, atol=0)
    torch.testing.assert_close(got.total, want.total, rtol=1e-12, atol=0)
    check_gradients(model, got.total, want.total)


def test_the_views_differ_in_dropout(rng):
    """One pass over all rows twice: the halves differ only in dropout."""
    config = replace(toy.model(dropout=0.4).config, attention_dropout=0.2)
    model, examples = training(config, rng), toy.Backwards(n=9).epoch(0)[0]
    objective = CrossEntropy(model, LossConfig(consistency=1.0))
    torch.manual_seed(5)
    got = objective(examples)
    torch.manual_seed(5)
    logits = model(
        source=examples.source.repeat(2, 1),
        source_lengths=examples.source_lengths.repeat(2),
        target_in=examples.target_in.repeat(2, 1),
    )
    real = examples.target_out != IGNORE
    first, second = (half[real] for half in logits.chunk(2))
    assert not torch.allclose(first, second)
    apart = symmetric_kl(first, second, constant=False) / 2
    entropy = sum(F.cross_entropy(half, examples.target_out[real], reduction="sum") for half in (first, second)) / 2
    torch.testing.assert_close(got.parts["consistency"], apart.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(got.total, entropy + apart, rtol=1e-12, atol=0)


def test_consistency_of_decoder_only_and_encoder_only_models(rng):
    stack = StackConfig(input=Tokens(vocab_size=11), n_layers=1)
    ids = torch.randint(11, (3, 7), generator=rng)
    chosen = torch.where(torch.rand(3, 7, generator=rng) < 0.4, ids, IGNORE)
    masked = Batch(
        source=ids, source_lengths=torch.tensor([7, 7, 7]), target_in=ids, target_out=chosen,
        target_lengths=torch.tensor([7, 7, 7]), n_tokens=int((chosen != IGNORE).sum()),
    )  # fmt: skip
    for halves, examples in (
        ({"decoder": stack}, batch_of(None, None, ids.tolist(), bos=1)),
        ({"encoder": stack}, masked),
    ):
        config = TransformerConfig(**halves, d_model=12, n_heads=2, d_ff=17, dropout=0.3)
        model = training(config, rng)
        torch.manual_seed(5)
        got = CrossEntropy(model, LossConfig(consistency=1.0))(examples)
        torch.manual_seed(5)
        both = two_views(examples)
        given = {"source": both.source, "source_lengths": both.source_lengths} if model.encoder else {}
        given |= {"target_in": both.target_in} if model.decoder else {}
        first, second = (half[examples.target_out != IGNORE] for half in model(**given).chunk(2))
        torch.testing.assert_close(
            got.parts["consistency"], symmetric_kl(first, second, constant=False).detach() / 2, rtol=1e-12, atol=0
        )


def test_padding_and_batch_do_not_change_losses(rng):
    model, examples = training(CONFIG, rng), speech(rng)
    objective = CrossEntropy(model, LossConfig(ctc_weight=0.3, consistency=0.7, ctc_consistency=0.2))
    want = objective(examples)
    beyond = (torch.arange(21) >= examples.source_lengths[:, None])[:, :, None]
    garbage = {
        name: F.pad(getattr(examples, name).masked_fill(beyond, GARBAGE), (0, 0, 0, 3), value=GARBAGE)
        for name in ("source", "second_source")
    }
    padded = objective(replace(examples, **garbage, target_in=F.pad(examples.target_in, (0, 2), value=7),
                               target_out=F.pad(examples.target_out, (0, 2), value=IGNORE)))  # fmt: skip
    alone = []
    for row in range(3):
        s, t = int(examples.source_lengths[row]), int(examples.target_lengths[row])
        cut = {name: getattr(examples, name)[row : row + 1, :s] for name in ("source", "second_source")}
        cut |= {name: getattr(examples, name)[row : row + 1, :t] for name in ("target_in", "target_out")}
        cut |= {name: getattr(examples, name)[row : row + 1] for name in ("source_lengths", "target_lengths")}
        alone.append(objective(Batch(**cut, n_tokens=t)))
    for name, part in want.parts.items():
        torch.testing.assert_close(padded.parts[name], part, rtol=1e-12, atol=0)
        torch.testing.assert_close(sum(loss.parts[name] for loss in alone), part, rtol=1e-12, atol=0)
    torch.testing.assert_close(sum(loss.total for loss in alone), want.total, rtol=1e-12, atol=0)


def test_validation_uses_one_view(rng):
    model, examples = training(replace(CONFIG, dropout=0.3), rng), speech(rng)
    objective = CrossEntropy(model, LossConfig(ctc_weight=0.3, consistency=0.7, ctc_consistency=0.2)).eval()
    plain = CrossEntropy(model, LossConfig(ctc_weight=0.3)).eval()
    assert objective(examples).parts.keys() == {"cross_entropy", "ctc"}
    assert torch.equal(objective(examples).total, plain(examples).total)
    entropy = objective(examples).parts["cross_entropy"].item()
    assert held_out_loss(model, [examples]) == pytest.approx(entropy / examples.n_tokens, rel=1e-12)


def test_under_autocast_the_loss_is_close_to_that_of_float32(rng):
    model, examples = Transformer(CONFIG).train(), batch(rng, torch.float32)
    examples = replace(examples, second_source=torch.randn(examples.source.shape, generator=rng))
    objective = CrossEntropy(model, LossConfig(ctc_weight=0.3, consistency=5.0, ctc_consistency=5.0))
    want = objective(examples)
    with torch.autocast("cpu", torch.bfloat16):
        got = objective(examples)
    got.total.backward()
    for name, part in want.parts.items():
        assert got.parts[name].dtype == torch.float32
        torch.testing.assert_close(got.parts[name], part, rtol=0.05, atol=0)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["consistency", "ctc_consistency"])
@pytest.mark.parametrize("value", [-0.1, math.inf])
def test_invalid_weights_are_refused(rng, name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        CrossEntropy(random_model(CONFIG, rng), LossConfig(ctc_weight=0.3, **{name: value}))


# Trainings


@pytest.mark.train
def test_consistency_is_logged_and_reduces_the_divergence(tmp_path, monkeypatch):
    """The loss is logged with consistency, and validated without it."""
    monkeypatch.setattr("transduce.train.log.EVERY", 10)
    last = {}
    for alpha in (1e-9, 3.0):
        objective = CrossEntropy(toy.model(dropout=0.3), LossConfig(consistency=alpha))
        toy.trainer(tmp_path / str(alpha), objective=objective, config=toy.config(max_updates=40)).run()
        lines = read_json_lines(tmp_path / str(alpha) / "metrics.jsonl")
        last[alpha] = [line for line in lines if line["kind"] == "train"][-1]
        assert all("consistency" not in line for line in lines if line["kind"] == "valid")
    line = last[3.0]
    assert line["consistency"] < 0.5 * last[1e-9]["consistency"]
    assert line["loss"] == pytest.approx(line["cross_entropy"] + 3.0 * line["consistency"], rel=1e-5)
