"""Outputs that are not complete yet, parts of outputs, and `transduce merge`, which joins them."""

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from tyro.conf import Positional, arg

from transduce.config import differences, from_dict, to_dict
from transduce.errors import InputError


@dataclass(frozen=True)
class Share:
    """Part `number`, counted from 1, of `total`."""

    number: int = 1
    total: int = 1

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
    match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return Share(int(match[1]), int(match[2]))
    raise InputError(f"--part must be I/N with 1 <= I <= N, such as 3/8, but it is {text!r}")


@dataclass
class Done:
    """How much of a job stands in a file of rows, as JSON beside it."""

    job: dict[str, Any]
    """All that decides the output: settings, hashes of the run and of the whole input."""
    n_total: int
    """The inputs of all parts."""
    part: tuple[int, int] = (1, 1)
    """Its number and how many there are."""
    n_inputs: int = 0
    n_bytes: int = 0
    n_errors: int = 0

    @property
    def span(self) -> tuple[int, int]:
        """The inputs of this part."""
        return Share(*self.part).span(self.n_total)


def progress_file(rows: Path) -> Path:
    """The file that says how much of a job stands in a file of rows."""
    return rows.with_name(f"{rows.name}.progress")


class Unfinished:
    """Rows that are being written, and how much of the job they are; see `open_unfinished`."""

    def __init__(self, path: Path, file: BinaryIO, done: Done) -> None:
        self.path = path
        self.file = file
        self.done = done

    def append(self, n_inputs: int, text: str, n_errors: int) -> None:
        """Write rows, and wait for the disk."""
        from transduce.files import write_file

        self.file.write(text.encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.done.n_inputs += n_inputs
        self.done.n_bytes = self.file.tell()
        self.done.n_errors += n_errors
        write_file(progress_file(self.path), json.dumps(to_dict(self.done)))

    def rename(self, output: Path) -> None:
        """Make the rows, which are complete, the output."""
        self.path.replace(output)
        progress_file(self.path).unlink()

    def remove(self) -> None:
        """Remove the rows and what is known of them."""
        self.path.unlink()
        progress_file(self.path).unlink(missing_ok=True)


@contextmanager
def open_unfinished(path: Path, done: Done) -> Iterator[Unfinished]:
    """Open or begin the rows of a job, which no other process writes meanwhile.

    Raises:
        InputError: another process writes them, or they are those of another job.
    """
    from transduce.files import read_json

    progress = progress_file(path)
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
        if progress.exists():
            before = from_dict(Done, read_json(progress), str(progress))
            if changed := differences(before.job, done.job):
                raise InputError(
                    f"an output is made with the same input and settings from beginning to end, "
                    f"but {path} was begun with others: {'; '.join(changed)}; remove it and "
                    f"{progress.name}, or name another --output"
                )
            done = before
        size = file.seek(0, os.SEEK_END)
        if size < done.n_bytes or (size and not progress.exists()):
            raise InputError(
                f"{path} must be as this command has left it, but it is not; move it, or name "
                "another --output"
            )
        file.truncate(done.n_bytes)
        try:
            yield Unfinished(path, file, done)
        finally:
            if not progress.exists():  # not even the first rows came
                path.unlink(missing_ok=True)


def is_plain(output: Path) -> bool:
    """Whether an output is or becomes a usual file, and no pipe and no device."""
    return output.is_file() or not output.exists()


def check_output(output: Path, inputs: Sequence[Path] = ()) -> None:
    """Check that an output has a folder, is none, and is no input, standard input among them.

    Raises:
        InputError: it has none, or it is one.
    """
    if output.is_dir():
        raise InputError(
            f"an output must be a file, but {output} is a directory; name a file in it"
        )
    if not (folder := output.absolute().parent).is_dir():
        raise InputError(
            f"an output's folder must exist, but {folder} does not; make it, or name another "
            "--output"
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
                "--output"
            )


def merge(
    output: Positional[
        Annotated[Path, arg(metavar="OUTPUT", help="As --output of the parts was.")]
    ],
) -> None:
    """Join the parts of an output, OUTPUT.part-00001-of-00004 and so on, in the order of the input.

    The parts stay; the exit code is 1 if some of the input could not be used.
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
    if n_errors:
        print(f"transduce: {n_errors} of {n_inputs} inputs could not be used", file=sys.stderr)
        sys.exit(1)


def _parts(output: Path) -> dict[Path, Done]:
    """The parts of an output, in order.

    Raises:
        InputError: one is missing or not complete, or they do not belong together.
    """
    named = re.compile(re.escape(output.name) + r"\.part-\d+-of-\d+")
    paths = sorted(path for path in output.parent.iterdir() if named.fullmatch(path.name))
    if not paths:
        raise InputError(
            f"merge joins files such as {Share(1, 4).file(output).name}, but there is none in "
            f"{output.parent}; name what --output named"
        )
    parts = {path: _read_done(path) for path in paths}
    first = parts[paths[0]]
    for path, done in parts.items():
        if changed := differences(
            {"parts": first.part[1], **first.job}, {"parts": done.part[1], **done.job}
        ):
            raise InputError(
                f"parts must belong to one job, but {path} and {paths[0]} do not: "
                f"{'; '.join(changed)}; remove those that are of no use"
            )
    total = first.part[1]
    missing = [str(i) for i in range(1, total + 1) if Share(i, total).file(output) not in parts]
    if missing:
        raise InputError(
            f"merge needs all {total} parts of {output}, but these are missing: "
            f"{', '.join(missing[:10])}{', ...' * (len(missing) > 10)}; run the same command for "
            "them (--part I/N)"
        )
    return parts


def _read_done(rows: Path) -> Done:
    """What is known of the rows of a part.

    Raises:
        InputError: they are not complete.
    """
    from transduce.files import read_json

    progress = progress_file(rows)
    done = from_dict(Done, read_json(progress), str(progress))
    start, stop = done.span
    if done.n_inputs != stop - start or rows.stat().st_size != done.n_bytes:
        raise InputError(
            f"{rows} must have the rows of {stop - start} inputs, but it has those of "
            f"{done.n_inputs}, or was cut; fetch it again, or run the same command for it"
        )
    return done


def run_fingerprint(path: Path) -> str:
    """Hash all files of a run that decoding reads, or a file of n-grams."""
    from transduce.run import USED, weights_path

    files = [path] if path.is_file() else [*(path / name for name in USED), weights_path(path)]
    digest = sha256()
    for file in filter(Path.is_file, files):
        digest.update(file.name.encode())
        with file.open("rb") as raw:
            while block := raw.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()
