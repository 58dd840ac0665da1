"""A plain PyTorch loop and ours, in turns: what the benchmarks of training share."""

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count, islice
from pathlib import Path

import torch
from torch import nn

from transduce.data.batch import Batch
from transduce.train.log import standard_sinks
from transduce.train.objectives import CrossEntropy
from transduce.train.state import Validation
from transduce.train.trainer import Trainer, TrainingConfig

SMOOTHING = 0.1
"""Label smoothing of every system."""


def cpu_seconds() -> float:
    """What this process and the compilers that it started have used: beside other work it says more than the clock."""
    return sum(os.times()[:4])


class Clock(Sequence[Batch]):
    """Batches whose tokens are noted when asked for, which may be ahead of use; the time runs from the first of a turn."""

    def __init__(self, epoch: Callable[[int], Sequence[Batch]], device: str) -> None:
        self.make, self.device = epoch, device
        self.n_tokens: list[int] = []
        self.start = self.seconds = self.cpu_start = self.cpu_seconds = 0.0

    def epoch(self, n: int) -> "Clock":
        self.batches = self.make(n)
        return self

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> Batch:  # type: ignore[override]  # no slices
        if not self.start:
            self.start, self.cpu_start = time.perf_counter(), cpu_seconds()
        batch = self.batches[i]
        self.n_tokens.append(batch.n_tokens)
        return batch

    def stop(self, n_updates: int) -> float:
        """Target tokens per second of this turn of so many updates; the next batch begins a new one."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.seconds, self.cpu_seconds = time.perf_counter() - self.start, cpu_seconds() - self.cpu_start
        rate = sum(self.n_tokens[:n_updates]) / self.seconds
        self.n_tokens, self.start = [], 0.0
        return rate


class Ours:
    """Turns of `Trainer.run`, each of which resumes from the checkpoint of the one before."""

    def __init__(
        self, objective: CrossEntropy, epoch: Callable[[int], Sequence[Batch]], x: argparse.Namespace, **how: object
    ) -> None:
        self.clock, self.rate, self.n_updates = Clock(epoch, x.device), 0.0, 0
        self.directory = tempfile.TemporaryDirectory()
        config = TrainingConfig(validate_every=10**9, keep_last=1, keep_best=1, **how)  # type: ignore[arg-type]
        self.model = objective.model
        self.trainer = Trainer(
            objective=objective, data=self.clock, validate=self.validate, config=config,
            directory=Path(self.directory.name),
            sinks=standard_sinks(Path(self.directory.name), config),
        )  # fmt: skip

    def validate(self, _: nn.Module) -> Validation:
        """Called right after the last update of a turn."""
        self.rate = self.clock.stop(self.n_updates)
        return Validation({"loss": 0.0}, 0.0)

    def __call__(self, n_updates: int) -> float:
        self.n_updates = n_updates
        self.trainer.config = replace(self.trainer.config, max_updates=self.trainer.progress.update + n_updates)
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar amid the table
            self.trainer.run()
        return self.rate


def there(batch: Batch, device: str) -> Batch:
    """As a tutorial copies: tensor by tensor, waiting for each."""
    tensors = {f.name: t for f in fields(batch) if isinstance(t := getattr(batch, f.name), torch.Tensor)}
    return replace(batch, **{name: t.to(device) for name, t in tensors.items()})


class Plain:
    """Turns of the loop that a tutorial writes, with a model that gives the loss of a batch."""

    def __init__(self, model: nn.Module, epoch: Callable[[int], Sequence[Batch]], x: argparse.Namespace) -> None:
        self.model, self.device, self.clock = model, x.device, Clock(epoch, x.device)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
        self.batches = self.endless()

    def endless(self) -> Iterator[Batch]:
        for n in count():
            yield from self.clock.epoch(n)

    def __call__(self, n_updates: int) -> float:
        self.model.train()
        for batch in islice(self.batches, n_updates):
            loss = self.model(there(batch, self.device))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            loss.item()  # a loop shows its loss
        return self.clock.stop(n_updates)


def check_sizes(ours: nn.Module, plain: nn.Module) -> None:
    """Stop where the models are not equally large."""
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, plain)]
    if sizes[0] != sizes[1]:
        raise SystemExit(f"both models must have as many parameters, but ours has {sizes[0]} and the plain {sizes[1]}")


def take_turns(systems: Mapping[str, Plain | Ours], x: argparse.Namespace) -> None:
    """Print how long the first update of each took, and then the speed of each, as a ratio to the first one's."""
    for name, run in systems.items():
        run(1)
        print(
            f"{name:24} {run.clock.seconds:7.1f} s for the first update, {run.clock.cpu_seconds:.1f} s of CPU",
            flush=True,
        )
        if x.warm_up > 1:
            run(x.warm_up - 1)
    rates: dict[str, list[float]] = {name: [] for name in systems}
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(x.rounds):
        for name, run in systems.items():
            rates[name].append(run(x.updates))
            times[name].append(1000 * run.clock.cpu_seconds / x.updates)
    middle = {name: statistics.median(rate) for name, rate in rates.items()}
    first = middle[next(iter(systems))]
    for name, rate in rates.items():
        spread = f"{min(rate):,.0f} to {max(rate):,.0f}"
        ratio, each = middle[name] / first, statistics.median(times[name])
        print(
            f"{name:24} {middle[name]:7,.0f} target tokens/s {ratio:6.2f} x  ({spread}), {each:,.0f} ms of CPU",
            flush=True,
        )


def add_turns(parser: argparse.ArgumentParser) -> None:
    """The options of a benchmark whose systems take turns."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system (default: 3)")
    parser.add_argument("--updates", type=int, default=8, help="updates of a turn (default: 8)")
    parser.add_argument("--warm-up", type=int, default=3, help="updates before the first turn (default: 3)")
    parser.add_argument("--tiny", action="store_true", help="a model and corpus of seconds, to try the script")
