"""The next batches, made while this one is used."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

BatchT = TypeVar("BatchT")


def prefetch(make: Callable[[int], BatchT], order: Iterable[int], n: int = 2) -> Iterator[BatchT]:
    """`make(i)` for every i in order, up to n of them made beforehand by a thread; an error comes when its turn does.

    The thread leaves the cores to the model: it computes on one of them.
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
