"""Updates, weights and validations that are not finite: skipped, counted, and never a checkpoint."""

import json
import math

import pytest
import torch

from tests.train import toy
from tests.train.test_trainer import held_out
from transduce.files import read_weights, set_weights
from transduce.model.transformer import Transformer
from transduce.train.optim import OptimConfig
from transduce.train.state import Validation


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_updates_are_skipped_and_counted(tmp_path, value):
    seen = {}

    def after(n):
        """Weights and Adam's moments after n updates, the n-th of them faulty or not."""
        training = toy.trainer(
            tmp_path / f"{n}", config=toy.config(max_updates=n), objective=toy.Faulty(frozenset({2}), value=value)
        )
        seen[n] = training.run()
        moments = [state["exp_avg"].clone() for state in training.optimizer.state.values()]
        return toy.weights(training.model), moments

    (before, moments), (skipped, unmoved), (later, _) = after(1), after(2), after(3)
    assert toy.same(before, skipped) and not toy.same(skipped, later)
    assert all(torch.equal(a, b) for a, b in zip(moments, unmoved, strict=True))
    assert all(tensor.isfinite().all() for tensor in later.values())
    assert [(p.update, p.skipped, p.skipped_in_a_row) for _, p in sorted(seen.items())] == [
        (1, 0, 0), (2, 1, 1), (3, 1, 0),
    ]  # fmt: skip


def test_one_non_finite_batch_skips_the_whole_update(tmp_path):
    config = toy.config(max_updates=4, accumulate=2)
    progress = toy.trainer(tmp_path, config=config, objective=toy.Faulty(frozenset({3, 6}))).run()
    assert (progress.update, progress.skipped) == (4, 2)


def test_too_many_skipped_updates_in_a_row_end_the_training(tmp_path):
    config = toy.config(max_skipped=3, optim=OptimConfig(peak_rate=0.5, warmup_steps=20))
    # two in a row and a single one are accepted, three are not
    training = toy.trainer(tmp_path, config=config, objective=toy.Faulty(frozenset({3, 4, 6, 15, 16, 17})))
    with pytest.raises(FloatingPointError) as caught:
        training.run()
    assert str(caught.value) == (
        "loss and gradient must be finite, but 3 updates in a row had loss nan or gradient norm nan; "
        "begin another run with less than peak_rate=0.5 or more than warmup_steps=20; "
        f"the last good checkpoint is {tmp_path / 'checkpoints' / '00000010'}"
    )
    again = toy.trainer(tmp_path, config=config)
    progress = again.run()
    assert progress.update == 30
    assert progress.skipped == 3  # those before the checkpoint
    assert all(tensor.isfinite().all() for tensor in toy.weights(again.model).values())


def test_divergence_error_without_a_checkpoint(tmp_path):
    training = toy.trainer(tmp_path, config=toy.config(max_skipped=2), objective=toy.Faulty(frozenset({1, 2})))
    with pytest.raises(FloatingPointError) as caught:
        training.run()
    assert str(caught.value).endswith("; there is no good checkpoint yet")


def loss_of(model) -> Validation:
    loss = held_out(model)
    return Validation({"loss": loss}, -loss, by="loss")


@pytest.mark.parametrize("rate", [1e30, 1e38], ids=["weights that overflow later", "weights that overflow now"])
@pytest.mark.parametrize("max_updates", [4, 15])
def test_diverged_training_keeps_its_last_good_checkpoint(tmp_path, rate, max_updates):
    """It begins healthy and goes on with an absurd rate; too few updates are left for max_skipped to end it."""
    toy.trainer(tmp_path, validate=loss_of, config=toy.config(max_updates=3, validate_every=3)).run()
    good = tmp_path / "checkpoints" / "00000003"
    before = {path.name: path.read_bytes() for path in good.iterdir()}
    optim = OptimConfig(peak_rate=rate, warmup_steps=1, clip_norm=1.0)
    config = toy.config(max_updates=max_updates, validate_every=5, keep_last=1, keep_best=1, optim=optim)
    training = toy.trainer(tmp_path, validate=loss_of, config=config)
    with pytest.raises(FloatingPointError) as caught:
        training.run()
    at = min(max_updates, 5)
    assert training.progress.update == at
    nan = f"a validation must be finite, but after update {at} the loss is nan and the score (loss) nan"
    assert str(caught.value).startswith((nan, f"weights must be finite, but after update {at} some are not"))
    assert f"peak_rate={rate} " in str(caught.value) and str(caught.value).endswith(str(good))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000003"]
    assert {path.name: path.read_bytes() for path in good.iterdir()} == before
    assert training.progress.validations == [(3, pytest.approx(-held_out(read(good)), rel=1e-6))]


def read(checkpoint) -> Transformer:
    model = toy.model()
    set_weights(model, read_weights(checkpoint / "model.safetensors"), "")
    return model.eval()


@pytest.mark.parametrize("wrong", ["weight", "loss", "score"])
def test_non_finite_weights_or_scores_are_not_saved(tmp_path, wrong):
    def validate(model) -> Validation:
        bad = math.nan if len(training.progress.validations) == 2 else 1.0
        return Validation({"loss": bad if wrong == "loss" else 1.0}, bad if wrong == "score" else 1.0, by="bleu")

    def step_and_spoil():
        step()
        if wrong == "weight" and training.progress.update == 12:
            next(training.model.parameters()).data.view(-1)[0] = math.inf

    training = toy.trainer(tmp_path, validate=validate, config=toy.config(validate_every=5))
    step, training.optimizer.step = training.optimizer.step, step_and_spoil
    with pytest.raises(FloatingPointError) as caught:
        training.run()
    messages = {
        "weight": "weights must be finite, but after update 15 some are not",
        "loss": "a validation must be finite, but after update 15 the loss is nan and the score (bleu) 1.0",
        "score": "a validation must be finite, but after update 15 the loss is 1.0 and the score (bleu) nan",
    }
    assert str(caught.value).startswith(messages[wrong])
    assert str(caught.value).endswith(f"{tmp_path / 'checkpoints' / '00000010'}")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000005", "00000010"]


def test_metrics_stay_json_when_an_update_is_skipped(tmp_path, monkeypatch):
    """NaN is no JSON: other readers stop at it."""

    def refuse(constant):
        raise AssertionError(f"{constant} in metrics.jsonl")

    monkeypatch.setattr("transduce.train.log.EVERY", 10)
    toy.trainer(tmp_path, config=toy.config(max_updates=10), objective=toy.Faulty(frozenset({4, 10}))).run()
    lines = [json.loads(x, parse_constant=refuse) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (train,) = (line for line in lines if line["kind"] == "train")
    assert train["skipped"] == 2 and 0 < train["loss"] < 5
