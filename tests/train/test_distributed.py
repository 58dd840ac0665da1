"""One training in several processes: the same losses, the same weights, one will."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import toy
from transduce.train.distributed import World, world
from transduce.train.optim import OptimConfig
from transduce.train.trainer import Trainer

FORK = multiprocessing.get_context("fork")


def alone(work: Callable[..., Any], args: tuple[Any, ...], rank: int, size: int, port: int, answers: Any) -> None:
    """In a process of its own: what torchrun would set, then the work."""
    torch.set_num_threads(1)
    theirs = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in theirs.items()})
    world.cache_clear()
    try:
        answers.put((rank, work(*args)))
    except BaseException as error:
        answers.put((rank, f"{type(error).__name__}: {error}"))


def together(size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What the work returns, or the error it ends with, in each of so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = FORK.Queue()
    processes = [
        FORK.Process(target=alone, args=(work, args, r, size, port, answers), daemon=True) for r in range(size)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(answers.get(timeout=120) for _ in processes)
    finally:
        for process in processes:
            process.kill()
    return [found[rank] for rank in range(size)]


def train(directory: Path, **changes: Any) -> tuple[list[float], dict[str, Any]]:
    """The losses of all updates of a training with dropout, and the weights it ends with."""
    losses: list[float] = []
    settings = {
        "accumulate": 3,
        "max_updates": 200,
        "validate_every": 60,
        "optim": OptimConfig(peak_rate=3e-4, warmup_steps=50),
    }
    trainer = toy.trainer(
        directory,
        objective=toy.CrossEntropy(toy.model(dropout=0.3)),
        data=toy.Backwards(n=80, tokens_per_batch=64),
        config=toy.config(**settings | changes),
    )
    update = trainer.log.update
    trainer.log.update = lambda progress, parts, **more: (losses.append(parts["loss"]), update(progress, parts, **more))
    trainer.run()
    return losses, {name: p.tolist() for name, p in trainer.model.named_parameters()}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What one process gives."""
    return train(tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_give_the_losses_of_one(one, tmp_path, size):
    """The last batches of an epoch are fewer than the processes; the weights are equal in all of them, bit for bit."""
    assert len(toy.Backwards(n=80, tokens_per_batch=64).epoch(0)) % 3 == 1
    (losses, weights), *others = together(size, train, tmp_path)
    assert len(losses) == 200 and losses[-1] < 0.98 * losses[0]
    torch.testing.assert_close(losses, one[0], rtol=0, atol=1e-5)
    assert all(other == (losses, weights) for other in others)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4 + 4


def test_the_comparison_can_fail(one, tmp_path, monkeypatch):
    """With the dropout of another process for each batch losses are others."""
    monkeypatch.setattr("transduce.train.trainer.seed_of_batch", lambda seed, update, index: torch.manual_seed(update))
    losses, _ = train(tmp_path)
    assert abs(losses[150] - one[0][150]) > 1e-3


def test_a_run_of_two_goes_on_with_one_and_with_three(one, tmp_path):
    begun = together(2, first_half, tmp_path)
    assert begun[0].startswith("KeyboardInterrupt: ") and begun[1].startswith("KeyboardInterrupt: ")
    assert (tmp_path / "checkpoints" / "00000078" / "optimizer.safetensors").is_file()
    (losses, _), *_ = together(3, train, tmp_path)
    torch.testing.assert_close(losses, one[0][78:], rtol=0, atol=1e-5)


def first_half(directory: Path) -> None:
    """Train until only the second process is asked to stop, in update 76; they all read it an update later."""
    update = Trainer._update

    def interrupted(self: Trainer, group: Any, stop: bool) -> None:
        if self.world.rank == 1 and self.progress.update == 75:
            os.kill(os.getpid(), signal.SIGTERM)
        update(self, group, stop)

    Trainer._update = interrupted  # type: ignore[method-assign]
    train(directory)


def test_fewer_batches_than_processes_are_refused(tmp_path):
    said = "ValueError: an update must have a batch for every process, but accumulate=1 and there are 2 processes; give"
    assert all(answer.startswith(f"{said} --training.accumulate 2") for answer in together(2, few, tmp_path))


def few(directory: Path) -> None:
    """One batch an update."""
    train(directory, accumulate=1)


def test_a_process_that_dies_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("transduce.train.distributed.LATE", timedelta(seconds=2))
    first, _ = together(2, dying, tmp_path)
    assert first.startswith("RuntimeError: process 0 of 2 waits in vain: ")


def dying(directory: Path) -> None:
    """The second process ends in the middle."""
    update = Trainer._update

    def interrupted(self: Trainer, group: Any, stop: Any) -> None:
        if self.world.rank == 1 and self.progress.update == 5:
            raise ValueError("dead")
        update(self, group, stop)

    Trainer._update = interrupted  # type: ignore[method-assign]
    train(directory)


def test_the_clock_of_the_first_process_counts(tmp_path):
    for seconds in together(2, clocks, tmp_path):
        assert 1000 <= seconds < 1100


def clocks(directory: Path) -> float:
    """The time of a training whose first process began 1000 s earlier than its second."""
    trainer = toy.trainer(directory, config=toy.config(accumulate=2, max_updates=3, validate_every=3))
    exchange = trainer.parallel.exchange

    def shifted(*args: Any) -> Any:
        if trainer.progress.update == 0 and trainer.world.first:
            trainer.started -= 1000
        return exchange(*args)

    trainer.parallel.exchange = shifted  # type: ignore[method-assign]
    return trainer.run().seconds


def test_work_is_shared_by_round_and_gathered_in_order():
    assert together(3, shared) == [[0, 1, 4, 9, 16, 25, 36]] * 3
    assert World().gather(World().share([1, 2])) == [1, 2]


def shared() -> list[int]:
    """Squares of seven numbers."""
    return world().gather([i * i for i in world().share(range(7))])
