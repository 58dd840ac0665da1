"""The host beside the device: it loads batches ahead, copies numbers, and handles Ctrl-C."""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, cuda
from torch.utils.data import DataLoader

from transduce.process import use_one_core


class HostCopy:
    """Asynchronous device-to-host copy: logging never drains the stream.

    On a GPU the numbers go into pinned memory, with an event behind them in the stream; `tolist`
    waits for that event alone. `Tensor.tolist` would wait for everything queued before its call.
    """

    def __init__(self, numbers: Float[Tensor, " n"]) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)
        stream = cuda.current_stream(numbers.device) if numbers.is_cuda else None
        self.arrived = None if stream is None else stream.record_event()

    def tolist(self) -> list[float]:
        """Return the numbers, once they have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()


class StopRequest:
    """While open, the first SIGINT or SIGTERM sets `requested`; a second one acts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
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


def prefetch(make: Callable[[int], BatchT], order: Iterable[int], n: int = 2) -> Iterator[BatchT]:
    """Yield make(i) for every i in order; a thread makes up to n of them ahead.

    An error is raised when its turn comes. The thread computes on one core and leaves the others
    to the model.
    """
    with ThreadPoolExecutor(max_workers=1, initializer=use_one_core) as pool:
        waiting: deque[Future[BatchT]] = deque()
        try:
            for i in order:
                waiting.append(pool.submit(make, i))
                if len(waiting) > n:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@dataclass(frozen=True)
class _Results(Generic[BatchT]):
    """Items of a sequence, or the errors that they end in.

    A DataLoader would add a traceback to the message of an error.
    """

    batches: Sequence[BatchT]

    def __getitem__(self, i: int) -> BatchT | Exception:
        try:
            return self.batches[i]
        except Exception as error:
            return error


def _ignore_ctrl_c(_: int) -> None:
    """Ignore Ctrl-C, which a terminal sends to all processes; the training ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def load_batches(
    n_processes: int, batches: Sequence[BatchT], order: Sequence[int]
) -> Iterator[BatchT]:
    """Yield batches[i] for every i in order, made in so many processes of one thread.

    With 0 processes each is made here, when its turn comes; so are errors raised. A process that
    dies is reported by the one that waits for it.
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
        multiprocessing_context="fork",  # batches are functions of what is in memory
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch
