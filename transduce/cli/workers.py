"""Chunks of work, done by this process or by several, each of which loads its model once."""

import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from logging.handlers import BufferingHandler
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import Any

logger = logging.getLogger("transduce")

Progress = Callable[[int, int], object]
"""Called with how much is done, and how much more there is to do than was known."""


@dataclass(frozen=True)
class Rows:
    """The output of a chunk: whole lines, and errors of inputs that could not be used."""

    text: str
    errors: tuple[str, ...] = ()


Chunk = tuple[int, list[Any]]
"""How many inputs came before it, and its inputs."""

Work = Callable[[int, list[Any], Progress], Rows]


def results(
    load: Callable[[], Work],
    chunks: Iterable[Chunk],
    progress: Progress,
    *,
    n_workers: int,
    n_threads: int,
) -> Generator[Rows, None, None]:
    """Yield the rows of every chunk, in order.

    One worker is this process; more are processes of their own, which end when the generator is
    closed or fails.

    Args:
        load: makes what does the work. It, inputs and rows can be sent to another process.
        n_threads: of every process, if there are several.

    Raises:
        InputError, OSError: as `load` or the work raised it; ChildProcessError if a process was
            ended from outside.
    """
    if n_workers == 1:
        work = load()
        yield from (work(start, items, progress) for start, items in chunks)
        return
    chunks = iter(chunks)
    others = active_children()
    with ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker, (load,)) as pool:
        try:
            first = list(islice(chunks, 2 * n_workers))
            with _worker_environment(n_threads):
                pending = deque(pool.submit(_work, chunk) for chunk in first)
            while pending:
                rows, steps, warnings = pending.popleft().result()
                for warning in warnings:
                    logger.warning("%s", warning)
                progress(*steps)
                yield rows
                pending.extend(pool.submit(_work, chunk) for chunk in islice(chunks, 1))
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "workers must live until all is done, but one was killed, mostly for lack of "
                "memory; "
                "name fewer --workers, and run it again"
            ) from error
        finally:
            for process in active_children():
                if process not in others:
                    process.terminate()


@contextmanager
def _worker_environment(n_threads: int) -> Iterator[None]:
    """The environment that worker processes inherit: OMP_NUM_THREADS, and SIGINT ignored."""
    before = os.environ.get("OMP_NUM_THREADS")
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group
    os.environ["OMP_NUM_THREADS"] = str(n_threads)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


_load: Callable[[], Work]
_warnings = BufferingHandler(sys.maxsize)


def _start_worker(load: Callable[[], Work]) -> None:
    global _load
    _load = cache(load)
    logging.basicConfig(handlers=[_warnings])
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(chunk: Chunk) -> tuple[Rows, tuple[int, int], list[str]]:
    """The rows of a chunk, its progress, and the warnings that came with it."""
    steps: list[tuple[int, int]] = []
    rows = _load()(*chunk, lambda *step: steps.append(step))
    warnings = [record.getMessage() for record in _warnings.buffer]
    _warnings.flush()  # empties the buffer
    return rows, (sum(n for n, _ in steps), sum(n for _, n in steps)), warnings
