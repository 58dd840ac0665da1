"""Jobs: what commands do with each input of a list, in this process or in several."""

import logging
import os
import re
import signal
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import islice
from logging.handlers import BufferingHandler
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from transduce.cli.common import Machine, each_run, to_stderr
from transduce.config import Json, to_dict
from transduce.errors import InputError, logger

Progress = Callable[[int, int], object]
"""Called with the number of units done, and the number by which the total grew."""

Chunk = tuple[int, list[Any]]
"""The number of inputs before it, and its inputs."""

SHOWN = 5
"""Maximum number of messages of one kind that are shown."""

VARIES = re.compile(r"(['\"]).*?\1|\S*[./]\S+|\d\w*")
"""The parts in which messages of one kind differ: quoted text, paths and numbers."""


@dataclass(frozen=True)
class Rows:
    """The output of a chunk: whole lines, and errors of inputs that could not be used."""

    text: str
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """A task for every input of a list: plain data that is sent to workers, without a model."""

    run: Path
    machine: Machine
    lm: Path | None = None

    UNIT: ClassVar[str]
    """The unit of the progress bar."""
    UNUSABLE: ClassVar[str] = "inputs could not be used"
    CHUNK: ClassVar[int]
    """The cost (see `cost`) of a chunk: the inputs that are processed, and then written, at a
    time."""

    @property
    def model_files(self) -> list[Path]:
        """The files of the runs and of the language model."""
        models = [*each_run(self.run), *filter(None, [self.lm])]
        return [path for each in models for path in (each, *each.glob("*"))]

    @abstractmethod
    def load(self) -> Any:
        """Load the run as a task."""

    @abstractmethod
    def rows(self, task: Any, start: int, items: list[Any], progress: Progress) -> Rows:
        """Turn inputs into rows; `start` is the number of inputs before them."""

    def name(self, item: Any) -> str:
        """A string that identifies an input and its content."""
        return str(item)

    def cost(self, item: Any) -> int:
        """How much work an input takes."""
        return 1

    def key(self, items: Iterable[Any]) -> tuple[Json, int, int]:
        """Everything that determines the output (settings, hashes of the run and of the inputs),
        the number of inputs, and their total cost."""
        n = 0
        cost = 0
        digest = sha256()
        for item in items:
            n += 1
            cost += self.cost(item)
            digest.update(ascii(self.name(item)).encode() + b"\n")
        key = to_dict(self)
        del key["machine"]["device"]
        for name in ("batch_tokens", "batch_size"):  # these do not change the output
            key.get("settings", {}).pop(name, None)
        key |= {
            "kind": type(self).__name__,
            "run": "+".join(map(run_fingerprint, each_run(self.run))),
            "lm": self.lm and run_fingerprint(self.lm),
            "inputs": digest.hexdigest(),
        }
        return key, n, cost


@dataclass(frozen=True, kw_only=True)
class SearchJob(Job):
    """A job that runs a search, with settings from the command line."""

    TASK: ClassVar[str]
    """The name of its class in tasks/."""
    settings: Json
    """Settings of the command line, which replace the run's."""

    def load(self) -> Any:
        """Load the run as a task with these settings.

        Raises:
            InputError: the run was trained for another task, a setting is out of its range, or a
                language model lacks its weight.
        """
        from transduce.tasks import load

        task = self.machine.load(getattr(load, self.TASK), self.run, self.lm)
        task.decoding = task.decoding.changed(**self.settings)
        weight = getattr(task.decoding, "lm_weight", 0.0)
        if (self.lm is None) == (weight > 0):
            shown = "there is no --lm" if self.lm is None else f"lm={self.lm}"
            raise InputError(
                f"--lm and --lm-weight go together, but {shown} and lm_weight={weight}; try --lm "
                "LM --lm-weight 0.3"
            )
        return task


@contextmanager
def first_few() -> Iterator[Callable[[str], bool]]:
    """Yield a function that decides whether a message is shown: the first few of each kind are. At
    the end, stderr says how many others there were.

    A repeated message is neither shown nor counted. Logged warnings are limited in the same way.
    """
    counts = Counter[str]()
    last: dict[str, str] = {}
    shown: set[str] = set()

    def is_shown(message: str) -> bool:
        if message in shown:
            return False
        kind = VARIES.sub("", message)
        counts[kind] += 1
        last[kind] = message
        if few := counts[kind] <= SHOWN:
            shown.add(message)
        return few

    def show_record(record: logging.LogRecord) -> bool:
        return is_shown(record.getMessage())

    logger.addFilter(show_record)
    try:
        yield is_shown
    finally:
        logger.removeFilter(show_record)
    for kind, message in last.items():
        if (n := counts[kind] - SHOWN) > 0:
            to_stderr(f"{n} more of this kind, the last: {message}")


