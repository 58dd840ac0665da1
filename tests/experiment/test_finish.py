"""The end of a training: candidates for the finished model, and the choice among them."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from tests.train import toy
from transduce.experiment.run import finish, mean_candidates
from transduce.files import write_file
from transduce.report.record import replace_model
from transduce.train.state import Progress, Validation


def test_candidates_are_means_of_the_best_and_of_the_last_checkpoints():
    progress = Progress(update=40, validations=[(10, 1.0), (20, 5.0), (30, 5.0), (40, 2.0)])
    last = {"mean of the 2 last": [30, 40]}
    assert mean_candidates(progress, last=2, best=3) == {"mean of the 3 best": [30, 20, 40], **last}
    assert mean_candidates(progress, last=9, best=1) == last  # without the first half of the training
    assert mean_candidates(progress, last=1, best=1) == {}


def test_two_equal_means_are_one_candidate():
    progress = Progress(update=40, validations=[(20, 1.0), (30, 3.0), (40, 2.0)])
    assert mean_candidates(progress, last=2, best=2) == {"mean of the 2 best": [30, 40]}


@pytest.mark.parametrize(
    ("values", "target", "name", "value", "n_candidates"),
    [
        ((0.0, 9.0, 2.0, 6.0), 6.0, "best checkpoint (update 40)", 6.0, 3),
        ((0.0, 9.0, 2.0, 6.0), 4.0, "mean of the 2 best (update 30, 40)", 4.0, 2),  # which are the last, too
        ((3.9, 4.2, 0.0, 8.0), 4.0, "mean of the 2 last (update 30, 40)", 4.0, 3),
        ((5.0, 5.0, 5.0, 5.0), 5.0, "best checkpoint (update 40)", 5.0, 2),
    ],
)
def test_the_finished_model_is_the_best_candidate(tmp_path, capsys, values, target, name, value, n_candidates):
    """A validation that says how far all weights, which are equal, lie from a target."""

    def validate(model):
        away = abs(next(model.parameters()).mean().item() - target)
        return Validation({"wer": away}, -away, by="wer")

    trainer = toy.trainer(tmp_path, validate=validate, config=toy.config(keep_last=2, keep_best=2))
    for update, each in zip((10, 20, 30, 40), values, strict=True):
        for parameter in trainer.model.parameters():
            torch.nn.init.constant_(parameter, each)
        trainer.progress.update = update
        trainer.progress.validations.append((update, trainer.validation().score))
        trainer.store.save(trainer.model, trainer.optimizer, trainer.progress)
    finish(tmp_path, trainer)
    assert all(torch.equal(t, torch.full_like(t, value)) for t in load_file(tmp_path / "model.safetensors").values())
    said = capsys.readouterr().out
    assert said.startswith(f"finished model: {name}; wer: best checkpoint ")
    scores = [float(score) for score in re.findall(r"[a-z] (\d+\.\d+)", said)]
    assert len(scores) == n_candidates and min(scores) == pytest.approx(abs(value - target), abs=1e-3)


def test_removed_checkpoints_are_no_candidates(tmp_path, capsys):
    """As after the best one was removed because it is damaged, or because a disk was full."""
    validate = toy.Scores([1.0, 9.0, 3.0, 2.0])
    trainer = toy.trainer(tmp_path, validate=validate, config=toy.config(max_updates=4, validate_every=1, keep_best=2))
    trainer.run()
    weights = tmp_path / "checkpoints" / "00000002" / "model.safetensors"
    weights.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"but {weights} is damaged; remove {weights.parent}, and use the others"):
        finish(tmp_path, trainer)
    shutil.rmtree(weights.parent)
    capsys.readouterr()
    validate.values = [0.0]  # of means
    finish(tmp_path, trainer)
    assert capsys.readouterr().out.startswith(
        "finished model: best checkpoint (update 3); score: best checkpoint 3.000"
    )
    model = (tmp_path / "model.safetensors").read_bytes()
    assert model == (tmp_path / "checkpoints" / "00000003" / "model.safetensors").read_bytes()


def test_a_finished_run_without_checkpoints_is_not_trained_anew(tmp_path):
    """The record of the training and the model would be replaced."""
    trainer = toy.trainer(tmp_path, config=toy.config(max_updates=1, validate_every=1))
    trainer.run()
    finish(tmp_path, trainer)
    shutil.rmtree(tmp_path / "checkpoints")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(ValueError) as error:
        toy.trainer(tmp_path, config=toy.config(max_updates=1)).run()
    assert str(error.value) == (
        f"a finished training resumes from its checkpoints, but {tmp_path / 'checkpoints'} has none; put them back, or "
        f"--start-from {tmp_path} --run NEW to go on from its weights"
    )
    assert before == {path: path.read_bytes() for path in before} and tmp_path / "metrics.jsonl" in before


def test_a_single_candidate_is_reported_with_its_measure(tmp_path, capsys):
    config = toy.config(max_updates=1, validate_every=1, keep_last=1)
    trainer = toy.trainer(tmp_path, validate=lambda _: Validation({"wer": 3.0}, -3.0, by="wer"), config=config)
    trainer.run()
    capsys.readouterr()
    finish(tmp_path, trainer)
    assert capsys.readouterr().out == "finished model: best checkpoint (update 1); wer: best checkpoint 3.000\n"


def test_a_new_finished_model_drops_the_old_scores(tmp_path):
    scores = tmp_path / "test.json"
    scores.write_text("[]")
    for n, replaced in ((1, False), (1, False), (2, True)):  # there is none; it is the same; it went on
        config = toy.config(max_updates=n, validate_every=1, keep_last=1)
        trainer = toy.trainer(tmp_path, validate=lambda _: Validation({"wer": 3.0}, -3.0, by="wer"), config=config)
        trainer.run()
        finish(tmp_path, trainer)
        assert scores.exists() != replaced
    assert (tmp_path / "test.before.json").read_text() == "[]"


@pytest.mark.parametrize("killed_at", [1, 2])
def test_replacing_a_model_again_after_a_kill_keeps_its_scores(tmp_path, monkeypatch, killed_at):
    """A kill before either file of weights is written; the scores of the model before the last one do not stay."""
    (tmp_path / "checkpoints" / "00000001").mkdir(parents=True)
    replace_model(tmp_path, b"first")
    (tmp_path / "validation.json").write_text("first's")
    replace_model(tmp_path, b"second")
    assert (tmp_path / "validation.before.json").read_text() == "first's"
    (tmp_path / "test.json").write_text("second's")
    with monkeypatch.context() as patch:
        calls = []

        def write(path, content):
            calls.append(path)
            if len(calls) == killed_at:
                raise KeyboardInterrupt
            write_file(path, content)

        patch.setattr("transduce.report.record.write_file", write)
        with pytest.raises(KeyboardInterrupt):
            replace_model(tmp_path, b"third")
    replace_model(tmp_path, b"third")
    assert (tmp_path / "model.safetensors").read_bytes() == b"third"
    assert (tmp_path / "model.before.safetensors").read_bytes() == b"second"
    scores = {path.name: path.read_text() for path in tmp_path.glob("*.json")}
    assert scores == {"test.before.json": "second's"}
