"""Commands that decode large files: in chunks, by one process or several, whole or a part."""

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from tqdm import tqdm
from tyro.conf import arg

from transduce.cli.common import Count, Machine, OptionalFile, each_run
from transduce.cli.output import check_output, first_few, is_plain, open_output, progress_bar
from transduce.cli.parts import (
    Header,
    Journal,
    Share,
    open_journal,
    parse_share,
    run_fingerprint,
    share_of_environment,
    write_rows,
)
from transduce.cli.workers import Chunk, Progress, Rows, Work, results
from transduce.config import Common, at_least, to_dict
from transduce.data.text.lines import lines_fingerprint
from transduce.errors import InputError

logger = logging.getLogger("transduce")

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """A task for every input of a list: plain data that is sent to workers, without a model."""

    run: Path
    machine: Machine
    lm: Path | None = None

    TASK: ClassVar[str] = ""
    """The module and class of the run, such as transduce.tasks.translate:Translator."""
    UNIT: ClassVar[str]
    """What progress counts."""
    UNUSABLE: ClassVar[str] = "inputs could not be used"
    CHUNK: ClassVar[int]
    """How much is done, and then written, at a time, as `cost` counts it."""

    def loaded(self, task: str = "") -> Any:
        """Load the run as a TASK."""
        module, _, name = (task or self.TASK).partition(":")
        return self.machine.load(getattr(import_module(module), name), self.run, self.lm)

    def load(self) -> Work:
        """Load the run; the result turns a chunk of inputs into rows."""
        return partial(self.rows, self.loaded())

    @abstractmethod
    def rows(self, task: Any, start: int, items: list[Any], progress: Progress) -> Rows:
        """Turn inputs into rows; `start` came before the first one."""

    def name(self, item: Any) -> str:
        """The identity of an input."""
        return str(item)

    def state(self, item: Any) -> str:
        """What may change of an input while its name stays."""
        return ""

    def cost(self, item: Any) -> int:
        """How much work an input is."""
        return 1

    def written(self, rows: Iterable[str]) -> Iterable[str]:
        """What is written where these rows come out, chunk by chunk."""
        return rows

    def key(self, items: Iterable[Any], n: int) -> dict[str, Any]:
        """All that decides the output: settings, hashes of the run and of the names of n inputs."""
        key = to_dict(self)
        del key["machine"]["device"]
        for name in ("batch_tokens", "batch_size"):  # not the output
            key.get("decoding", {}).pop(name, None)
        key |= {
            "kind": type(self).__name__,
            "run": "+".join(map(run_fingerprint, each_run(self.run))),
            "n_inputs": n,
            "inputs": lines_fingerprint(ascii(self.name(item)) for item in items),
        }
        return key if self.lm is None else key | {"lm": run_fingerprint(self.lm)}

    def fingerprint(self, items: Iterable[Any]) -> str:
        """Hash inputs in their state."""
        return lines_fingerprint(ascii((self.name(item), self.state(item))) for item in items)


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
    """Do a job on all inputs, or on this process's part of them.

    Rows go to standard output in the order of the input, as soon as they are there. A file appears
    once it is whole: until then a journal beside it has the chunks that are done, and the same
    command goes on from there.

    Args:
        items: read several times from the beginning, so that memory holds a few chunks of them.
        inputs: the files that the items are of, none of which the output may replace.

    Raises:
        InputError: the inputs have changed while they were read.
        SystemExit: with 1, at the end, if some inputs could not be used.
    """
    at_least(1, workers=division.workers)
    share = division.share()
    output = division.output
    check_output(output, inputs)
    n = sum(1 for _ in items)
    start, stop = share.span(n) if share else (0, n)
    cost = sum(map(job.cost, islice(items, start, stop)))
    limit = max(1, min(job.CHUNK, -(-cost // (division.workers or 1))))
    n_chunks = max(1, -(-cost // limit))
    n_workers = min(division.workers or _default_workers(job, n_chunks), n_chunks)
    if output is None or not is_plain(output):
        return stream(job, cut(items, job.cost, limit), output, n_workers=n_workers, total=n)
    output = output.resolve() if output.is_symlink() else output
    path = share.file(output) if share else output.with_name(f"{output.name}.unfinished")
    header = Header(job.key(items, n), share or Share(1, 1))
    with open_journal(path, header, is_part=share is not None) as journal:
        done = journal.resume(islice(iter(items), start, stop), job.fingerprint)
        if not (journal.n_chunks and done == stop - start):
            if share:
                part = f"part {share.number} of {share.total}, inputs {start + 1} to {stop}"
                print(f"transduce: {part}: {path}", file=sys.stderr)
            rest = cut(islice(items, start + done, stop), job.cost, limit, start + done)
            _append(job, rest, journal, done=done, total=stop - start, n_workers=n_workers)
            if job.key(items, n) != header.job:
                raise InputError(
                    "inputs must stay as they are while they are read, but some have changed; run "
                    "the same command again"
                )
        elif share:
            print(f"transduce: {path} is finished", file=sys.stderr)
        if not share:
            write_rows(output, job.written(journal.texts()))
            path.unlink()
    _end(job, journal.n_errors, stop - start)


def _append(
    job: Job, chunks: Iterable[Chunk], journal: Journal, *, done: int, total: int, n_workers: int
) -> None:
    """Do the chunks that a journal lacks."""
    if done:
        print(
            f"transduce: going on with {done} of {total} inputs done, in {journal.path}",
            file=sys.stderr,
        )
    try:
        with (
            progress_bar(unit=job.UNIT, total=total) as bar,
            closing(_results(job, chunks, bar, n_workers)) as finished,
        ):
            bar.update(done)
            for items, rows in finished:
                journal.append(len(items), job.fingerprint(items), rows)
                done += len(items)
    except KeyboardInterrupt:
        place = f"in {journal.path}; the same command goes on from there"
        print(f"transduce: {done} of {total} inputs are done, {place}", file=sys.stderr)
        raise


def stream(
    job: Job,
    chunks: Iterable[Chunk],
    output: Path | None,
    *,
    n_workers: int,
    total: int | None = None,
    quiet: bool = False,
) -> None:
    """Do a job chunk by chunk, and write the rows in the order of the input as they come.

    Raises:
        SystemExit: with 1, at the end, if some inputs could not be used.
    """
    n = 0
    n_bad = 0

    def texts() -> Iterator[str]:
        nonlocal n, n_bad
        for items, rows in done:
            n += len(items)
            n_bad += len(rows.errors)
            yield rows.text

    with (
        open_output(output) as out,
        progress_bar(unit=job.UNIT, total=total, quiet=quiet) as bar,
        closing(_results(job, chunks, bar, n_workers)) as done,
    ):
        for text in job.written(texts()):
            bar.clear()
            out.write(text)
            out.flush()
    _end(job, n_bad, n)


def _results(
    job: Job, chunks: Iterable[Chunk], bar: "tqdm[None]", n_workers: int
) -> Generator[tuple[list[Any], Rows], None, None]:
    """Yield inputs and rows of every chunk; stderr has a bar, the first few errors and warnings."""
    from torch import get_num_threads

    waiting = deque[list[Any]]()

    def remembered() -> Iterator[Chunk]:
        for start, items in chunks:
            waiting.append(items)
            yield start, items

    def progress(n_done: int, n_more: int) -> None:
        if bar.total is not None:
            bar.total += n_more
        bar.update(n_done)

    n_threads = max(1, get_num_threads() // n_workers)
    with (
        first_few() as is_shown,
        closing(
            results(job.load, remembered(), progress, n_workers=n_workers, n_threads=n_threads)
        ) as done,
    ):
        warnings = lambda record: is_shown(record.getMessage())
        logger.addFilter(warnings)
        try:
            for rows in done:
                for error in filter(is_shown, rows.errors):
                    tqdm.write(f"transduce: {error}", file=sys.stderr)
                yield waiting.popleft(), rows
        finally:
            logger.removeFilter(warnings)


def _end(job: Job, n_bad: int, n: int) -> None:
    if n_bad:
        print(f"transduce: {n_bad} of {n} {job.UNUSABLE}", file=sys.stderr)
        sys.exit(1)


def cut(
    items: Iterable[ItemT], cost: Callable[[ItemT], int], limit: int, start: int = 0
) -> Iterator[Chunk]:
    """Cut inputs into chunks that reach a cost; at least one chunk, which may be empty.

    Args:
        start: the number of inputs before the first one.
    """
    chunk: list[ItemT] = []
    total = 0
    n_chunks = 0
    for item in items:
        chunk.append(item)
        total += cost(item)
        if total >= limit:
            yield start, chunk
            n_chunks += 1
            start += len(chunk)
            chunk, total = [], 0
    if chunk or not n_chunks:
        yield start, chunk


def _default_workers(job: Job, n_chunks: int) -> int:
    """One process per core of a CPU, if there are two chunks for each, and memory for all."""
    import torch

    from transduce.checkpoints import weights_path
    from transduce.device import default_device, memory

    if not (default_device() if job.machine.device == "auto" else job.machine.device).startswith(
        "cpu"
    ):
        return 1
    room = memory(torch.device("cpu")) or sys.maxsize
    weights = sum(weights_path(run).stat().st_size for run in each_run(job.run))
    each = (1 << 29) + 2 * weights  # torch itself, and the weights, plain and packed
    return max(1, min(torch.get_num_threads(), n_chunks // 2, room // each))
