"""Training speed of several processes on one machine, against one process and against DDP.

Random pairs of 6 to 30 tokens and the model of the benchmark training; an update has a batch of
`--tokens-per-batch` positions per side for every process, then clipping and Adam.

    one process       Trainer.run, with `--processes` threads
    processes         Trainer.run behind torchrun, one thread each
    processes, shard  the same with --training.shard
    processes, DDP    a plain loop with torch's DistributedDataParallel, whose exchange overlaps the
                      backward pass

The systems take turns, each turn new processes, and the median of `--rounds` turns of `--updates`
updates is printed.

    python scripts/bench processes
"""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from bench.training import Corpus, model_config, read_corpus
from bench.training_turns import SMOOTHING, make_trainer
from bench.turns import speed, take_turns
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import transduce as td
from transduce.arguments import Group
from transduce.train.distributed import world
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import OptimConfig, optimizer
from transduce.train.trainer import TrainingConfig

ALONE, OURS, SHARDED, DDP = NAMES = (
    "one process",
    "processes",
    "processes, shard",
    "processes, DDP",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    processes: int = 2
    """Processes, and threads of the one process."""
    device: str = "cpu"
    """cpu or cuda."""
    tokens_per_batch: int = 2048
    """Positions of a side."""
    rounds: int = 3
    """Turns of every system."""
    updates: int = 12
    """Updates of a turn."""
    warm_up: int = 3
    """Updates of a turn before these."""
    tiny: bool = False
    """A model and corpus of seconds, to try the script."""
    worker: tuple[str, Path] | None = None
    """Be a process of a system, with its run directory (used by itself)."""


def make_objective(x: Options) -> CrossEntropy:
    """A model with new weights, and its loss."""
    torch.manual_seed(1)
    model = td.Transformer(model_config(tiny=x.tiny))
    return CrossEntropy(model.to(x.device), label_smoothing=SMOOTHING)


def train_ours(corpus: Corpus, x: Options, directory: Path, *, shard: bool) -> list[float]:
    """The times at which the Trainer's updates ended."""
    config = TrainingConfig(
        accumulate=x.processes,
        max_updates=x.warm_up + x.updates,
        validate_every=10**9,
        shard=shard,
    )
    trainer = make_trainer(make_objective(x), corpus, directory, config)
    times: list[float] = []
    update = trainer._update

    def timed_update(*args: object, **options: object) -> None:
        update(*args, **options)  # type: ignore[arg-type]
        times.append(time.perf_counter())

    trainer._update = timed_update  # type: ignore[method-assign, assignment]
    with contextlib.redirect_stderr(io.StringIO()):
        trainer.run()
    return times


def train_ddp(corpus: Corpus, x: Options) -> list[float]:
    """The same for a loop with DDP."""
    process = world()
    objective = make_objective(x)
    model = DistributedDataParallel(objective.train())
    adam = optimizer(objective.model, OptimConfig())
    times: list[float] = []
    batches = corpus.epoch(0)
    for update in range(x.warm_up + x.updates):
        i = update * process.size + process.rank
        batch = batches[i % len(batches)].to(torch.device(x.device))
        (model(batch).total / batch.n_tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
    return times


def print_rate(name: str, directory: Path, x: Options) -> None:
    """Train as one of the processes of a system; the first one prints updates/s."""
    corpus = read_corpus(None, x.tokens_per_batch, tiny=x.tiny)
    if name == DDP:
        times = train_ddp(corpus, x)
    else:
        times = train_ours(corpus, x, directory, shard=name == SHARDED)
    if world().first:
        print(x.updates / (times[-1] - times[x.warm_up - 1]), flush=True)


def turn(name: str, x: Options) -> float:
    """Updates/s of a system in its own processes."""
    command = [sys.executable]
    if name != ALONE:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(x.processes)]
    environment = os.environ | {"OMP_NUM_THREADS": str(x.processes if name == ALONE else 1)}
    with tempfile.TemporaryDirectory() as directory:
        command += [*sys.argv, "--worker", name, directory]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise SystemExit(f"{name} ended with {result.returncode}: {result.stderr[-2000:]}")
    return float(result.stdout.splitlines()[-1])


def main(x: Group[Options]) -> None:
    if x.worker:
        return print_rate(*x.worker, x)
    rates = take_turns({name: partial(turn, name, x) for name in NAMES}, x.rounds)
    print(f"{x.processes} processes, {x.device}, torch {torch.__version__}")
    for name in NAMES:
        print(f"{name:20} {speed(rates[name], rates[ALONE], 'updates/s', 2)}")
