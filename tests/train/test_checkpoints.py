"""Which updates are validated, which checkpoints are kept, and which of them are chosen."""

import signal
from dataclasses import replace

import pytest

from tests.train import toy
from transduce.train.state import Progress, Validation


def test_patience_ends_training_after_validations_without_improvement(tmp_path):
    scores = toy.Scores([1.0, 3.0, 2.0, 3.0, 2.9, 9.0])  # an equal score is no better one
    config = toy.config(max_updates=100, validate_every=2, patience=3)
    progress = toy.trainer(tmp_path, config=config, validate=scores).run()
    assert progress.update == 10
    assert progress.validations == [(2, 1.0), (4, 3.0), (6, 2.0), (8, 3.0), (10, 2.9)]


def test_pretrained_weights_are_validated_before_training(tmp_path):
    """They may be better than all that follow; the same command again does not validate them twice."""
    for _ in range(2):
        scores = toy.Scores([9.0, 1.0, 2.0, 3.0])
        config = toy.config(max_updates=6, validate_every=2)
        progress = toy.trainer(tmp_path, config=config, validate=scores, pretrained=True).run()
        assert progress.validations == [(0, 9.0), (2, 1.0), (4, 2.0), (6, 3.0)]
    assert progress.best(1) == [0]
    assert (tmp_path / "checkpoints" / "00000000" / "model.safetensors").is_file()


def test_training_ends_with_a_validation(tmp_path):
    progress = toy.trainer(tmp_path, config=toy.config(max_updates=5, validate_every=3)).run()
    assert [update for update, _ in progress.validations] == [3, 5]


def test_signal_during_the_last_validation_takes_effect_after_it(tmp_path):
    def validate(model):
        signal.raise_signal(signal.SIGTERM)
        return Validation({"loss": 1.0}, 1.0)

    training = toy.trainer(tmp_path, config=toy.config(max_updates=3), validate=validate)
    with pytest.raises(KeyboardInterrupt):
        training.run()
    assert training.store.newest().name == "00000003"


def test_only_the_last_and_best_checkpoints_are_kept(tmp_path):
    scores = toy.Scores([1.0, 9.0, 8.0, 2.0, 7.0, 3.0, 4.0])
    config = toy.config(max_updates=14, validate_every=2, keep_last=2, keep_best=3)
    progress = toy.trainer(tmp_path, config=config, validate=scores).run()
    kept = sorted((tmp_path / "checkpoints").iterdir())
    assert [int(path.name) for path in kept] == [4, 6, 10, 12, 14]  # 9, 8 and 7 are the best; 12 and 14 the last
    for path in kept:
        files = {"model.safetensors", "state.json", "manifest.json"}
        files |= {"optimizer.safetensors"} if path in kept[-2:] else set()
        assert {file.name for file in path.iterdir()} == files
    assert progress.best(3) == [4, 6, 10] and progress.last(2) == [12, 14]


def test_progress_selects_best_and_last_checkpoints():
    progress = Progress(update=40, validations=[(10, 1.0), (20, 5.0), (30, 5.0), (40, 2.0)])
    assert progress.best(1) == [30]  # the later of two equals
    assert progress.best(3) == [30, 20, 40] and progress.last(3) == [20, 30, 40]
    assert progress.best_validation().score == 5.0
    assert progress.validations_since_best == 2 and progress.validated
    assert not replace(progress, update=41).validated
    assert Progress().validations_since_best == 0 and not Progress().validated
