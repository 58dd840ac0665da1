"""Journals of large outputs, and `transduce merge` of their parts."""

import fcntl
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedIOBase, BufferedRandom
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tyro.conf import Positional, arg

from transduce.cli.output import check_output, first_few
from transduce.cli.workers import Rows
from transduce.config import differences, environment_count
from transduce.errors import InputError

SLURM = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT")
TORCHRUN = ("RANK", "WORLD_SIZE")


@dataclass(frozen=True)
class Share:
    """Part `number`, counted from 1, of `total`."""

    number: int
    total: int

    def span(self, n: int) -> tuple[int, int]:
        """Its inputs, of n: the index of the first and that behind the last."""
        return n * (self.number - 1) // self.total, n * self.number // self.total

    def file(self, output: Path) -> Path:
        """The file of this part of an output."""
        return output.with_name(f"{output.name}.part-{self.number:05d}-of-{self.total:05d}")


def parse_share(text: str) -> Share:
    """Read a share such as "3/8".

    Raises:
        InputError: it is none.
    """
    first, _, second = text.partition("/")
    if first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second):
        return Share(int(first), int(second))
    raise InputError(
        f"--part must be I/N with 1 <= I <= N, such as 3/8, or all, but it is {text!r}"
    )


def share_of_environment(environment: Mapping[str, str]) -> Share | None:
    """The share of this task of a SLURM array, of this process of torchrun, or of both; else None.

    Raises:
        InputError: the tasks of the array are not numbered in even steps.
    """
    index = 0
    total = 1
    if set(SLURM) <= environment.keys():
        task, first, total = (environment_count(environment, name) for name in SLURM)
        step = environment_count(environment, "SLURM_ARRAY_TASK_STEP", "1", least=1)
        index, rest = divmod(task - first, step)
        if rest or not 0 <= index < total:
            raise InputError(
                f"the tasks of an array must be numbered in even steps, as --array=1-{total} does, "
                f"but task {task} is "
                f"one of {total} from {first} up; name the part: --part I/N"
            )
    elif not set(TORCHRUN) <= environment.keys():
        return None
    if set(TORCHRUN) <= environment.keys():
        rank, ranks = (environment_count(environment, name) for name in TORCHRUN)
        if rank >= ranks:
            raise InputError(
                f"RANK must be less than WORLD_SIZE, but they are {rank} and {ranks}; start it "
                "with torchrun"
            )
        index, total = index * ranks + rank, total * ranks
    return Share(index + 1, total)


@dataclass(frozen=True)
class Header:
    """The first line of a journal, as JSON."""

    job: dict[str, Any]
    """What all parts have in common: settings, hashes of the run and of the whole input."""
    share: Share

    @property
    def span(self) -> tuple[int, int]:
        """The inputs of this part."""
        return self.share.span(int(self.job["n_inputs"]))


class Entry(NamedTuple):
    """A line of a journal, as JSON: a chunk that is done."""

    n_inputs: int
    inputs: str
    """A hash of its inputs."""
    errors: list[str]
    text: str


