"""Training speed of several processes on one machine, against one process of as many threads, and against DDP.

Random pairs of 6 to 30 tokens and the model of the benchmark training; an update has a batch of `--tokens-per-batch` positions
a side for every process, whoever computes them, and Adam and clipping at its end.

    one process       Trainer.run, with `--processes` threads
    processes         Trainer.run behind torchrun, one thread each
    processes, shard  the same with --training.shard
    processes, DDP    a plain loop with torch's DistributedDataParallel, whose exchange overlaps the backward pass

The systems take turns, each turn new processes, and the median of `--rounds` turns of `--updates` updates is printed.

    python scripts/bench processes
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from bench.training import Corpus, read_corpus
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import transduce as td
from transduce.train.distributed import world
from transduce.train.log import standard_sinks
from transduce.train.objectives import CrossEntropy
from transduce.train.optim import OptimConfig, optimizer
from transduce.train.state import Validation
from transduce.train.trainer import Trainer, TrainingConfig

ALONE, OURS, SHARDED, DDP = NAMES = ("one process", "processes", "processes, shard", "processes, DDP")


def objective(x: argparse.Namespace) -> CrossEntropy:
    """A model with new weights, and its loss."""
    width = 32 if x.tiny else 256
    stack = td.StackConfig(input=td.Tokens(vocab_size=100 if x.tiny else 8000), n_layers=1 if x.tiny else 3)
    config = td.TransformerConfig(encoder=stack, decoder=stack, d_model=width, n_heads=4, d_ff=4 * width, tie="all")
    torch.manual_seed(1)
    return CrossEntropy(td.Transformer(config).to(x.device), label_smoothing=0.1)


def trained(corpus: Corpus, x: argparse.Namespace, directory: Path, *, shard: bool) -> list[float]:
    """When each update of the Trainer ended."""
    n = x.warm_up + x.updates
    config = TrainingConfig(accumulate=x.processes, max_updates=n, validate_every=10**9, shard=shard)
    trainer = Trainer(
        objective=objective(x), data=corpus, validate=lambda _: Validation({"loss": 0.0}, 0.0), config=config,
        directory=directory, sinks=standard_sinks(directory, config),
    )  # fmt: skip
    times, update = list[float](), trainer._update

    def timed(*args: object, **named: object) -> None:
        update(*args, **named)  # type: ignore[arg-type]
        times.append(time.perf_counter())

    trainer._update = timed  # type: ignore[method-assign, assignment]
    with contextlib.redirect_stderr(io.StringIO()):
        trainer.run()
    return times


def plain(corpus: Corpus, x: argparse.Namespace) -> list[float]:
    """The same of a loop with DDP."""
    here, loss_of = world(), objective(x)
    model = DistributedDataParallel(loss_of.train())
    steps, times = optimizer(loss_of.model, OptimConfig()), list[float]()
    batches = corpus.epoch(0)
    for update in range(x.warm_up + x.updates):
        batch = batches[(update * here.size + here.rank) % len(batches)].to(torch.device(x.device))
        (model(batch).total / batch.n_tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
    return times


def turn(name: str, x: argparse.Namespace) -> float:
    """Updates a second of a system in processes of its own."""
    command = [sys.executable]
    if name != ALONE:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(x.processes), "--standalone"]
    with tempfile.TemporaryDirectory() as directory:
        command += [str(Path(__file__).parent), "processes", *sys.argv[1:], "--inside", name, directory]
        environment = os.environ | {"OMP_NUM_THREADS": str(x.processes if name == ALONE else 1)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Read the command line; take turns and print, or be one of the processes of a turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tokens-per-batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a model and corpus of seconds, to try the script")
    parser.add_argument("--inside", nargs=2, metavar=("SYSTEM", "DIRECTORY"), help="be a process (used by itself)")
    x = parser.parse_args()
    if x.inside:
        name, directory = x.inside
        x.data, corpus = None, read_corpus(argparse.Namespace(**vars(x) | {"data": None}))
        times = plain(corpus, x) if name == DDP else trained(corpus, x, Path(directory), shard=name == SHARDED)
        if world().first:
            print(x.updates / (times[-1] - times[x.warm_up - 1]), flush=True)
        return
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(x.rounds):
        for name in NAMES:
            rates[name].append(turn(name, x))
    first = statistics.median(rates[ALONE])
    print(f"{x.processes} processes, {x.device}, torch {torch.__version__}")
    for name, found in rates.items():
        middle = statistics.median(found)
        print(f"{name:20} {middle:6.2f} updates/s {middle / first:5.2f} x  ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
