"""The processes that train one model: which of them this is, and what they tell one another."""

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from transduce.config import environment_count, within
from transduce.errors import InputError
from transduce.train.config import TrainingConfig

T = TypeVar("T")

PREPARED, FAILED = "prepared", "failed"
PATIENCE = timedelta(days=30)
"""How long the others wait for the first process to prepare data."""
LATE = timedelta(seconds=15)
"""Within which a process that does not hang hears that another one has given up. torchrun kills what lives 30 s longer than
the first that has ended."""
HANG = "TRANSDUCE_HANG_MINUTES"
"""The environment variable with the minutes that a process waits for the others in an exchange; 10 where it is not set."""

PR_SET_PDEATHSIG = 1
"""The name that <sys/prctl.h> has for the signal that a process gets when its parent ends."""


COLLECTIVE = r"gloo|NCCL"
"""What the errors of exchanges that PyTorch makes by itself have in their text."""


class PeerFailed(Exception):
    """Another process of this training has failed, and says why."""


LEFT: list["World"] = []
"""The groups that this process has been in."""


@dataclass(frozen=True)
class World:
    """One process of `size`, by its `rank`; what is shared goes by round: item i to process i % size."""

    rank: int = 0
    size: int = 1
    store: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0

    def check(self, config: TrainingConfig) -> None:
        """Raise InputError where so many processes cannot share a training of this configuration."""
        if config.accumulate < self.size:
            raise InputError(
                f"an update must have a batch for every process, but accumulate={config.accumulate} and there are "
                f"{self.size} processes; give --training.accumulate {self.size}, by which an update has "
                f"{self.size / config.accumulate:g} x as many tokens; make batches smaller by as much, or raise the rate"
            )
        if config.shard and self.size == 1:
            raise InputError(
                "weights are sharded among several processes, but shard=True and there is 1 process; start the same "
                "command with torchrun --nproc-per-node 2 --, or leave --training.shard away"
            )

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """What this process does of some work."""
        return items[self.rank :: self.size]

    def gather(self, shared: Sequence[T]) -> list[T]:
        """The results of all processes for what `share` gave them, in the order of the whole work."""
        if self.size == 1:
            return list(shared)
        parts: list[Any] = [None] * self.size
        self._named(dist.all_gather_object, parts, list(shared))
        return [parts[i % self.size][i // self.size] for i in range(sum(map(len, parts)))]

    def total(self, *numbers: float | int) -> list[float]:
        """Sums over all processes, the same in each."""
        if self.size == 1:
            return [float(number) for number in numbers]
        sums = torch.tensor(numbers, dtype=torch.float64)
        self._named(dist.all_reduce, sums)
        return sums.tolist()

    def add_up(self, numbers: Float[Tensor, " n"]) -> None:
        """Sum a tensor over all processes, in place; afterwards it is the same, bit for bit, in each."""
        self._named(dist.all_reduce, numbers)

    def told(self, value: T) -> T:
        """What the first process says."""
        if self.size > 1:
            box = [value]
            self._named(dist.broadcast_object_list, box)
            return box[0]
        return value

    def prepared(self) -> None:
        """Of the first process: tell the others that the data is prepared. Of the others: wait for that.

        Raises:
            PeerFailed: it could not be prepared.
        """
        if self.size > 1 and self.first:
            self.store.set(PREPARED, "yes")
        elif self.size > 1:
            with self.exchanging():
                self.store.wait([PREPARED], PATIENCE)
                if self.store.check([FAILED]):
                    raise PeerFailed(FAILED)

    def fails(self) -> bool:
        """Let the others know that this process ends with an error; whether it is the first to, which says why."""
        if self.size == 1:
            return True
        try:
            first = self.store.compare_set(FAILED, "", str(self.rank))
            if self.first:  # the others may still wait for it
                self.store.set(PREPARED, "no")
        except RuntimeError:  # without torchrun the store is the first process's
            return True
        return bool(first == str(self.rank).encode())

    def _named(self, exchange: Any, *values: Any) -> None:
        with self.exchanging():
            exchange(*values)

    @contextmanager
    def exchanging(self, pattern: str = "") -> Iterator[None]:
        """While open, an exchange that fails (a RuntimeError whose text has the pattern) ends with what has ended it.

        Raises:
            PeerFailed: another process has said that it fails.
            TimeoutError: a process has died or hangs; the message says which. (NCCL's watchdog ends the waiting
                processes by itself after the same time, and names none.)
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not re.search(pattern, str(error)):
                raise
            if not (silent := self._silent()):
                raise
            raise TimeoutError(
                f"process {self.rank} of {self.size} waits in vain: no answer from process {', '.join(map(str, silent))}, "
                "which hangs or has ended; its own output may say why. Stop all of them and run the same command again: "
                f"it goes on from the newest checkpoint. If it only needed longer than the others, set {HANG} to more "
                f"than {patience() / timedelta(minutes=1):g}"
            ) from error

    def _silent(self) -> list[int]:
        """The processes that do not find out within LATE that an exchange has failed.

        Raises:
            PeerFailed: one of them has said that it fails.
        """
        others = {rank: f"waits {rank}" for rank in range(self.size) if rank != self.rank}
        until = time.monotonic() + LATE.total_seconds()
        try:
            self.store.set(f"waits {self.rank}", "yes")
            if self.store.check([FAILED]):
                raise PeerFailed(FAILED)
            while not self.store.check(list(others.values())) and time.monotonic() < until:
                time.sleep(0.1)
            return [rank for rank, answer in others.items() if not self.store.check([answer])]
        except RuntimeError:  # without torchrun the store is the first process's
            return [0]


def patience() -> timedelta:
    """How long a process waits for the others in an exchange.

    Raises:
        InputError: TRANSDUCE_HANG_MINUTES is no number above 0.
    """
    told = os.environ.get(HANG, "10")
    try:
        minutes = float(told)
        within("(0, inf)", **{HANG: minutes})
        return timedelta(minutes=minutes)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{HANG} must be a number of minutes above 0, but it is {told!r}; unset it for 10") from error


@cache
def world() -> World:
    """This process among those that torchrun has started; alone where it has not.

    The first call joins them: over NCCL where there are GPUs, one for each process of a machine, over Gloo on CPUs.

    Raises:
        InputError: the processes cannot reach each other, or see patience().
    """
    if environment_count(os.environ, "WORLD_SIZE", "1", least=1) == 1 or "MASTER_ADDR" not in os.environ:
        return World()
    limit, gpus = patience(), torch.cuda.is_available()
    local = environment_count(os.environ, "LOCAL_RANK") if gpus else 0
    try:
        if gpus:
            torch.cuda.set_device(local)
        store, rank, size = next(dist.rendezvous("env://"))
        # a restart finds it empty
        store = dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        here = ", ".join(f"{name}={os.environ.get(name, '')}" for name in names)
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise InputError(
            f"the processes of a training must reach each other, but with {here} this one cannot ({reason}); start them with "
            "torchrun, with --standalone or another --master-port where a port is in use, a GPU for each where there are any, "
            "and GLOO_SOCKET_IFNAME=INTERFACE where a machine has several networks"
        ) from error
    return World(rank, size, store)


def leave() -> bool:
    """Part from the other processes; whether this is the first one, which goes on alone.

    The group is kept: Gloo may abort a process that drops it.
    """
    here = world()
    if here.size > 1:
        LEFT.append(here)
        os.environ["WORLD_SIZE"] = "1"
        world.cache_clear()
    return here.first


def end_with_parent() -> None:
    """Let Linux end this process when the one that started it has been killed, as torchrun cannot end it then."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform.startswith("linux") else None
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
