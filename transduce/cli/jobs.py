"""Commands that decode large files: in chunks, by one process or several, at once or in parts."""

import logging
import os
import re
import signal
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import islice
from logging.handlers import BufferingHandler
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, ClassVar

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from tyro.conf import arg

from transduce.cli.common import Count, Machine, OptionalFile, TaskT, each_run
from transduce.cli.parts import (
    Done,
    Share,
    Unfinished,
    check_output,
    is_plain,
    open_unfinished,
    parse_share,
    run_fingerprint,
    share_of_environment,
)
from transduce.config import Common, at_least, to_dict
from transduce.errors import InputError

logger = logging.getLogger("transduce")

Progress = Callable[[int, int], object]
"""Called with how much is done, and how much more there is to do than was known."""

Chunk = tuple[int, list[Any]]
"""How many inputs came before it, and its inputs."""

SHOWN = 5
"""Messages of one kind that are shown."""

VARIES = re.compile(r"(['\"]).*?\1|\S*[./]\S+|\d+")
"""What differs between two messages of one kind: what is quoted, paths and numbers."""


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
    """What progress counts."""
    UNUSABLE: ClassVar[str] = "inputs could not be used"
    CHUNK: ClassVar[int]
    """How much is done, and then written, at a time, as `cost` counts it."""

    @abstractmethod
    def load(self) -> Any:
        """Load the run as a task."""

    @abstractmethod
    def rows(self, task: Any, start: int, items: list[Any], progress: Progress) -> Rows:
        """Turn inputs into rows; `start` came before the first one."""

    def name(self, item: Any) -> str:
        """The identity of an input, with what may change of it."""
        return str(item)

    def cost(self, item: Any) -> int:
        """How much work an input is."""
        return 1

    def key(self, items: Iterable[Any]) -> tuple[dict[str, Any], int, int]:
        """All that decides the output: settings, hashes of the run and of the inputs; how many
        inputs there are, and their cost."""
        n = 0
        cost = 0
        digest = sha256()
        for item in items:
            n += 1
            cost += self.cost(item)
            digest.update(ascii(self.name(item)).encode() + b"\n")
        key = to_dict(self)
        del key["machine"]["device"]
        for name in ("batch_tokens", "batch_size"):  # not the output
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
    """A job that searches with settings of its own."""

    settings: dict[str, Any]
    """Those that the command line names, instead of the run's."""

    def loaded(self, kind: type[TaskT]) -> TaskT:
        """Load the run as a task of this kind, with these settings.

        Raises:
            InputError: a setting is out of its range, or a language model lacks its weight.
        """
        task: Any = self.machine.load(kind, self.run, self.lm)
        task.decoding = task.decoding.changed(**self.settings)
        weight = getattr(task.decoding, "lm_weight", 0.0)
        if (self.lm is None) == (weight > 0):
            shown = "there is no --lm" if self.lm is None else f"lm={self.lm}"
            raise InputError(
                f"--lm and --lm-weight go together, but {shown} and lm_weight={weight}; try --lm "
                "LM --lm-weight 0.3"
            )
        return task


@dataclass(frozen=True, kw_only=True)
class Division:
    """Where the output goes, and who does the work; see docs/large_files.md."""

    output: Common[OptionalFile] = None
    """The file that the output becomes once it is whole; standard output if not given. Until then
    what is done is kept in FILE.unfinished, and the same command goes on from there."""
    workers: Common[Count] = None
    """Processes on this machine, each with the model and its share of the cores. If not given: one
    per core where a CPU computes and the input is large, else one."""
    part: Common[Annotated[str | None, arg(metavar="I/N", help_behavior_hint="")]] = None
    """Do part I of N alone, as FILE.part-I-of-N; transduce merge FILE joins them. With --output and
    without --part, a task of a SLURM array does its part, and so does a process of torchrun; --part
    all: the whole input."""

    def share(self) -> Share | None:
        """The part of the input to do; None: all of it.

        Raises:
            InputError: there is no such part, or it would have no name.
        """
        if self.part is not None and self.part != "all":
            if self.output is None:
                raise InputError(
                    f"a part is a file, but --part {self.part} has no --output; add --output FILE"
                )
            return parse_share(self.part)
        return share_of_environment(os.environ) if self.output and self.part is None else None


