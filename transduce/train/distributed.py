"""The processes that train one model: their ranks, exchanges and failures, and how they share an
update: batches are shared, gradients are summed, and weights may be sharded."""

import ctypes
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from transduce.config import environment_count, within
from transduce.errors import InputError
from transduce.train.objectives import Objective
from transduce.train.optim import LAYER
from transduce.train.state import local

T = TypeVar("T")

READY, FAILED = "ready", "failed"
READY_TIMEOUT = timedelta(days=30)
"""How long the other processes wait for the first one to prepare data."""
LATE = timedelta(seconds=15)
"""How long a failed process waits to learn who else has failed. torchrun kills whatever outlives
the first process that ends by 30 s."""
HANG = "TRANSDUCE_HANG_MINUTES"
"""Environment variable: minutes that an exchange waits for the other processes; 10 by default."""
PR_SET_PDEATHSIG = 1
"""Name in <sys/prctl.h> of the signal that a process gets when its parent ends."""
COLLECTIVE = r"gloo|NCCL"
"""Text that the errors of PyTorch's own exchanges contain."""


class PeerFailed(Exception):
    """Another process of this training has failed, and reports why."""


LEFT: list["World"] = []
"""Groups that this process has left."""


@dataclass(frozen=True)
class World:
    """One process, `rank`, of `size`; shared work goes round: item i to process i % size."""

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
        """Sum a tensor over all processes, in place; the result is the same bits in each."""
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
            PeerFailed: the first one failed on its way.
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
        """Explain an exchange that fails within: a RuntimeError whose text matches the pattern.

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
        InputError: TRANSDUCE_HANG_MINUTES is no number above 0.
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
    """This process among those that torchrun has started; alone where it has not.

    The first call joins them: over NCCL where there are GPUs, one for each process of a machine,
    over Gloo on CPUs.

    Raises:
        InputError: the processes cannot reach each other, or see hang_timeout().
    """
    n_processes = environment_count(os.environ, "WORLD_SIZE", "1", least=1)
    if n_processes == 1 or "MASTER_ADDR" not in os.environ:
        return World()
    timeout = hang_timeout()
    gpus = torch.cuda.is_available()
    local_rank = environment_count(os.environ, "LOCAL_RANK") if gpus else 0
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

    The group stays alive: Gloo may abort a process that drops it.
    """
    here = world()
    if here.size > 1:
        LEFT.append(here)
        os.environ["WORLD_SIZE"] = "1"
        world.cache_clear()
    return here.first


def end_with_parent() -> None:
    """Let Linux end this process when its parent is killed, as torchrun cannot end it then."""
    if sys.platform.startswith("linux"):
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class DataParallel:
    """Every process has all weights; one exchange after its last batch sums their gradients.

    Args:
        clock: this process's count of the training's seconds.
    """

    def __init__(self, objective: Objective, world: World, clock: Callable[[], float]) -> None:
        self.model = objective.model
        self.world = world
        self.clock = clock
        self.names: list[str] | None = None  # of losses

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """Return the batches of an update that this process computes."""
        return self.world.share(group)

    def divisor(self, n_tokens: int) -> float:
        """Return the number that divides the losses for the gradient, of this process's tokens."""
        return float(n_tokens)

    def exchange(self, names: list[str], numbers: Tensor, stop: bool) -> tuple[list[str], Tensor]:
        """Sum gradients and losses over all processes, in one exchange.

        Args:
            names: those of the losses.
            numbers: the number of tokens, and sums of the losses over this process's batches.
            stop: whether this process has been asked to stop.

        Returns:
            Names and sums; where there are several processes, behind them the number of those that
            have been asked to stop, and the first one's seconds.
        """
        if self.world.size == 1:
            return names, numbers
        if self.names is None:  # the first process has a batch in every update
            self.names = self.world.broadcast(names)
        if len(numbers) == 1:  # the last batches of an epoch may be too few for all
            numbers = numbers.new_zeros(1 + len(self.names))
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        used = [p.grad is not None for p in parameters]
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad * numbers[0] for p in parameters
        ]
        numbers = torch.cat([numbers, self._decisions(numbers, stop), numbers.new_tensor(used)])
        flat = torch.cat([numbers, *(gradient.flatten() for gradient in gradients)])
        self.world.all_reduce(flat)
        sizes = [len(numbers) - len(used), len(used), len(flat) - len(numbers)]
        numbers, n_using, total = flat.split(sizes)
        if not all(used):  # another process may use more; only then a device is waited for
            used = (n_using > 0).tolist()
        parts = (total / numbers[0]).split([p.numel() for p in parameters])
        for p, part, is_used in zip(parameters, parts, used, strict=True):
            p.grad = part.view_as(p) if is_used else None  # the optimizer skips unused weights
        return self.names, numbers

    def _decisions(self, numbers: Tensor, stop: bool) -> Tensor:
        return numbers.new_tensor([float(stop), self.clock() if self.world.first else 0.0])

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient to a norm of at most `limit`, 0: none; returns the norm before."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit or math.inf)

    def unsharded(self) -> AbstractContextManager[None]:
        """While open, every process has all weights."""
        return nullcontext()


