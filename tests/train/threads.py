"""Trainings whose processes are threads of this one, which exchange through its memory.

They share torch's random number generator, so models must be made before and have no dropout.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from transduce.train import distributed
from transduce.train.distributed import World


class Threads:
    """The functions of torch.distributed that transduce.train.distributed calls, among threads."""

    def __init__(self, size: int) -> None:
        self.size, self.mine, self.changed = size, threading.local(), threading.Condition()
        self.given: dict[tuple[int, int], Any] = {}
        self.ended: set[int] = set()

    def begin(self, rank: int) -> None:
        """This thread has this rank."""
        self.mine.rank, self.mine.n_exchanges = rank, 0

    def end(self) -> None:
        """This thread takes part in no more exchanges."""
        with self.changed:
            self.ended.add(self.mine.rank)
            self.changed.notify_all()

    def _exchange(self, value: Any) -> list[Any]:
        """Exchange objects; returns those of all threads.

        Raises:
            RuntimeError: one has ended before.
        """
        self.mine.n_exchanges += 1
        keys = [(self.mine.n_exchanges, rank) for rank in range(self.size)]
        with self.changed:
            self.given[keys[self.mine.rank]] = value
            self.changed.notify_all()
            self.changed.wait_for(lambda: all(key in self.given or key[1] in self.ended for key in keys), timeout=60)
            if not all(key in self.given for key in keys):
                raise RuntimeError("connection closed by peer")
            return [self.given[key] for key in keys]

    def all_reduce(self, numbers: Tensor) -> None:
        """Sum."""
        numbers.copy_(sum(self._exchange(numbers.clone())))

    def all_gather_object(self, parts: list[Any], own: Any) -> None:
        """All get all."""
        parts[:] = self._exchange(own)

    def broadcast_object_list(self, box: list[Any]) -> None:
        """All get the first one's."""
        box[:] = self._exchange(list(box))[0]


def in_threads(size: int, work: Callable[[int], Any]) -> list[Any]:
    """Run `work(rank)` in so many threads; returns each one's result, or the error with which it ends."""
    threads, store, got = Threads(size), dist.HashStore(), [None] * size

    def alone(rank: int) -> None:
        threads.begin(rank)
        try:
            got[rank] = work(rank)
        except BaseException as error:
            got[rank] = error
        finally:
            threads.end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "dist", threads)
        patch.setattr("transduce.train.trainer.world", lambda: World(threads.mine.rank, size, store))
        each = [threading.Thread(target=alone, args=(rank,)) for rank in range(size)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
    return got
