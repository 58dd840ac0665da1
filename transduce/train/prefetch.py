"""Prefetching: the next batches are made while this one is used, by a thread or by other processes."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader

from transduce.threads import use_one_core

BatchT = TypeVar("BatchT")


def prefetch(make: Callable[[int], BatchT], order: Iterable[int], n: int = 2) -> Iterator[BatchT]:
    """Yield make(i) for every i in order; a thread makes up to n of them ahead. An error is raised when its turn comes.

    The thread computes on one core and leaves the others to the model.
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
class _Tried(Generic[BatchT]):
    """Items of a sequence, or the errors that they end in: one that comes out of a DataLoader is told with a traceback."""

    batches: Sequence[BatchT]

    def __getitem__(self, i: int) -> BatchT | Exception:
        try:
            return self.batches[i]
        except Exception as error:
            return error


def _without_ctrl_c(_: int) -> None:
    """A terminal sends it to all processes, and the training is the one that ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def load_batches(n_processes: int, batches: Sequence[BatchT], order: Sequence[int]) -> Iterator[BatchT]:
    """Yield batches[i] for every i in order, made in so many processes of one thread; 0: when it is asked for, here.

    A process that stops is told of by the one that asks; an error is raised when its turn comes.
    """
    if not n_processes:
        yield from map(batches.__getitem__, order)
        return
    tried: Any = _Tried(batches)
    loader: Any = DataLoader(
        tried,
        batch_size=None,
        sampler=order,
        num_workers=n_processes,
        collate_fn=lambda batch: batch,
        worker_init_fn=_without_ctrl_c,
        multiprocessing_context="fork",  # batches are functions of what is in memory
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch
