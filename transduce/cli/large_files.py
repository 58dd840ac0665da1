"""Large inputs: in chunks, by one process or several, as a whole or in parts."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from transduce.cli.common import Count, OptionalFile, each_run
from transduce.cli.jobs import Chunk, Job, results
from transduce.cli.parts import (
    Done,
    Share,
    Unfinished,
    check_output,
    is_plain,
    open_unfinished,
    parse_share,
)
from transduce.config import Common, at_least
from transduce.errors import InputError


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
    """Do part I of N alone, as FILE.part-I-of-N; transduce merge FILE joins them. In a SLURM array:
    --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT."""

    def share(self) -> Share | None:
        """The part of the input to do; None: all of it.

        Raises:
            InputError: there is no such part, or it would have no name.
        """
        if self.part is not None and self.output is None:
            raise InputError(
                f"a part is a file, but --part {self.part} has no --output; add --output FILE"
            )
        return parse_share(self.part) if self.part else None


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

    def report(rest: str = "") -> None:
        place = f"in {unfinished.path}{rest}"
        print(f"transduce: {done.n_inputs} of {n} inputs are done, {place}", file=sys.stderr)

    if done.n_inputs or done.part != (1, 1):
        report()
    first = start + done.n_inputs
    chunks = cut(islice(items, first, stop), job.cost, limit, first)
    try:
        with closing(results(job, chunks, n_workers, n, done.n_inputs)) as finished:
            for n_inputs, rows in finished:
                unfinished.append(n_inputs, rows.text, len(rows.errors))
    except KeyboardInterrupt:
        report("; the same command goes on from there")
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

    from transduce.device import default_device, memory
    from transduce.run import weights_path

    device = default_device() if job.machine.device == "auto" else job.machine.device
    if not device.startswith("cpu"):
        return 1
    weights = sum(weights_path(run).stat().st_size for run in each_run(job.run))
    each = (1 << 29) + 2 * weights  # torch itself, and the weights, plain and packed
    room = memory(torch.device("cpu")) or sys.maxsize
    return max(1, min(torch.get_num_threads(), n_chunks // 2, room // each))
