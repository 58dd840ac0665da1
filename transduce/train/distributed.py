"""The processes that train one model: their ranks, exchanges and failures."""

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

T = TypeVar("T")

READY, FAILED = "ready", "failed"
READY_TIMEOUT = timedelta(days=30)
"""How long the other processes wait for the first one to prepare data."""
LATE = timedelta(seconds=15)
"""How long a failed process waits to learn which others have failed. torchrun kills the others
30 s after the first one fails."""
HANG = "TRANSDUCE_HANG_MINUTES"
"""Environment variable: minutes that an exchange waits for the other processes; 10 by default."""
PR_SET_PDEATHSIG = 1
"""Name in <sys/prctl.h> of the signal that a process gets when its parent ends."""
COLLECTIVE = r"gloo|NCCL"
"""Text that the errors of PyTorch's own exchanges contain."""


class PeerFailed(Exception):
    """Another process of this training has failed, and reports why."""


@dataclass(frozen=True)
class World:
    """Process `rank` of `size` processes; shared work goes round-robin: item i to process
    i % size."""

    rank: int = 0
    size: int = 1
    store: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return this process's share of the items."""
        return items[self.rank :: self.size]

    def gather(self, shared: Sequence[T]) -> list[T]:
        """Collect the results of all processes, in the order of the items that were shared."""
        if self.size == 1:
            return list(shared)
        parts: list[Any] = [None] * self.size
        with self.exchanging():
            dist.all_gather_object(parts, list(shared))
        return [parts[i % self.size][i // self.size] for i in range(sum(map(len, parts)))]

    def all_reduce(self, numbers: Float[Tensor, " n"]) -> None:
        """Sum a tensor over all processes, in place; the results are equal bit for bit."""
        with self.exchanging():
            dist.all_reduce(numbers)

    def all_reduce_sum(self, *numbers: float | int) -> list[float]:
        """Return sums over all processes, the same in each."""
        sums = torch.tensor(numbers, dtype=torch.float64)
        if self.size > 1:
            self.all_reduce(sums)
        return sums.tolist()

    def broadcast(self, value: T) -> T:
        """Return the first process's value."""
        if self.size == 1:
            return value
        box = [value]
        with self.exchanging():
            dist.broadcast_object_list(box)
        return box[0]

    def barrier(self) -> None:
        """Let the other processes wait until the first one has come here.

        Raises:
            PeerFailed: the first one failed before it came here.
        """
        if self.size == 1:
            return
        if self.first:
            self.store.set(READY, "yes")
            return
        with self.exchanging():
            self.store.wait([READY], READY_TIMEOUT)
            self._check_peers()

    def report_failure(self) -> bool:
        """Mark the training as failed; returns whether this process is the first to do so."""
        if self.size == 1:
            return True
        try:
            first = self.store.compare_set(FAILED, "", str(self.rank))
            if self.first:  # the others may still wait for it
                self.store.set(READY, "no")
        except RuntimeError:  # without torchrun the store lives in the first process
            return True
        return bool(first == str(self.rank).encode())

    def _check_peers(self) -> None:
        """Raise PeerFailed if another process has reported a failure."""
        if self.store.check([FAILED]):
            raise PeerFailed(FAILED)

    @contextmanager
    def exchanging(self, pattern: str = "") -> Iterator[None]:
        """Explain an exchange that fails inside: a RuntimeError whose text matches the pattern.

        Raises:
            PeerFailed: another process has reported a failure.
            TimeoutError: processes named in the message have died or hang. (NCCL's watchdog ends
                waiting processes by itself after the same time, and names none.)
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not re.search(pattern, str(error)):
                raise
            silent = self._silent_peers()
            if not silent:
                raise
            raise TimeoutError(
                f"process {self.rank} of {self.size} waits in vain: no answer from process "
                f"{', '.join(map(str, silent))}, which hangs or has ended; its own output may say "
                "why. Stop all of them and run the same command again: it goes on from the newest "
                f"checkpoint. If it only needed longer than the others, set {HANG} to more than "
                f"{hang_timeout() / timedelta(minutes=1):g}"
            ) from error

    def _silent_peers(self) -> list[int]:
        """Return the processes that do not notice within LATE that an exchange has failed.

        Raises:
            PeerFailed: one of them has reported a failure.
        """
        peers = {rank: f"waits {rank}" for rank in range(self.size) if rank != self.rank}
        deadline = time.monotonic() + LATE.total_seconds()
        try:
            self.store.set(f"waits {self.rank}", "yes")
            self._check_peers()
            while not self.store.check(list(peers.values())) and time.monotonic() < deadline:
                time.sleep(0.1)
            return [rank for rank, key in peers.items() if not self.store.check([key])]
        except RuntimeError:  # without torchrun the store lives in the first process
            return [0]


def hang_timeout() -> timedelta:
    """Return how long a process waits for the others in an exchange.

    Raises:
        InputError: TRANSDUCE_HANG_MINUTES is not a number above 0.
    """
    text = os.environ.get(HANG, "10")
    try:
        minutes = float(text)
        within("(0, inf)", minutes=minutes)
        return timedelta(minutes=minutes)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{HANG} must be a number of minutes above 0, but it is {text!r}; unset it for 10"
        ) from error


@cache
def world() -> World:
    """This process among those that torchrun started; without torchrun, the only one.

    The first call connects the processes: over NCCL if there are GPUs, one for each process of a
    machine, else over Gloo.

    Raises:
        InputError: the processes cannot reach each other, or see hang_timeout().
    """
    n_processes = environment_count("WORLD_SIZE", "1", least=1)
    if n_processes == 1 or "MASTER_ADDR" not in os.environ:
        return World()
    timeout = hang_timeout()
    gpus = torch.cuda.is_available()
    local_rank = environment_count("LOCAL_RANK") if gpus else 0
    try:
        if gpus:
            torch.cuda.set_device(local_rank)
        store, rank, size = next(dist.rendezvous("env://"))
        # a restart begins with an empty store
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
        store = dist.PrefixStore(f"start {start}", store)
        backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        here = ", ".join(f"{name}={os.environ.get(name, '')}" for name in names)
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise InputError(
            f"the processes of a training must reach each other, but with {here} this one cannot "
            f"({reason}); start them with torchrun, with --standalone or another --master-port "
            "where a port is in use, a GPU for each where there are any, and "
            "GLOO_SOCKET_IFNAME=INTERFACE where a machine has several networks"
        ) from error
    return World(rank, size, store)


def leave() -> bool:
    """Leave the other processes; returns whether this is the first one, which goes on alone.

    torch.distributed keeps the group alive: Gloo may abort a process that drops it.
    """
    here = world()
    if here.size > 1:
        os.environ["WORLD_SIZE"] = "1"
        world.cache_clear()
    return here.first


def end_with_parent() -> None:
    """Let Linux end this process when its parent is killed, as torchrun cannot end it then."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
