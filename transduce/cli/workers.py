"""Chunks of work, done here or by several processes, each of which loads its model once."""

import logging
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from transduce.errors import InputError

logger = logging.getLogger("transduce")

Progress = Callable[[int, int], object]
"""Called with how much is done, and how much more there is to do than was known."""


@dataclass(frozen=True)
class Rows:
    """What came out of a chunk: whole lines, and what could not be used."""

    text: str
    errors: tuple[str, ...] = ()


Chunk = tuple[int, list[Any]]
"""How many inputs came before it, and its inputs."""

Work = Callable[[int, list[Any], Progress], Rows]


def results(
    load: Callable[[], Work], chunks: Iterable[Chunk], progress: Progress, *, n_workers: int, n_threads: int
) -> Generator[tuple[int, Rows], None, None]:
    """The number of a chunk, counted from 0, and its rows, in the order in which they are done.

    One worker is this process; more are processes of their own, which end when the generator is closed or fails.

    Args:
        load: makes what does the work. It, and what goes in and out, can be sent to another process.
        n_threads: of every process, if there are several.

    Raises:
        InputError, OSError: as `load` or the work raised it; ChildProcessError if a process was ended from outside.
    """
    numbered = enumerate(chunks)
    if n_workers == 1:
        work = load()
        yield from ((number, work(*chunk, progress)) for number, chunk in numbered)
        return
    context, processes, busy = get_context("spawn"), dict[Connection, BaseProcess](), dict[Connection, int]()

    def give(worker: Connection) -> None:
        for number, chunk in numbered:
            busy[worker] = number
            worker.send(chunk)
            return

    try:
        with _as_children_need_it(n_threads):
            for _ in range(n_workers):
                ours, theirs = context.Pipe()
                processes[ours] = context.Process(target=_serve, args=(theirs, load), daemon=True)
                processes[ours].start()
                theirs.close()  # so that our end tells when the process is gone
        try:
            for worker in processes:
                give(worker)
            while busy:
                for ready in [worker for worker in wait(list(busy)) if isinstance(worker, Connection)]:
                    kind, said = ready.recv()
                    if kind == "rows":
                        yield busy.pop(ready), said
                        give(ready)
                    elif kind == "progress":
                        progress(*said)
                    elif kind == "warning":
                        logger.warning("%s", said)
                    else:
                        raise said
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            gone = wait([process.sentinel for process in processes.values()], timeout=5)
            ended = [process for process in processes.values() if process.sentinel in gone]
            for process in ended:
                process.join()
            raise ChildProcessError(
                f"workers must live until all is done, but one ended with exit code {', '.join(str(p.exitcode) for p in ended)}; "
                "-9 is mostly a lack of memory: name fewer --workers, and run it again"
            ) from error
    finally:
        for process in processes.values():
            if process.pid is not None:
                process.terminate()
                process.join()


@contextmanager
def _as_children_need_it(n_threads: int) -> Iterator[None]:
    """What children inherit: so many threads, and no ear for Ctrl-C, which a terminal sends to all of a group."""
    before, handler = os.environ.get("OMP_NUM_THREADS"), signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = str(n_threads)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


class _Relay(logging.Handler):
    """Warnings go to the process that prints."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self.connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        self.connection.send(("warning", record.getMessage()))


def _serve(connection: Connection, load: Callable[[], Work]) -> None:
    """What a process does until the other end of the connection is closed."""
    logging.basicConfig(handlers=[_Relay(connection)])
    try:
        work = load()
        while True:
            start, items = connection.recv()
            rows = work(start, items, lambda *done: connection.send(("progress", done)))
            connection.send(("rows", rows))
    except (EOFError, BrokenPipeError, ConnectionResetError):  # nobody is there any more
        return
    except (InputError, OSError) as error:
        connection.send(("error", error))
