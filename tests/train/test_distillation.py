"""Distillation: against torch's losses on the full logits, and in small trainings."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.contract import GARBAGE, random_model
from tests.train import toy
from tests.train.test_consistency import check_gradients, speech, training
from tests.train.test_ctc import CONFIG
from transduce.data.batch import IGNORE, batch_of
from transduce.files import read_json_lines
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.train.config import LossConfig
from transduce.train.losses import ctc_loss, distilled_cross_entropy, projected_loss
from transduce.train.objectives import CrossEntropy


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("n", [1, 4, 11])
def test_loss_equals_cross_entropy_and_kl_div_of_torch(rng, monkeypatch, n, smoothing, share):
    """In chunks or not; padding rows of a table are not classes, and teachers have their own widths and tables."""
    monkeypatch.setattr("transduce.train.losses.CHUNK", {"cpu": 4})
    states = torch.randn(n, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(5, (n,), generator=rng)
    teachers = [
        (
            torch.randn(n, d, generator=rng, dtype=torch.float64),
            torch.randn(rows, d, generator=rng, dtype=torch.float64),
        )
        for d, rows in ((3, 5), (2, 8))
    ]
    padded = [F.pad(s, (0, 0, 1, 1), value=GARBAGE) for s, _ in teachers]
    loss = partial(distilled_cross_entropy, tables=[w for _, w in teachers], share=share, smoothing=smoothing)
    total, entropy, apart = projected_loss(
        loss, F.pad(states, (0, 0, 1, 1), value=GARBAGE), weight, F.pad(targets, (1, 1), value=IGNORE), *padded,
        n_targets=n, n_classes=5,
    )  # fmt: skip
    logits = states @ weight[:5].T
    q = sum((s @ w[:5].T).softmax(-1) for s, w in teachers) / 2
    want_entropy = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    want_apart = F.kl_div(logits.log_softmax(-1), q, reduction="sum")
    torch.testing.assert_close(entropy, want_entropy.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(apart, want_apart.detach(), rtol=1e-12, atol=0)
    want = (1 - share) * want_entropy + share * want_apart
    torch.testing.assert_close(total, want, rtol=1e-12, atol=0)
    given = (states, weight)
    for ours, theirs in zip(torch.autograd.grad(total, given), torch.autograd.grad(want, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_distillation_of_speech_models_with_ctc_and_two_views(rng):
    """Together with CTC, which a teacher does not need, and with other sizes. Both views of a batch get its predictions."""
    model, examples = training(CONFIG, rng), speech(rng)
    other = training(replace(CONFIG, ctc=False, d_model=20, n_heads=4, dropout=0.5), rng)
    given = {"source_lengths": examples.source_lengths, "target_in": examples.target_in}
    real = examples.target_out != IGNORE
    want = 0.0
    objective = CrossEntropy(
        model, LossConfig(ctc_weight=0.3, teachers=(other,), distillation=0.7, ctc_consistency=1e-12)
    )
    for source in (examples.source, examples.second_source):
        logits, q = (m(source=source, **given)[real] for m in (model, other.eval()))
        entropy = F.cross_entropy(logits, examples.target_out[real], reduction="sum")
        apart = F.kl_div(logits.log_softmax(-1), q.detach().softmax(-1), reduction="sum")
        ctc_logits = model.ctc_logits(model.encode(source, examples.source_lengths).states)
        positions = torch.tensor([11, 4, 7])  # frames are stacked in twos
        ctc = ctc_loss(ctc_logits, positions, examples.target_out, examples.target_lengths)
        want += (0.7 * (0.3 * entropy + 0.7 * apart) + 0.3 * ctc) / 2
    got = objective(examples)
    torch.testing.assert_close(got.total, want, rtol=1e-9, atol=0)
    check_gradients(model, got.total, want)
    got.total.backward()
    assert all(p.grad is None for p in other.parameters())
    assert objective.state_dict().keys() == CrossEntropy(model, LossConfig(ctc_weight=0.3)).state_dict().keys()


def test_distillation_of_language_models(rng):
    stack = StackConfig(input=Tokens(vocab_size=11), n_layers=1)
    small, large = (
        training(TransformerConfig(decoder=stack, d_model=d, n_heads=2, d_ff=17, dropout=0.0, output_bias=bias), rng)
        for d, bias in ((12, False), (24, True))
    )
    examples = batch_of(None, None, torch.randint(11, (3, 7), generator=rng).tolist(), bos=1)
    logits, q = (m(target_in=examples.target_in).flatten(0, 1) for m in (small, large))
    want = F.kl_div(logits.log_softmax(-1), q.detach().softmax(-1), reduction="sum")
    got = CrossEntropy(small, LossConfig(teachers=(large,), distillation=1.0))(examples)
    torch.testing.assert_close(got.parts["distillation"], want.detach(), rtol=1e-12, atol=0)
    check_gradients(small, got.total, want)


def test_validation_uses_no_teacher(rng):
    model, examples = training(CONFIG, rng), speech(rng)
    taught = CrossEntropy(model, LossConfig(ctc_weight=0.3, teachers=(training(CONFIG, rng),))).eval()
    plain = CrossEntropy(model, LossConfig(ctc_weight=0.3)).eval()(examples)
    assert taught(examples).parts.keys() == plain.parts.keys() and torch.equal(taught(examples).total, plain.total)


def test_under_autocast_the_loss_is_close_to_that_of_float32(rng):
    model, other = (toy.model(d_model=d).train() for d in (16, 24))
    examples = toy.Backwards(n=9).epoch(0)[0]
    objective = CrossEntropy(model, LossConfig(teachers=(other,)))
    want = objective(examples)
    with torch.autocast("cpu", torch.bfloat16):
        got = objective(examples)
    got.total.backward()
    for name, part in want.parts.items():
        assert got.parts[name].dtype == torch.float32
        torch.testing.assert_close(got.parts[name], part, rtol=0.05, atol=0.05)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, math.nan])
def test_invalid_shares_are_refused(rng, share):
    with pytest.raises(ValueError, match=f"distillation={share}"):
        CrossEntropy(random_model(CONFIG, rng), LossConfig(distillation=share))


def test_two_views_and_teachers_are_refused_together(rng):
    with pytest.raises(ValueError, match=r"consistency=1\.0 and there are 1 teachers; leave one of them out"):
        CrossEntropy(random_model(CONFIG, rng), LossConfig(consistency=1.0, teachers=(random_model(CONFIG, rng),)))


@pytest.mark.train
def test_distillation_brings_the_student_closer_to_its_teacher(tmp_path, monkeypatch):
    """By the divergence in the log."""
    monkeypatch.setattr("transduce.train.log.EVERY", 10)
    toy.trainer(tmp_path / "teacher", objective=CrossEntropy(teacher := toy.model(d_model=32))).run()
    last = {}
    for share in (1e-9, 1.0):
        objective = CrossEntropy(toy.model(), LossConfig(teachers=(teacher,), distillation=share))
        toy.trainer(tmp_path / str(share), objective=objective, config=toy.config(max_updates=60)).run()
        *_, last[share] = (x for x in read_json_lines(tmp_path / str(share) / "metrics.jsonl") if x["kind"] == "train")
    assert last[1.0]["distillation"] < 0.5 * last[1e-9]["distillation"]
