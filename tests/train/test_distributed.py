"""One training in several processes: the same losses, the same weights, one will."""

import time
from contextlib import redirect_stderr
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import toy
from tests.train.processes import stopped, together, train
from transduce.exit import exit_code
from transduce.train.distributed import World, patience, world
from transduce.train.trainer import Trainer


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What one process gives."""
    return train(tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_give_the_losses_of_one(one, tmp_path, size):
    """The last batches of an epoch are fewer than the processes; the weights are equal in all of them, bit for bit."""
    assert len(toy.Backwards(n=80, tokens_per_batch=64).epoch(0)) % 3 == 1
    first, *others = together(size, train, tmp_path)
    losses = first.losses
    assert len(losses) == 200 and losses[-1] < 0.98 * losses[0]
    torch.testing.assert_close(losses, one.losses, rtol=0, atol=1e-5)
    assert all(other == first for other in others)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4 + 4


def test_the_comparison_can_fail(one, tmp_path, monkeypatch):
    """With the dropout of another process for each batch losses are others."""
    monkeypatch.setattr("transduce.train.trainer.seed_of_batch", lambda seed, update, index: torch.manual_seed(update))
    assert abs(train(tmp_path).losses[150] - one.losses[150]) > 1e-3


def test_a_run_of_two_goes_on_with_one_and_with_three(one, tmp_path):
    begun = together(2, stopped, tmp_path, 76)
    assert begun[0].startswith("KeyboardInterrupt: ") and begun[1].startswith("KeyboardInterrupt: ")
    assert (tmp_path / "checkpoints" / "00000078" / "optimizer.safetensors").is_file()
    losses = together(3, train, tmp_path)[0].losses
    torch.testing.assert_close(losses, one.losses[78:], rtol=0, atol=1e-5)


def test_fewer_batches_than_processes_are_refused(tmp_path):
    said = "ValueError: an update must have a batch for every process, but accumulate=1 and there are 2 processes; give"
    assert all(answer.startswith(f"{said} --training.accumulate 2") for answer in together(2, few, tmp_path))


def few(directory: Path) -> None:
    """One batch an update."""
    train(directory, accumulate=1)


@pytest.mark.parametrize("shard", [False, True])
def test_a_process_that_dies_ends_the_others(tmp_path, monkeypatch, shard):
    monkeypatch.setattr("transduce.train.distributed.LATE", timedelta(seconds=2))
    first, _ = together(2, dying, tmp_path, shard)
    assert first.startswith("TimeoutError: process 0 of 2 waits in vain: no answer from process 1, ")


def dying(directory: Path, shard: bool) -> None:
    """The second process ends in the middle."""
    update = Trainer._update

    def interrupted(self: Trainer, *args: Any, **more: Any) -> None:
        if self.world.rank == 1 and self.progress.update == 5:
            raise ValueError("dead")
        update(self, *args, **more)

    Trainer._update = interrupted  # type: ignore[method-assign]
    train(directory, shard=shard)


@pytest.mark.long
@pytest.mark.parametrize("hung", [0, 1])
def test_a_process_that_hangs_is_named(tmp_path, monkeypatch, hung):
    """With a limit of three seconds. It wakes up later, and finds the other one gone."""
    monkeypatch.setenv("TRANSDUCE_HANG_MINUTES", "0.05")
    monkeypatch.setattr("transduce.train.distributed.LATE", timedelta(seconds=2))
    code, told = together(2, hanging, tmp_path, hung)[1 - hung]
    assert code == 2 and told.endswith(
        f"error: process {1 - hung} of 2 waits in vain: no answer from process {hung}, which hangs or has ended; its own "
        "output may say why. Stop all of them and run the same command again: it goes on from the newest checkpoint. If it "
        "only needed longer than the others, set TRANSDUCE_HANG_MINUTES to more than 0.05\n"
    )


def hanging(directory: Path, hung: int) -> tuple[int, str]:
    """Exit code and stderr of a process of two, of which one sleeps in the middle."""
    update = Trainer._update

    def sleepy(self: Trainer, *args: Any, **more: Any) -> None:
        if self.world.rank == hung and self.progress.update == 5:
            time.sleep(8)
        update(self, *args, **more)

    Trainer._update = sleepy  # type: ignore[method-assign]
    with redirect_stderr(StringIO()) as stderr:
        return exit_code(lambda: train(directory), prefix="error", interrupted=""), stderr.getvalue()


@pytest.mark.parametrize("told", ["soon", "0", "-1", "nan", "1e300"])
def test_a_limit_that_is_no_time_is_refused(monkeypatch, told):
    monkeypatch.setenv("TRANSDUCE_HANG_MINUTES", told)
    with pytest.raises(ValueError) as caught:
        patience()
    assert str(caught.value) == (
        f"TRANSDUCE_HANG_MINUTES must be a number of minutes above 0, but it is {told!r}; unset it for 10"
    )


def test_the_clock_of_the_first_process_counts(tmp_path):
    """All save when ten minutes are over, which they hear of an update later; and at the end."""
    for seconds, saved in together(2, clocks, tmp_path):
        assert 1000 <= seconds < 1100 and saved == [2, 4]


def clocks(directory: Path) -> tuple[float, list[int]]:
    """The time, and where it saves, of a training whose first process began 1000 s earlier than its second."""
    config = toy.config(accumulate=2, max_updates=4, validate_every=4, save_every_minutes=10.0)
    trainer, saved = toy.trainer(directory, config=config), []
    exchange, save = trainer.parallel.exchange, trainer._save
    trainer._save = lambda: (saved.append(trainer.progress.update), save())  # type: ignore[method-assign]

    def shifted(*args: Any) -> Any:
        if trainer.progress.update == 0 and trainer.world.first:
            trainer.started -= 1000
        return exchange(*args)

    trainer.parallel.exchange = shifted  # type: ignore[method-assign]
    return trainer.run().seconds, saved


def test_work_is_shared_by_round_and_gathered_in_order():
    assert together(3, shared) == [[0, 1, 4, 9, 16, 25, 36]] * 3
    assert World().gather(World().share([1, 2])) == [1, 2]


def shared() -> list[int]:
    """Squares of seven numbers."""
    return world().gather([i * i for i in world().share(range(7))])
