"""Among checkpoints with equal scores, the one with the lower loss is better; then the later one."""

import json

import pytest

from tests.train import toy
from transduce.train.state import Progress, Validation


def test_equal_scores_are_decided_by_loss_and_then_by_time():
    scores, losses = [0.0, 1.0, 1.0, 1.0, 0.0], [1.0, 3.0, 2.0, 2.0, 0.5]
    progress = Progress(validations=list(enumerate(scores, start=1)), losses=losses)
    assert progress.best(5) == [4, 3, 2, 5, 1]
    assert progress.validations_since_best == 2  # of the third, than which the fourth is no better


def test_checkpoints_without_losses_rank_last_and_by_time():
    progress = Progress(validations=[(1, 0.0), (2, 0.0), (3, 0.0)], losses=[9.0])
    assert progress.best(3) == [3, 2, 1]


@pytest.mark.parametrize("patience", [2, 3])
def test_patience_counts_falling_losses_at_equal_scores(tmp_path, patience):
    losses = iter([3.0, 2.0, 1.5, 1.6, 1.7, 1.8, 1.9])
    config = toy.config(max_updates=7, validate_every=1, patience=patience)
    trainer = toy.trainer(tmp_path, config=config, validate=lambda model: Validation({"loss": next(losses)}, 0.0))
    progress = trainer.run()
    assert progress.update == 3 + patience and progress.best(1) == [3]
    state = json.loads((tmp_path / f"checkpoints/{progress.update:08d}/state.json").read_text())
    assert state["losses"] == [3.0, 2.0, 1.5, 1.6, 1.7, 1.8, 1.9][: 3 + patience]
