"""Trainings in several processes, as torchrun starts them."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from tests.train import toy
from transduce.model.transformer import Transformer
from transduce.train import distributed, log
from transduce.train.objectives import CrossEntropy, Objective
from transduce.train.optim import OptimConfig
from transduce.train.state import gathered
from transduce.train.trainer import Trainer

SERVER = multiprocessing.get_context("forkserver")
"""Processes begin as copies of one that has done nothing: a copy of one in which autograd has threads could not train."""
LOADED = ["tests.train.processes", "pytest", "torch._dynamo", "torch.distributed.fsdp", "torch.utils.tensorboard"]
"""What a training imports, once for all processes."""
SERVER.set_forkserver_preload([*LOADED, "tests.train.test_distributed", "tests.train.test_shard_processes"])


class Settings(NamedTuple):
    """Settings that a test may have changed, and that its processes do not inherit."""

    environment: dict[str, str]
    late: timedelta


def alone(work: Callable[[], Any], rank: int, size: int, port: int, settings: Settings, answers: Any) -> None:
    """Run the work in its own process, with the settings of the test and of torchrun, without pictures."""
    torch.set_num_threads(1)
    theirs = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(settings.environment | {name: str(value) for name, value in theirs.items()})
    for number in (signal.SIGINT, signal.SIGTERM):  # whatever the test process has inherited
        signal.signal(number, signal.default_int_handler)
    log.learning_curve = lambda metrics, path: None  # type: ignore[assignment]
    distributed.LATE = settings.late
    distributed.world.cache_clear()
    try:
        answers.put((rank, work()))
    except BaseException as error:
        answers.put((rank, f"{type(error).__name__}: {error}"))


def together(size: int, work: Callable[..., Any], *args: Any, **more: Any) -> list[Any]:
    """Run the work in so many processes; returns each one's result, or the error with which it ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers, settings = SERVER.Queue(), Settings(dict(os.environ), distributed.LATE)
    processes = [
        SERVER.Process(target=alone, args=(partial(work, *args, **more), r, size, port, settings, answers), daemon=True)
        for r in range(size)
    ]
    for process in processes:
        process.start()
    try:
        got = dict(answers.get(timeout=300) for _ in processes)
    finally:
        for process in processes:
            process.kill()
    return [got[rank] for rank in range(size)]


class Trained(NamedTuple):
    """The results of a training."""

    losses: list[float]
    """Of every update."""
    scores: list[float]
    """Of every validation."""
    weights: dict[str, Any]
    norms: list[float]
    """Of the gradient of every update."""


def train(
    directory: Path,
    *,
    model: Callable[[], Transformer] | None = None,
    objective: Callable[[Transformer], Objective] = CrossEntropy,
    parts: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> Trained:
    """A training with dropout, of 12 updates in four epochs.

    Args:
        model: makes another model than the toy's.
        objective: makes the objective. (As an object it would share its weights between the processes of a test.)
        parts: other arguments of the trainer, such as its validation.
        changes: changes of its configuration.
    """
    losses: list[float] = []
    norms: list[float] = []
    settings = {
        "accumulate": 3,
        "max_updates": 12,
        "validate_every": 6,
        "optim": OptimConfig(peak_rate=3e-4, warmup_steps=5),
    }
    given = {
        "objective": objective(model() if model else toy.model(dropout=0.3)),
        "data": toy.Backwards(n=80, tokens_per_batch=64),
        "config": toy.config(**settings | changes),
    }
    trainer = toy.trainer(directory, **given | parts)
    update = trainer.log.update

    def note(progress: Any, parts: dict[str, float], *, norm: float, **more: Any) -> None:
        losses.append(parts["loss"])
        norms.append(norm)
        update(progress, parts, norm=norm, **more)

    trainer.log.update = note
    progress = trainer.run()
    weights = gathered(dict(trainer.model.named_parameters()))
    return Trained(
        losses, [score for _, score in progress.validations], {n: w.tolist() for n, w in weights.items()}, norms
    )


def stopped(directory: Path, at: int, **changes: Any) -> None:
    """Train until only the second process is asked to stop, in this update; all read it an update later."""
    update = Trainer._update

    def interrupted(self: Trainer, *args: Any, **more: Any) -> None:
        if self.world.rank == min(1, self.world.size - 1) and self.progress.update == at - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        update(self, *args, **more)

    Trainer._update = interrupted  # type: ignore[method-assign]
    train(directory, **changes)


def check_same(got: list[Any], want: Any) -> None:
    """All processes have these losses, validations and weights."""
    for each in got:
        assert not isinstance(each, str), each
        assert each.weights == got[0].weights
        for some, wanted in ((each.losses, want.losses), (each.scores, want.scores)):
            torch.testing.assert_close(some, wanted, rtol=0, atol=1e-5)
        torch.testing.assert_close(each.norms, want.norms, rtol=1e-4, atol=0)