def carry_out(
    job: Job, items: Iterable[Any], division: Division, inputs: Sequence[Path] = ()
) -> None:
    """Do a job on all inputs, or on this process's part of them, and write rows in their order.

    A file appears once it is whole: until then FILE.unfinished has what is done, and the same
    command goes on from there.

    Args:
        items: read several times from the beginning, so that memory holds a few chunks of them; an
            iterator is done chunk by chunk as it comes, on standard output.
        inputs: the files that the items are of, none of which the output may replace.

    Raises:
        InputError: the inputs have changed while they were read.
        SystemExit: with 1, at the end, if some inputs could not be used.
    """
    at_least(1, workers=division.workers)
    share = division.share()
    if isinstance(items, Iterator):
        size = 1 if sys.stdin.isatty() else job.CHUNK
        return _print(job, cut(items, lambda _: 1, size), None, division.workers or 1)
    output = division.output
    if output is not None:
        check_output(output, inputs)
    key, n, cost = job.key(items)
    cost = cost // (share.total if share else 1)
    limit = max(1, min(job.CHUNK, -(-cost // (division.workers or 1))))
    n_chunks = max(1, -(-cost // limit))
    n_workers = min(division.workers or default_workers(job, n_chunks), n_chunks)
    if output is None or not is_plain(output):
        return _print(job, cut(items, job.cost, limit), output, n_workers, n)
    output = Path(os.path.realpath(output)) if output.is_symlink() else output
    path = share.file(output) if share else output.with_name(f"{output.name}.unfinished")
    part = share or Share()
    done = Done(key, n, (part.number, part.total))
    with open_unfinished(path, done) as unfinished:
        _complete(job, items, unfinished, limit, n_workers)
        if job.key(items)[0] != key:
            unfinished.remove()
            raise InputError(
                "inputs must stay as they are while they are read, but some have changed; run the "
                "same command again"
            )
        if not share:
            unfinished.rename(output)
        done = unfinished.done
    _end(job, done.n_errors, done.n_inputs)


def _complete(
    job: Job, items: Iterable[Any], unfinished: Unfinished, limit: int, n_workers: int
) -> None:
    """Do what is missing of an output, or of a part of one."""
    done = unfinished.done
    start, stop = done.span
    n = stop - start
    if done.n_bytes and done.n_inputs == n:
        return print(f"transduce: {unfinished.path} is finished", file=sys.stderr)
    place = f"{done.n_inputs} of {n} inputs are done, in {unfinished.path}"
    if done.n_inputs or done.part[1] > 1:
        print(f"transduce: {place}", file=sys.stderr)
    first = start + done.n_inputs
    chunks = cut(islice(items, first, stop), job.cost, limit, first)
    try:
        with closing(results(job, chunks, n_workers, n, done.n_inputs)) as finished:
            for n_inputs, rows in finished:
                unfinished.append(n_inputs, rows.text, len(rows.errors))
    except KeyboardInterrupt:
        place = f"in {unfinished.path}; the same command goes on from there"
        print(f"transduce: {done.n_inputs} of {n} inputs are done, {place}", file=sys.stderr)
        raise


def _print(
    job: Job,
    chunks: Iterable[Chunk],
    output: Path | None,
    n_workers: int,
    total: int | None = None,
) -> None:
    """Write rows to standard output, a pipe or a device as they come."""
    n = 0
    n_errors = 0
    with (
        nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as out,
        closing(results(job, chunks, n_workers, total)) as finished,
    ):
        for n_inputs, rows in finished:
            n += n_inputs
            n_errors += len(rows.errors)
            out.write(rows.text)
            out.flush()
    _end(job, n_errors, n)


def _end(job: Job, n_errors: int, n: int) -> None:
    if n_errors:
        print(f"transduce: {n_errors} of {n} {job.UNUSABLE}", file=sys.stderr)
        sys.exit(1)


def cut(
    items: Iterable[Any], cost: Callable[[Any], int], limit: int, start: int = 0
) -> Iterator[Chunk]:
    """Cut inputs into chunks that reach a cost; at least one chunk, which may be empty.

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
    """One process per core of a CPU, if there are two chunks for each, and memory for all."""
    import torch

    from transduce.checkpoints import weights_path
    from transduce.device import default_device, memory

    device = default_device() if job.machine.device == "auto" else job.machine.device
    if not device.startswith("cpu"):
        return 1
    weights = sum(weights_path(run).stat().st_size for run in each_run(job.run))
    each = (1 << 29) + 2 * weights  # torch itself, and the weights, plain and packed
    room = memory(torch.device("cpu")) or sys.maxsize
    return max(1, min(torch.get_num_threads(), n_chunks // 2, room // each))


@contextmanager
def first_few() -> Iterator[Callable[[str], bool]]:
    """Decide which messages are shown: the first few of one kind; in the end stderr counts the
    others.

    The same message again is neither shown nor counted. Warnings that are logged meanwhile are
    counted, too.
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
            tqdm.write(f"transduce: {n} more of this kind, the last: {message}", file=sys.stderr)


def results(
    job: Job, chunks: Iterable[Chunk], n_workers: int, total: int | None = None, done: int = 0
) -> Generator[tuple[int, Rows], None, None]:
    """Yield the number of inputs and the rows of every chunk, in order.

    On stderr are a bar, if that is a terminal, and the first few errors and warnings.

    Args:
        n_workers: 1 is this process; more are processes of their own.
        total: the number of inputs, if it is known.
        done: how many of them were done before.
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

        if n_workers == 1:
            finished = _by_this_process(job, chunks, progress)
        else:
            n_threads = max(1, get_num_threads() // n_workers)
            finished = by_workers(job, chunks, progress, n_workers, n_threads)
        with closing(finished):
            for n, rows in finished:
                for error in filter(is_shown, rows.errors):
                    tqdm.write(f"transduce: {error}", file=sys.stderr)
                bar.clear()  # for rows to begin at the left edge of a terminal
                yield n, rows


def _by_this_process(
    job: Job, chunks: Iterable[Chunk], progress: Progress
) -> Generator[tuple[int, Rows], None, None]:
    task = job.load()
    for start, items in chunks:
        yield len(items), job.rows(task, start, items, progress)


def by_workers(
    job: Job, chunks: Iterable[Chunk], progress: Progress, n_workers: int, n_threads: int
) -> Generator[tuple[int, Rows], None, None]:
    """Yield the number of inputs and the rows of every chunk, in order, done by processes of n
    threads, which end when the generator is closed or fails.

    Raises:
        InputError, OSError: as the job raised it; ChildProcessError if a process was ended from
            outside.
    """
    chunks = iter(chunks)
    others = active_children()
    start = (n_workers, get_context("spawn"), _start_worker, (job, n_threads))
    with ProcessPoolExecutor(*start) as pool:
        try:
            first = list(islice(chunks, 2 * n_workers))
            # workers inherit that they ignore Ctrl-C, which a terminal sends to the whole group
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
            pending = deque((len(chunk[1]), pool.submit(_work, *chunk)) for chunk in first)
            signal.signal(signal.SIGINT, handler)
            while pending:
                n, future = pending.popleft()
                rows, warnings = future.result()
                for warning in warnings:
                    logger.warning("%s", warning)
                progress(n, 0)
                yield n, rows
                for chunk in islice(chunks, 1):
                    pending.append((len(chunk[1]), pool.submit(_work, *chunk)))
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "workers must live until all is done, but one was killed, mostly for lack of "
                "memory; name fewer --workers, and run it again"
            ) from error
        finally:
            for process in active_children():
                if process not in others:
                    process.terminate()


_job: Job
_warnings = BufferingHandler(sys.maxsize)


def _start_worker(job: Job, n_threads: int) -> None:
    global _job
    _job = job
    os.environ["OMP_NUM_THREADS"] = str(n_threads)
    logging.basicConfig(handlers=[_warnings])
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@cache
def _task() -> Any:
    return _job.load()


def _work(start: int, items: list[Any]) -> tuple[Rows, list[str]]:
    """The rows of a chunk, and the warnings that came with it."""
    rows = _job.rows(_task(), start, items, lambda *_: None)
    warnings = [record.getMessage() for record in _warnings.buffer]
    _warnings.flush()  # empties the buffer
    return rows, warnings
