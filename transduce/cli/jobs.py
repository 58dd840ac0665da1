"""What the commands that decode large files share: an input in chunks, done by one process or several, or a part of it."""

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tqdm import tqdm
from tyro.conf import arg

from transduce.cli.common import Count, Machine, OptionalFile, each_run
from transduce.cli.output import check_output, first_few, is_plain, writing
from transduce.cli.parts import (
    Head,
    Share,
    is_done,
    join,
    parse_share,
    read_part,
    remove_chunks,
    remove_folder,
    run_fingerprint,
    share_of_environment,
    take_folder,
    write_part,
)
from transduce.cli.workers import Chunk, Rows, Work, results
from transduce.config import at_least, differences, to_dict
from transduce.data.text.lines import lines_fingerprint
from transduce.errors import InputError

logger = logging.getLogger("transduce")


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """What is done with every input of a list. It is sent to the workers, so it is plain data, and holds no model."""

    run: Path
    machine: Machine
    lm: Path | None = None

    UNIT: ClassVar[str]
    """What progress counts."""
    UNUSABLE: ClassVar[str] = "inputs could not be used"
    CHUNK: ClassVar[int]
    """How much is done, and then written, at a time, as `cost` counts it."""

    @abstractmethod
    def load(self) -> Work:
        """Load the model; what comes back turns a chunk of inputs into rows."""

    def name(self, item: Any) -> str:
        """What an input is."""
        return str(item)

    def state(self, item: Any) -> str:
        """What may change of one input while its name stays."""
        return ""

    def cost(self, item: Any) -> int:
        """How much work an input is."""
        return 1

    def written(self, rows: Iterable[str]) -> Iterable[str]:
        """What is written where these rows come out, chunk by chunk."""
        return rows

    def key(self, items: Iterable[Any], n: int) -> dict[str, Any]:
        """All that decides what comes out of n inputs: the settings, a hash of the run, a hash of their names."""
        plain = to_dict(self)
        del plain["machine"]["device"]
        plain.get("decoding", {}).pop("batch_tokens", None)  # it changes speed and memory, never the output
        names = lines_fingerprint(ascii(self.name(item)) for item in items)
        own = {
            "kind": type(self).__name__,
            "run": "+".join(map(run_fingerprint, each_run(self.run))),
            "n_inputs": n,
            "inputs": names,
        }
        if self.lm is not None:
            own["lm"] = run_fingerprint(self.lm)
        return {**plain, **own}

    def head(self, key: dict[str, Any], share: Share, items: Iterable[Any]) -> Head:
        """What the file of a part with these inputs says of itself."""
        return Head(key, share, lines_fingerprint(ascii((self.name(item), self.state(item))) for item in items))


@dataclass(frozen=True, kw_only=True)
class Division:
    """Where the output goes, and who does the work; see docs/large_files.md."""

    output: OptionalFile = None
    """The file that the output becomes once it is whole; standard output if not given. Until then what is done is kept
    in FILE.unfinished, and the same command goes on from there."""
    workers: Count = None
    """Processes on this machine, each with the model and its share of the cores. If not given: one per core where a CPU
    computes and the input is large, else one."""
    part: Annotated[str | None, arg(metavar="I/N", help_behavior_hint="")] = None
    """Do part I of N alone, as FILE.part-I-of-N; transduce merge FILE joins them. With --output and without --part, a
    task of a SLURM array does its part, and so does a process of torchrun; --part all: the whole input."""

    def share(self) -> Share | None:
        """The part of the input to do; None: all of it.

        Raises:
            InputError: there is no such part, or it would have no name.
        """
        if self.part is not None and self.part != "all":
            if self.output is None:
                raise InputError(f"a part is a file, but --part {self.part} has no --output; add --output FILE")
            return parse_share(self.part)
        return share_of_environment(os.environ) if self.output and self.part is None else None


def carry_out(job: Job, items: Iterable[Any], division: Division, inputs: Sequence[Path] = ()) -> None:
    """Do a job on all inputs, or on this process's part of them.

    Rows go to standard output in the order of the input, as soon as they are there. A file is written once it is whole:
    until then, every chunk is a file of its own in a folder beside it, and the same job goes on from there.

    Args:
        items: read several times from the beginning, so that memory holds one chunk of what is read from files.
        inputs: the files that the items are of, none of which the output may replace.

    Raises:
        SystemExit: with 1, at the end, if some inputs could not be used.
    """
    at_least(1, workers=division.workers)
    share, output = division.share(), division.output
    check_output(output, inputs)
    n = sum(1 for _ in items)
    start, stop = share.span(n) if share else (0, n)
    cost = sum(map(job.cost, islice(items, start, stop)))
    limit = max(1, min(job.CHUNK, -(-cost // (division.workers or 1))))
    spans = _spans(map(job.cost, islice(items, start, stop)), limit, start)
    n_workers = min(division.workers or _default_workers(job, len(spans)), len(spans))
    if output is None or not is_plain(output):
        return stream(job, _chunks(items, spans), output, n_workers=n_workers, total=n)
    key = job.key(items, n)
    head = job.head(key, share, islice(items, start, stop)) if share else None
    output = share.file(output) if share else output
    output = output.resolve() if output.is_symlink() else output
    if head and output.exists():
        found = read_part(output)
        if changed := differences(found.head.job, key):
            raise InputError(
                f"a part must belong to one job with the others, but {output} was made with other settings: "
                f"{'; '.join(changed)}; name another --output, or remove it"
            )
        if found.head == head:
            print(f"transduce: {output} is finished", file=sys.stderr)
            return _end(job, len(found.errors), stop - start)
    if share:
        print(
            f"transduce: part {share.number} of {share.total}, inputs {start + 1} to {stop}: {output}", file=sys.stderr
        )
    heads = [job.head(key, Share(i, len(spans)), some) for i, (_, some) in enumerate(_chunks(items, spans), start=1)]
    _end(job, _keep(job, items, spans, heads, output, head, n_workers), stop - start)


def stream(
    job: Job,
    chunks: Iterable[Chunk],
    output: Path | None,
    *,
    n_workers: int,
    total: int | None = None,
    quiet: bool = False,
) -> None:
    """Do a job chunk by chunk, and write the rows in the order of the input.

    Raises:
        SystemExit: with 1, at the end, if some inputs could not be used.
    """
    n_bad = n = 0

    def counted() -> Iterator[Chunk]:
        nonlocal n
        for chunk in chunks:
            n += len(chunk[1])
            yield chunk

    def rows() -> Iterator[str]:
        nonlocal n_bad
        waiting, following = dict[int, str](), 0
        with closing(_done(job, counted(), bar, n_workers)) as found:
            for number, each in found:
                n_bad += len(each.errors)
                waiting[number] = each.text
                while following in waiting:
                    yield waiting.pop(following)
                    following += 1

    with writing(output, unit=job.UNIT, total=total, quiet=quiet) as (out, bar):
        for each in job.written(rows()):
            bar.clear()
            out.write(each)
            out.flush()
    _end(job, n_bad, n)


def _chunks(items: Iterable[Any], spans: Sequence[tuple[int, int]]) -> Iterator[Chunk]:
    """The inputs of spans, each of which begins where the one before ends."""
    rest = islice(items, spans[0][0], None)
    for start, stop in spans:
        yield start, list(islice(rest, stop - start))


def _undone(job: Job, chunks: Iterable[Chunk], heads: Sequence[Head], todo: Sequence[int]) -> Iterator[Chunk]:
    """The chunks of these numbers.

    Raises:
        InputError: one of them is not what it was when its head was made.
    """
    for i, (start, items) in enumerate(chunks):
        if i in todo:
            if job.head(heads[i].job, heads[i].share, items) != heads[i]:
                raise InputError(
                    f"inputs must stay as they are while they are read, but some of the {job.UNIT}s from {start + 1} on "
                    "have changed; run the same command again"
                )
            yield start, items


def _keep(
    job: Job,
    items: Iterable[Any],
    spans: Sequence[tuple[int, int]],
    heads: Sequence[Head],
    output: Path,
    head: Head | None,
    n_workers: int,
) -> int:
    """Make every chunk that is not there yet a file, and in the end all of them the output; how many errors there were."""
    from transduce.files import held

    folder = output.with_name(f"{output.name}.unfinished")
    take_folder(folder)
    with held(folder, "an output is made by one process at a time", "name another --output"):
        paths = [each.share.file(folder / "chunk") for each in heads]
        todo = [i for i, path in enumerate(paths) if not is_done(path, heads[i])]
        chunks = _undone(job, _chunks(items, spans), heads, todo)
        done = len(paths) - len(todo)
        if done:
            print(f"transduce: going on with {done} of {len(paths)} chunks done, in {folder}", file=sys.stderr)
        try:
            with writing(None, unit=job.UNIT, total=spans[-1][1] - spans[0][0]) as (_, bar):
                bar.update(bar.total - sum(spans[i][1] - spans[i][0] for i in todo))
                with closing(_done(job, chunks, bar, min(n_workers, len(todo)))) as found:
                    for number, rows in found:
                        write_part(paths[todo[number]], heads[todo[number]], rows.errors, rows.text)
                        done += 1
            parts = [replace(read_part(path), head=each) for path, each in zip(paths, heads, strict=True)]
            join(output, parts, head)
        except KeyboardInterrupt:
            told = f"{done} of {len(paths)} chunks are done, in {folder}; the same command goes on from there"
            print(f"transduce: {told}", file=sys.stderr)
            raise
        finally:
            if not done:
                remove_chunks(folder)
        remove_chunks(folder)
    remove_folder(folder)
    return sum(len(part.errors) for part in parts)


def _done(
    job: Job, chunks: Iterable[Chunk], bar: "tqdm[None]", n_workers: int
) -> Generator[tuple[int, Rows], None, None]:
    """`results`, with a bar, and errors on stderr; of errors and warnings of one kind, the first few."""
    from torch import get_num_threads

    def progress(n_done: int, n_more: int = 0) -> None:
        if bar.total is not None:
            bar.total += n_more
        bar.update(n_done)

    if n_workers == 0:
        return
    n_threads = max(1, get_num_threads() // n_workers)
    with (
        first_few() as is_shown,
        closing(results(job.load, chunks, progress, n_workers=n_workers, n_threads=n_threads)) as found,
    ):
        warnings = lambda record: is_shown(record.getMessage())
        logger.addFilter(warnings)
        try:
            for number, rows in found:
                for error in filter(is_shown, rows.errors):
                    tqdm.write(f"transduce: {error}", file=sys.stderr)
                yield number, rows
        finally:
            logger.removeFilter(warnings)


def _end(job: Job, n_bad: int, n: int) -> None:
    if n_bad:
        print(f"transduce: {n_bad} of {n} {job.UNUSABLE}", file=sys.stderr)
        sys.exit(1)


def _spans(costs: Iterable[int], limit: int, start: int = 0) -> list[tuple[int, int]]:
    """Neighbours that reach the limit together, as indices from and to before; at least one span, which may be empty."""
    spans, cost, stop = list[tuple[int, int]](), 0, start
    for stop, each in enumerate(costs, start=start + 1):
        cost += each
        if cost >= limit:
            spans.append((start, stop))
            start, cost = stop, 0
    return [*spans, (start, stop)] if start < stop or not spans else spans


def _default_workers(job: Job, n_chunks: int) -> int:
    """One process per core where that is faster: on a CPU, with two chunks or more for each, and memory for all."""
    import torch

    from transduce.device import default_device, memory
    from transduce.run import weights_path

    if not (default_device() if job.machine.device == "auto" else job.machine.device).startswith("cpu"):
        return 1
    room = memory(torch.device("cpu")) or sys.maxsize
    weights = sum(weights_path(run).stat().st_size for run in each_run(job.run))
    each = (1 << 29) + 2 * weights  # torch itself, and the weights, plain and packed
    return max(1, min(torch.get_num_threads(), n_chunks // 2, room // each))
