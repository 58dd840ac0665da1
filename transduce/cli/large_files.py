"""Large inputs: processed in chunks, by one process or several, as a whole or in parts to merge."""

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

from tyro.conf import Positional, arg

from transduce.cli.common import Count, OptionalFile, to_stderr
from transduce.cli.jobs import Chunk, Job, default_workers, results, split_chunks
from transduce.config import Common, Json, at_least, differences, from_dict, to_dict
from transduce.errors import InputError


class Part(NamedTuple):
    """Part `number`, counted from 1, of `total`."""

    number: int = 1
    total: int = 1

    def span(self, n: int) -> tuple[int, int]:
        """The range of its inputs out of n: the index of the first, and that after the last."""
        return n * (self.number - 1) // self.total, n * self.number // self.total

    def file(self, output: Path) -> Path:
        """The file of this part of an output."""
        return output.with_name(f"{output.name}.part-{self.number:05d}-of-{self.total:05d}")


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the output is written, and by how many processes; see docs/large_files.md."""

    output: Common[OptionalFile] = None
    """The output file; standard output by default. Until all is done, finished rows are kept in
    FILE.unfinished, and the same command resumes from there."""
    workers: Common[Count] = None
    """Processes on this machine, each with the model and an equal part of the cores. By default,
    one per core for a large input on a CPU, else one."""
    part: Common[Annotated[str | None, arg(metavar="I/N")]] = None
    """Process only part I of N, and write FILE.part-I-of-N; transduce merge FILE joins them. In a
    SLURM array: --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT."""

    def selected_part(self) -> Part:
        """The part of the input to process; without --part, all of it.

        Raises:
            InputError: there is no such part, or no --output.
        """
        if self.part is None:
            return Part()
        if self.output is None:
            raise InputError(
                f"a part is a file, but --part {self.part} has no --output; add --output FILE"
            )
        match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", self.part)
        if match and 1 <= int(match[1]) <= int(match[2]):
            return Part(int(match[1]), int(match[2]))
        raise InputError(
            f"--part must be I/N with 1 <= I <= N, such as 3/8, but it is {self.part!r}"
        )


@dataclass
class Done:
    """The progress of a job: how much of it a file of rows has, as JSON in a file beside it."""

    job: Json
    """Everything that determines the output: settings, hashes of the run and of the whole input."""
    n_total: int
    """The number of inputs of all parts."""
    part: Part
    n_inputs: int = 0
    n_bytes: int = 0
    n_errors: int = 0


def progress_file(rows: Path) -> Path:
    """The file with the progress of a file of rows."""
    return rows.with_name(f"{rows.name}.progress")


@contextmanager
def open_unfinished(path: Path, done: Done) -> Iterator[tuple[BinaryIO, Done]]:
    """Open or create the file of a job's rows, locked against other processes, and yield it with
    its progress. It is removed at the end if it has no progress file.

    Raises:
        InputError: another process writes them, or they are those of another job.
    """
    from transduce.files import read_json

    progress = progress_file(path)
    foreign = InputError(
        f"{path} must be as this command left it, but it was changed; move it, or name another "
        "--output"
    )
    if path.is_symlink():  # rows would be written into another file
        raise foreign
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"an output is made by one process at a time, but another one writes {path}; "
                "wait for it or stop it, or name another --output"
            ) from error
        except OSError:  # a file system without locks
            pass
        size = file.seek(0, os.SEEK_END)
        if size and progress.exists():  # without rows, the progress is that of a finished output
            before = from_dict(Done, read_json(progress), str(progress))
            if changed := differences(before.job, done.job):
                raise InputError(
                    "an output must be made with the same input and settings from beginning to "
                    f"end, but {path} was begun with others: {'; '.join(changed)}; remove it and "
                    f"{progress.name}, or name another --output"
                )
            done = before
        if size < done.n_bytes or (size and not progress.exists()):
            raise foreign
        file.truncate(done.n_bytes)
        try:
            yield file, done
        finally:
            if not progress.exists():
                path.unlink(missing_ok=True)


def check_output(output: Path, inputs: Sequence[Path] = (), *, option: str = "--output") -> None:
    """Check that the output file of an option is in an existing folder, is not a folder, and is not
    an input or standard input.

    Raises:
        InputError: one of these does not hold.
    """
    if output.is_dir():
        raise InputError(
            f"an output must be a file, but {output} is a directory; name a file in it"
        )
    if not (folder := output.absolute().parent).is_dir():
        raise InputError(
            f"an output's folder must exist, but {folder} does not; make it, or name another "
            f"{option}"
        )
    if not output.is_file():
        return
    read = {str(path): path.stat() for path in inputs if os.path.exists(path)}
    with suppress(OSError, ValueError, AttributeError):  # no standard input, or one that is no file
        read["standard input"] = os.fstat(sys.stdin.fileno())
    for name, status in read.items():
        if os.path.samestat(status, output.stat()):
            raise InputError(
                f"an output must not replace what is read, but {output} is {name}; name another "
                f"{option}"
            )


def carry_out(
    job: Job, items: Iterable[Any], destination: OutputOptions, inputs: Sequence[Path] = ()
) -> None:
    """Do a job for all inputs, or for one part of them, and write rows in the order of the inputs.

    The output file appears once it is complete: until then FILE.unfinished has the finished rows,
    and the same command resumes from there.

    Args:
        items: read several times from the beginning, so that only a few chunks are in memory; an
            iterator is read once, and its rows are printed to standard output chunk by chunk.
        inputs: the files that the items come from, none of which the output may replace.

    Raises:
        InputError: the inputs or the run changed meanwhile.
        SystemExit: with 1, at the end, if some inputs could not be used.
    """
    at_least(1, workers=destination.workers)
    part = destination.selected_part()
    if isinstance(items, Iterator):
        size = 1 if sys.stdin.isatty() else job.CHUNK
        return _print(job, split_chunks(items, lambda _: 1, size), None, destination.workers or 1)
    output = _checked(destination.output, job, inputs)
    key, n, cost = job.key(items)
    cost //= part.total
    limit = max(1, min(job.CHUNK, -(-cost // (destination.workers or 1))))
    n_chunks = max(1, -(-cost // limit))
    n_workers = min(destination.workers or default_workers(job, n_chunks), n_chunks)
    if output is None or (output.exists() and not output.is_file()):  # a pipe or a device
        return _print(job, split_chunks(items, job.cost, limit), output, n_workers, n)
    output = Path(os.path.realpath(output)) if output.is_symlink() else output
    unfinished = output.with_name(f"{output.name}.unfinished")
    path = part.file(output) if destination.part else unfinished
    with open_unfinished(path, Done(key, n, part)) as (file, done):
        _complete(job, items, file, done, limit, n_workers)
        if changed := differences(key, job.key(items)[0]):
            progress_file(path).unlink(missing_ok=True)
            raise InputError(
                "an output must be made with the same input and run from beginning to end, but "
                f"this changed meanwhile: {'; '.join(changed)}; run the same command again"
            )
        if not destination.part:
            path.replace(output)
            progress_file(path).unlink()
    end(done.n_errors, done.n_inputs, job.UNUSABLE)


def _checked(output: Path | None, job: Job, inputs: Sequence[Path]) -> Path | None:
    """The output, or None for the file that standard output goes to, as /dev/stdout is behind >>
    FILE: replacing it would lose its earlier lines.

    Raises:
        InputError: it is a file that is read.
    """
    if output is not None and not _is_stdout(output):
        check_output(output, [*inputs, *job.model_files])
        return output
    if own := [path for path in inputs if path.is_file() and _is_stdout(path)]:
        raise InputError(
            f"an output must not be added to what is read, but standard output is {own[0]}; name "
            "another file"
        )
    return None


def _is_stdout(path: Path) -> bool:
    with suppress(OSError, ValueError, AttributeError):  # one of them is no file
        return os.path.samestat(os.fstat(sys.stdout.fileno()), path.stat())
    return False


def _complete(
    job: Job, items: Iterable[Any], file: BinaryIO, done: Done, limit: int, n_workers: int
) -> None:
    """Do the rest of an output, or of a part of one; sync it to disk after every chunk."""
    from transduce.files import write_json

    start, stop = done.part.span(done.n_total)
    n = stop - start
    if done.n_bytes and done.n_inputs == n:
        return to_stderr(f"{file.name} is finished")

    def report(rest: str = "") -> None:
        place = f", in {file.name}{rest}" if done.n_inputs else ""
        to_stderr(f"{done.n_inputs} of {n} inputs are done{place}")

    if done.n_inputs or done.part.total > 1:
        report()
    first = start + done.n_inputs
    chunks = split_chunks(islice(items, first, stop), job.cost, limit, first)
    try:
        with closing(results(job, chunks, n_workers, n, done.n_inputs)) as finished:
            for n_inputs, rows in finished:
                file.write(rows.text.encode())
                file.flush()
                os.fsync(file.fileno())
                done.n_inputs += n_inputs
                done.n_bytes = file.tell()
                done.n_errors += len(rows.errors)
                write_json(progress_file(Path(file.name)), to_dict(done))
    except KeyboardInterrupt:
        report("; the same command resumes from there")
        raise


def _print(
    job: Job,
    chunks: Iterable[Chunk],
    output: Path | None,
    n_workers: int,
    total: int | None = None,
) -> None:
    """Write rows to standard output, a pipe or a device as they are finished."""
    n = 0
    n_errors = 0
    with (
        nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as out,
        closing(results(job, chunks, n_workers, total)) as finished,
    ):
        try:
            for n_inputs, rows in finished:
                n += n_inputs
                n_errors += len(rows.errors)
                out.write(rows.text)
                out.flush()
        except KeyboardInterrupt:
            if n:
                to_stderr(f"{n} inputs are done, and their lines are complete")
            raise
    end(n_errors, n, job.UNUSABLE)


def end(n_errors: int, n: int, unusable: str) -> None:
    """Exit with 1 if some of n inputs could not be used."""
    if n_errors:
        to_stderr(f"{n_errors} of {n} {unusable}")
        sys.exit(1)


def merge(
    output: Positional[Annotated[Path, arg(metavar="OUTPUT", help="The --output of the parts.")]],
) -> None:
    """Join the parts of an output, OUTPUT.part-00001-of-00004 and so on, in the order of the input.

    The parts are kept; the exit code is 1 if some of the input could not be used.
    """
    from transduce.files import replacing

    check_output(output)
    parts = _parts(output)
    with replacing(output) as file:
        for path in parts:
            with path.open("rb") as rows:
                shutil.copyfileobj(rows, file)
    n_inputs = next(iter(parts.values())).n_total
    n_errors = sum(done.n_errors for done in parts.values())
    print(f"{output}: {len(parts)} parts, {n_inputs} inputs", file=sys.stderr)
    end(n_errors, n_inputs, Job.UNUSABLE)


def _parts(output: Path) -> dict[Path, Done]:
    """The parts of an output, in order.

    Raises:
        InputError: one is missing or not complete, or they do not belong together.
    """
    named = re.compile(re.escape(output.name) + r"\.part-\d+-of-\d+")
    paths = sorted(path for path in output.parent.iterdir() if named.fullmatch(path.name))
    if not paths:
        raise InputError(
            f"merge joins files such as {Part(1, 4).file(output).name}, but there is none in "
            f"{output.parent}; give the --output of the parts"
        )
    parts = {path: _read_done(path) for path in paths}
    first = parts[paths[0]]
    for path, done in parts.items():
        if changed := differences(
            {"parts": first.part.total, **first.job}, {"parts": done.part.total, **done.job}
        ):
            raise InputError(
                f"parts must belong to one job, but {path} and {paths[0]} do not: "
                f"{'; '.join(changed)}; remove those of another job"
            )
    total = first.part.total
    missing = [str(i) for i in range(1, total + 1) if Part(i, total).file(output) not in parts]
    if missing:
        raise InputError(
            f"merge needs all {total} parts of {output}, but these are missing: "
            f"{', '.join(missing[:10])}{', ...' * (len(missing) > 10)}; run the same command for "
            "them (--part I/N)"
        )
    return parts


def _read_done(rows: Path) -> Done:
    """Read the progress of a part, and check that its rows are complete.

    Raises:
        InputError: they are incomplete.
    """
    from transduce.files import read_json

    progress = progress_file(rows)
    done = from_dict(Done, read_json(progress), str(progress))
    start, stop = done.part.span(done.n_total)
    if done.n_inputs != stop - start or rows.stat().st_size != done.n_bytes:
        raise InputError(
            f"{rows} must have the rows of {stop - start} inputs, but it has those of "
            f"{done.n_inputs}, or was cut; copy it again, or run the same command for it"
        )
    return done
