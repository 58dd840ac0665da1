"""The host's work during training: it loads batches ahead, copies numbers, and handles Ctrl-C."""

import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, cuda
from torch.utils.data import DataLoader

from transduce.errors import InputError
from transduce.process import use_one_core


class HostCopy:
    """Asynchronous device-to-host copy: logging never drains the stream.

    On a GPU the numbers go into pinned memory, followed by an event in the stream; `tolist`
    waits for that event alone. `Tensor.tolist` would wait for everything queued before its call.
    """

    def __init__(self, numbers: Float[Tensor, " n"]) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)
        on_gpu = numbers.is_cuda
        self.arrived = cuda.current_stream(numbers.device).record_event() if on_gpu else None

    def tolist(self) -> list[float]:
        """Return the numbers, once they have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()


class StopRequest(ExitStack):
    """While open, the first SIGINT, SIGTERM or, unless nohup ignores it, SIGHUP sets `requested`; a
    second one acts at once, except for SIGHUP: a closed terminal sends several."""

    requested = False

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            hangup = [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)
            for number in (signal.SIGINT, signal.SIGTERM, *hangup):
                self.callback(signal.signal, number, signal.signal(number, self._request))
        return self

    def _request(self, number: int, _: object) -> None:
        if self.requested and number != signal.SIGHUP:
            raise KeyboardInterrupt
        self.requested = True


BatchT = TypeVar("BatchT")


@runtime_checkable
class Batch(Protocol):
    """What the trainer reads of a batch."""

    @property
    def n_tokens(self) -> int: ...

    def to(self, device: torch.device) -> "Batch": ...


@runtime_checkable
class Data(Protocol):
    """Training data: epoch(n) gives the batches of epoch n, the same ones in every call."""

    def epoch(self, n: int) -> Sequence[Batch]: ...


def prefetch(batches: Iterator[BatchT], n: int = 2) -> Iterator[BatchT]:
    """Yield the batches of an iterator; a thread takes up to n of them ahead.

    An error is raised when its batch's turn comes. The thread computes on one core and leaves the
    others to the model.
    """
    pool = ThreadPoolExecutor(max_workers=1, initializer=use_one_core)
    try:
        waiting = deque(pool.submit(next, batches) for _ in range(n))
        while True:
            waiting.append(pool.submit(next, batches))
            yield waiting.popleft().result()
    except StopIteration:  # of `next`
        return
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Results:
    """The items of a sequence, serialized, or the errors that were raised instead.

    A DataLoader would add a traceback to the message of an error, and wait forever for an item that
    cannot be sent, for example when shared memory is full.
    """

    batches: Sequence[Any]

    def __getitem__(self, i: int) -> Any:
        try:
            batch = self.batches[i]
        except Exception as error:
            return error
        try:
            return bytes(ForkingPickler.dumps(batch))
        except RuntimeError as error:
            return InputError(
                f"data_workers send batches by shared memory, but {error}; give a container more "
                "(docker run --shm-size 2g), or set data_workers=0"
            )


def _ignore_ctrl_c(_: int) -> None:
    """Ignore Ctrl-C, which a terminal sends to all processes; the main process ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def load_batches(
    n_processes: int, batches: Sequence[BatchT], order: Sequence[int]
) -> Iterator[BatchT]:
    """Yield batches[i] for every i of `order`, made in n_processes processes of one thread each.

    With 0 processes, each batch is made here when its turn comes. An error is raised when its
    batch's turn comes, and a worker that dies is reported by the process that waits for it.
    """
    if not n_processes:
        yield from map(batches.__getitem__, order)
        return
    results: Any = _Results(batches)
    loader: Any = DataLoader(
        results,
        batch_size=None,
        sampler=order,
        num_workers=n_processes,
        collate_fn=lambda batch: batch,
        worker_init_fn=_ignore_ctrl_c,
        multiprocessing_context="fork",  # batches are computed from data in memory
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield ForkingPickler.loads(batch)