def read_header(file: BufferedIOBase, path: Path) -> Header:
    """Read the first line of a journal.

    Raises:
        InputError: it is none.
    """
    try:
        plain = json.loads(file.readline())
        header = Header(dict(plain["job"]), Share(*map(int, plain["part"])))
        assert header.span
    except (
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise InputError(
            f"{path} must begin as what this command has written, but it does not; move it, or "
            "name another --output"
        ) from error
    return header


def read_entries(file: BufferedIOBase) -> Iterator[Entry]:
    """Read the chunks behind the header, up to a line that a crash has torn."""
    while (line := file.readline()).endswith(b"\n"):
        try:
            entry = Entry(*json.loads(line))
        except (ValueError, TypeError):
            return
        yield entry


class Journal:
    """Chunks that are done, in the order of the input: an open file; see `open_journal`."""

    def __init__(self, path: Path, file: BufferedRandom) -> None:
        self.path = path
        self.file = file
        self.n_chunks = 0
        self.n_errors = 0

    def write(self, plain: object) -> None:
        """Write a line, and wait for the disk."""
        self.file.write(json.dumps(plain).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def resume(self, items: Iterator[Any], fingerprint: Callable[[list[Any]], str]) -> int:
        """Count the inputs that are done, up to the first chunk whose inputs have changed."""
        n = 0
        end = self.file.tell()
        for entry in read_entries(self.file):
            if fingerprint(list(islice(items, entry.n_inputs))) != entry.inputs:
                break
            n += entry.n_inputs
            self.n_chunks += 1
            self.n_errors += len(entry.errors)
            end = self.file.tell()
        self.file.truncate(end)
        return n

    def append(self, n_inputs: int, inputs: str, rows: Rows) -> None:
        """Write a chunk."""
        self.n_chunks += 1
        self.n_errors += len(rows.errors)
        self.write(Entry(n_inputs, inputs, list(rows.errors), rows.text))

    def texts(self) -> Iterator[str]:
        """The rows of all chunks."""
        self.file.seek(0)
        self.file.readline()
        return (entry.text for entry in read_entries(self.file))


@contextmanager
def open_journal(path: Path, header: Header, *, is_part: bool) -> Iterator[Journal]:
    """Open or begin the journal of a job, which no other process writes meanwhile; without chunks
    it is removed.

    A journal of another job begins anew, unless it is a part.

    Raises:
        InputError: its name is taken by another file, another process writes it, or it is a part of
            another job.
    """
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
        file.seek(0)
        is_new = not path.stat().st_size
        changed = [] if is_new else differences(read_header(file, path).job, header.job)
        if changed and is_part:
            raise InputError(
                f"a part must belong to one job with the others, but {path} was made with other "
                "settings: "
                f"{'; '.join(changed)}; name another --output, or remove it"
            )
        journal = Journal(path, file)
        if is_new or changed:
            file.truncate(0)
            journal.write({"job": header.job, "part": [header.share.number, header.share.total]})
        try:
            yield journal
        finally:
            if not journal.n_chunks:
                path.unlink()


def write_rows(output: Path, texts: Iterable[str]) -> None:
    """Write rows as one file, whole or not at all."""
    from transduce.files import writing_whole

    with writing_whole(output) as file:
        for text in texts:
            file.write(text.encode())


def merge(
    output: Positional[
        Annotated[Path, arg(metavar="OUTPUT", help="As --output of the parts was.")]
    ],
) -> None:
    """Join the parts of an output, OUTPUT.part-00001-of-00004 and so on, in the order of the input.

    The parts stay; the exit code is 1 if some of the input could not be used.
    """
    check_output(output, ())
    parts = _parts(output)
    errors: list[str] = []

    def texts() -> Iterator[str]:
        for _, path in parts:
            with path.open("rb") as file:
                read_header(file, path)
                for entry in read_entries(file):
                    errors.extend(entry.errors)
                    yield entry.text

    job = parts[0][0].job
    if "figures" in job:
        from transduce.tasks.perplexity import Perplexity

        write_rows(
            output,
            [f"{Perplexity(**job['figures']).with_nats(map(float, ''.join(texts()).split()))}\n"],
        )
    else:
        write_rows(output, texts())
    print(f"{output}: {len(parts)} parts, {job['n_inputs']} inputs", file=sys.stderr)
    if errors:
        with first_few() as is_shown:
            for error in filter(is_shown, errors):
                print(f"transduce: {error}", file=sys.stderr)
        print(
            f"transduce: {len(errors)} of {job['n_inputs']} inputs could not be used",
            file=sys.stderr,
        )
        sys.exit(1)


def _parts(output: Path) -> list[tuple[Header, Path]]:
    """The parts of an output, in order.

    Raises:
        InputError: one is missing or unfinished, or they do not belong together.
    """
    named = re.compile(re.escape(output.name) + r"\.part-\d+-of-\d+")
    paths = sorted(path for path in output.parent.iterdir() if named.fullmatch(path.name))
    if not paths:
        raise InputError(
            f"merge joins files such as {Share(1, 4).file(output).name}, but there is none in "
            f"{output.parent}; "
            "name what --output named"
        )
    headers = [(_finished(path), path) for path in paths]
    first = headers[0][0]
    for header, path in headers:
        changed = differences(
            {"parts": first.share.total, **first.job}, {"parts": header.share.total, **header.job}
        )
        if changed:
            raise InputError(
                f"parts must belong to one job, but {path} and {paths[0]} do not: "
                f"{'; '.join(changed)}; remove those that are of no use"
            )
    parts = {header.share.number: (header, path) for header, path in headers}
    missing = [number for number in range(1, first.share.total + 1) if number not in parts]
    if missing:
        numbers = ", ".join(map(str, missing[:10])) + ", ..." * (len(missing) > 10)
        raise InputError(
            f"merge needs all {first.share.total} parts of {output}, but these are missing: "
            f"{numbers}; "
            "run the same command for them (--part I/N)"
        )
    return [parts[number] for number in sorted(parts)]


def _finished(path: Path) -> Header:
    """The header of a part that is finished.

    Raises:
        InputError: it is none, or not finished.
    """
    with path.open("rb") as file:
        header = read_header(file, path)
        n = sum(entry.n_inputs for entry in read_entries(file))
    start, stop = header.span
    if n != stop - start:
        raise InputError(
            f"{path} must have the rows of {stop - start} inputs, but it has those of {n}; "
            "fetch it again, or run the same command for it"
        )
    return header


def run_fingerprint(path: Path) -> str:
    """Hash all files of a run that decoding reads, or a file of n-grams."""
    from transduce.checkpoints import weights_path
    from transduce.data.text.tokenizer_files import FILES, side_files
    from transduce.run import CONFIG, STATISTICS

    digest = sha256()
    for name in (CONFIG, STATISTICS, *FILES, *side_files("source"), *side_files("target")):
        with suppress(FileNotFoundError, NotADirectoryError):
            digest.update(name.encode() + sha256((path / name).read_bytes()).digest())
    with (path if path.is_file() else weights_path(path)).open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()
