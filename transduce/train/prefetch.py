"""Prefetching: the next batches are made while this one is used."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

BatchT = TypeVar("BatchT")


def prefetch(make: Callable[[int], BatchT], order: Iterable[int], n: int = 2) -> Iterator[BatchT]:
    """Yield make(i) for every i in order; a thread makes up to n of them ahead. An error is raised when its turn comes.

    The thread computes on one core and leaves the others to the model.
    """
    with ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
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