class ShardedDataParallel(DataParallel):
    """Every process has a part of all weights; a layer is gathered while it computes.

    Weights outside of layers, such as embeddings, are gathered from the beginning of a forward
    pass to the end of the backward pass. Each pass exchanges weights and gradients, so all
    processes run equally many, and all batches of an update must use the same weights, as in every
    objective here.

    A validation, and the beginning, need room for all weights, but not for gradients and moments.
    Under autocast a forward pass leaves a copy of all weights in bf16 for the backward pass.
    """

    def __init__(self, objective: Objective, world: World, clock: Callable[[], float]) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # both take two seconds
        from torch.distributed.fsdp import fully_shard

        super().__init__(objective, world, clock)
        modules = self.model.named_modules()
        layers = [module for name, module in modules if LAYER.fullmatch(f"{name}.")]
        mesh = init_device_mesh(next(self.model.parameters()).device.type, (world.size,))
        self.parts: list[Any] = [fully_shard(module, mesh=mesh) for module in (*layers, objective)]
        self.root = self.parts[-1]
        for part, before in zip(self.parts, [self.root, *self.parts], strict=False):
            part.set_gradient_divide_factor(1.0)  # losses are divided by the tokens of all
            part.set_force_sum_reduction_for_comms(True)
            # the default is the order of the last pass, which a validation changes in one process
            part.set_modules_to_backward_prefetch([before])
        # else the first module that runs becomes the root: a layer, in a validation
        self.root._get_fsdp_state()._lazy_init()

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """Return this process's batches; the first of all instead of one that it lacks."""
        shared = list(self.world.share(group))
        most = math.ceil(len(group) / self.world.size)
        return shared if len(shared) == most else [*shared, group[0]]

    def divisor(self, n_tokens: int) -> float:
        """Return the number of tokens that all processes have in an update."""
        return self.world.all_reduce_sum(n_tokens)[0]

    def exchange(self, names: list[str], numbers: Tensor, stop: bool) -> tuple[list[str], Tensor]:
        """Sum losses as in DataParallel; FSDP has summed the gradients."""
        numbers = torch.cat([numbers, self._decisions(numbers, stop)])
        self.world.all_reduce(numbers)
        return names, numbers

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient as in DataParallel, by the norm of all parts."""
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        square = nn.utils.get_total_norm(gradients).square()[None]
        self.world.all_reduce(square)
        norm = square[0].sqrt()
        factor = ((limit or math.inf) / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        return norm

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """While open, every process has all weights, and may run any number of passes."""
        for part in self.parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in self.parts:
                part.set_reshard_after_forward(part is not self.root, recurse=False)
                part.reshard()
