"""Code that the training benchmarks share: a plain PyTorch loop and the Trainer take turns."""

import contextlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count, islice
from pathlib import Path

import torch
from bench.turns import speed, take_turns
from torch import nn

from transduce.data.batch import Batch
from transduce.train.log import standard_sinks
from transduce.train.objectives import CrossEntropy
from transduce.train.state import Validation
from transduce.train.trainer import Trainer, TrainingConfig

SMOOTHING = 0.1
"""Label smoothing of every system."""

Epochs = Callable[[int], Sequence[Batch]]
"""From the number of an epoch to its batches."""


@dataclass(frozen=True, kw_only=True)
class TurnOptions:
    """Options of a benchmark whose systems take turns."""

    device: str = "cpu"
    """cpu or cuda."""
    threads: int = 2
    """Threads of PyTorch."""
    rounds: int = 3
    """Turns of every system."""
    updates: int = 8
    """Updates of a turn."""
    warm_up: int = 3
    """Updates before the first turn."""
    tiny: bool = False
    """A model and corpus of seconds, to try the script."""


def cpu_seconds() -> float:
    """CPU time of this process and of the compilers that it started."""
    return sum(os.times()[:4])


class Clock(Sequence[Batch]):
    """Batches that time a turn, starting when the first one is read, perhaps by prefetching."""

    def __init__(self, epochs: Epochs, device: str) -> None:
        self.epochs = epochs
        self.device = device
        self.n_tokens: list[int] = []
        self.start = self.seconds = self.cpu_start = self.cpu_seconds = 0.0

    def epoch(self, n: int) -> "Clock":
        self.batches = self.epochs(n)
        return self

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> Batch:  # type: ignore[override]  # no slices
        if not self.start:
            self.start = time.perf_counter()
            self.cpu_start = cpu_seconds()
        batch = self.batches[i]
        self.n_tokens.append(batch.n_tokens)
        return batch

    def stop(self, n_updates: int) -> float:
        """Target tokens/s of a turn of `n_updates`; the next batch begins a new turn."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.start
        self.cpu_seconds = cpu_seconds() - self.cpu_start
        rate = sum(self.n_tokens[:n_updates]) / self.seconds
        self.n_tokens = []
        self.start = 0.0
        return rate


def make_trainer(
    objective: CrossEntropy,
    data: object,
    directory: Path,
    config: TrainingConfig,
    validate: Callable[[nn.Module], Validation] = lambda _: Validation({"loss": 0.0}, 0.0),
) -> Trainer:
    """A Trainer with the same logs as in recipes; by default, its validation computes nothing."""
    return Trainer(
        objective=objective,
        data=data,
        validate=validate,
        config=config,
        directory=directory,
        sinks=standard_sinks(directory, config),
    )


class Ours:
    """Turns of `Trainer.run`, each of which resumes from the checkpoint of the one before."""

    def __init__(
        self,
        objective: CrossEntropy,
        epochs: Epochs,
        x: TurnOptions,
        *,
        precision: str,
        compile: bool = False,
    ) -> None:
        self.clock = Clock(epochs, x.device)
        self.directory = tempfile.TemporaryDirectory()
        config = TrainingConfig(
            validate_every=10**9, keep_last=1, keep_best=1, precision=precision, compile=compile
        )
        self.model = objective.model
        self.trainer = make_trainer(
            objective, self.clock, Path(self.directory.name), config, self.validate
        )

    def validate(self, _: nn.Module) -> Validation:
        """Called right after the last update of a turn."""
        self.rate = self.clock.stop(self.n_updates)
        return Validation({"loss": 0.0}, 0.0)

    def __call__(self, n_updates: int) -> float:
        self.n_updates = n_updates
        max_updates = self.trainer.progress.update + n_updates
        self.trainer.config = replace(self.trainer.config, max_updates=max_updates)
        with contextlib.redirect_stderr(io.StringIO()):  # no progress bar inside the table
            self.trainer.run()
        return self.rate


def copy_to(batch: Batch, device: str) -> Batch:
    """Copy a batch as tutorials do: tensor by tensor, waiting for each."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {
        name: value.to(device) for name, value in values.items() if isinstance(value, torch.Tensor)
    }
    return replace(batch, **tensors)


class Plain:
    """Turns of a typical tutorial's loop, with a model that returns the loss of a batch."""

    def __init__(self, model: nn.Module, epochs: Epochs, x: TurnOptions) -> None:
        self.model = model
        self.device = x.device
        self.clock = Clock(epochs, x.device)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
        self.batches = self.endless()

    def endless(self) -> Iterator[Batch]:
        for n in count():
            yield from self.clock.epoch(n)

    def __call__(self, n_updates: int) -> float:
        self.model.train()
        for batch in islice(self.batches, n_updates):
            loss = self.model(copy_to(batch, self.device))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            loss.item()  # a loop shows its loss
        return self.clock.stop(n_updates)


def check_sizes(ours: nn.Module, plain: nn.Module) -> int:
    """The number of parameters of both models; exits if they differ."""
    n_ours, n_plain = (sum(p.numel() for p in model.parameters()) for model in (ours, plain))
    if n_ours != n_plain:
        raise SystemExit(
            f"both models must have as many parameters, but ours has {n_ours} and the plain one "
            f"{n_plain}"
        )
    return n_ours


def compare_training(systems: Mapping[str, Plain | Ours], x: TurnOptions) -> None:
    """Print the time of each system's first update, then the speed of each system."""

    def turn(run: Plain | Ours) -> tuple[float, float]:
        return run(x.updates), 1000 * run.clock.cpu_seconds / x.updates

    for name, run in systems.items():
        run(1)
        print(
            f"{name:24} {run.clock.seconds:7.1f} s for the first update, "
            f"{run.clock.cpu_seconds:.1f} s of CPU",
            flush=True,
        )
        if x.warm_up > 1:
            run(x.warm_up - 1)
    turns = take_turns({name: partial(turn, run) for name, run in systems.items()}, x.rounds)
    first = next(iter(systems))
    baseline = [rate for rate, _ in turns[first]]
    for name, results in turns.items():
        rates, milliseconds = zip(*results, strict=True)
        row = speed(rates, baseline, "target tokens/s", 0)
        print(f"{name:24} {row}, {statistics.median(milliseconds):,.0f} ms of CPU", flush=True)