def results(
    job: Job, chunks: Iterable[Chunk], n_workers: int, total: int | None = None, done: int = 0
) -> Generator[tuple[int, Rows], None, None]:
    """Yield the number of inputs and the rows of every chunk, in order.

    stderr gets a progress bar, if it is a terminal, and the first few errors and warnings.

    Args:
        n_workers: 1: this process does the work; more: the number of worker processes.
        total: the number of inputs, if it is known.
        done: how many of them were done earlier.
    """
    from torch import get_num_threads

    is_hidden = not sys.stderr.isatty() or (total is None and sys.stdin.isatty())
    with (
        first_few() as is_shown,
        logging_redirect_tqdm(),
        tqdm(
            total=total, initial=done, unit=job.UNIT, disable=is_hidden, dynamic_ncols=True
        ) as bar,
    ):

        def progress(n_done: int, n_more: int) -> None:
            if bar.total is not None:
                bar.total += n_more
            bar.update(n_done)

        if n_workers > 1:
            n_threads = max(1, get_num_threads() // n_workers)
            finished = by_workers(job, chunks, progress, n_workers, n_threads)
        else:
            task = job.load()
            finished = ((len(items), job.rows(task, n, items, progress)) for n, items in chunks)
        with closing(finished):
            for n, rows in finished:
                for error in filter(is_shown, rows.errors):
                    to_stderr(error)
                bar.clear()  # for rows to begin at the left edge of a terminal
                yield n, rows


def by_workers(
    job: Job, chunks: Iterable[Chunk], progress: Progress, n_workers: int, n_threads: int
) -> Generator[tuple[int, Rows], None, None]:
    """Yield the number of inputs and the rows of every chunk, in order, computed by processes of
    `n_threads` threads each, which end when the generator is closed or fails.

    Raises:
        InputError, OSError: as the job raised it; ChildProcessError if a process was killed from
            outside.
    """
    chunks = iter(chunks)
    with worker_pool(n_workers, _start_worker, job, n_threads) as pool:
        pending = deque(submit(pool, _work, islice(chunks, 2 * n_workers)))
        while pending:
            n, rows, warnings = pending.popleft().result()
            for warning in warnings:
                logger.warning("%s", warning)
            progress(n, 0)
            yield n, rows
            pending += (pool.submit(_work, *chunk) for chunk in islice(chunks, 1))


@contextmanager
def worker_pool(
    n: int, start: Callable[..., object], *arguments: object
) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with the `with`; `start` is called in each, and calls `end_with_parent`.

    Raises:
        ChildProcessError: one was killed from outside.
    """
    others = active_children()
    with ProcessPoolExecutor(n, get_context("spawn"), start, arguments) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "workers must run until all is done, but one was killed, probably for lack of "
                "memory; use fewer --workers or --processes, and run the command again"
            ) from error
        finally:
            for process in active_children():
                if process not in others:
                    process.terminate()


def submit(
    pool: ProcessPoolExecutor, call: Callable[..., Any], arguments: Iterable[Iterable[Any]]
) -> list[Future[Any]]:
    """Submit calls. Worker processes that start for them ignore Ctrl-C, which a terminal sends to
    the whole process group."""
    all_arguments = list(arguments)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return [pool.submit(call, *each) for each in all_arguments]
    finally:
        signal.signal(signal.SIGINT, handler)


_job: Job
_warnings = BufferingHandler(sys.maxsize)


def _start_worker(job: Job, n_threads: int) -> None:
    global _job
    _job = job
    os.environ["OMP_NUM_THREADS"] = str(n_threads)
    logging.basicConfig(handlers=[_warnings])
    end_with_parent()


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, even by SIGKILL."""
    Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@cache
def _task() -> Any:
    return _job.load()


def _work(start: int, items: list[Any]) -> tuple[int, Rows, list[str]]:
    """The number of inputs of a chunk, their rows, and the warnings that were logged for them."""
    rows = _job.rows(_task(), start, items, lambda *_: None)
    warnings = [record.getMessage() for record in _warnings.buffer]
    _warnings.flush()  # empties the buffer
    return len(items), rows, warnings


def split_chunks(
    items: Iterable[Any], cost: Callable[[Any], int], limit: int, start: int = 0
) -> Iterator[Chunk]:
    """Split inputs into chunks whose cost reaches `limit`; there is at least one chunk, which may
    be empty.

    Args:
        start: the number of inputs before the first one.
    """
    chunk: list[Any] = []
    total = 0
    n_chunks = 0
    for item in items:
        chunk.append(item)
        total += cost(item)
        if total >= limit:
            yield start, chunk
            n_chunks += 1
            start += len(chunk)
            chunk = []
            total = 0
    if chunk or not n_chunks:
        yield start, chunk


def default_workers(job: Job, n_chunks: int) -> int:
    """One worker process per core of a CPU, as far as there are two chunks and enough memory for
    each; 1 on a GPU."""
    import torch

    from transduce.device import default_device, memory
    from transduce.run import weights_path

    device = default_device() if job.machine.device == "auto" else job.machine.device
    if not device.startswith("cpu"):
        return 1
    weights = sum(weights_path(run).stat().st_size for run in each_run(job.run))
    each = (1 << 29) + 2 * weights  # torch itself, and the weights, plain and packed
    room = memory(torch.device("cpu")) or sys.maxsize
    return max(1, min(torch.get_num_threads(), n_chunks // 2, room // each))


def run_fingerprint(path: Path) -> str:
    """Hash all files of a run that decoding reads, or a file of n-grams."""
    from transduce.run import USED, weights_path

    files = [path] if path.is_file() else [*(path / name for name in USED), weights_path(path)]
    digest = sha256()
    for file in filter(Path.is_file, files):
        digest.update(file.name.encode())
        with file.open("rb") as raw:  # weights may be larger than the memory
            while block := raw.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()
