"""Parts of an output as files, each of which says which work it is a part of, and `transduce merge`."""

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from transduce.cli.output import check_output, first_few
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
        """The inputs that belong to it, of n: from one index to before another."""
        return n * (self.number - 1) // self.total, n * self.number // self.total

    def file(self, output: Path) -> Path:
        """The file of this part of an output."""
        return output.with_name(f"{output.name}.part-{self.number:05d}-of-{self.total:05d}")


def parse_share(text: str) -> Share:
    """The share that "3/8" names.

    Raises:
        InputError: it names none.
    """
    first, _, second = text.partition("/")
    if first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second):
        return Share(int(first), int(second))
    raise InputError(f"--part must be I/N with 1 <= I <= N, such as 3/8, or all, but it is {text!r}")


def share_of_environment(environment: Mapping[str, str]) -> Share | None:
    """The share of this task of a SLURM array, of this process of torchrun, or of both; None if there is neither.

    Raises:
        InputError: the tasks of the array are not numbered in even steps.
    """
    index, total, names = 0, 1, environment.keys()
    if not (set(SLURM) <= names or set(TORCHRUN) <= names):
        return None
    if set(SLURM) <= names:
        task, first, total = (environment_count(environment, name) for name in SLURM)
        index, rest = divmod(task - first, environment_count(environment, "SLURM_ARRAY_TASK_STEP", "1", least=1))
        if rest or not 0 <= index < total:
            raise InputError(
                f"the tasks of an array must be numbered in even steps, as --array=1-{total} does, but task {task} is one "
                f"of {total} from {first} up; name the part: --part I/N"
            )
    if set(TORCHRUN) <= names:
        rank, ranks = (environment_count(environment, name) for name in TORCHRUN)
        if rank >= ranks:
            raise InputError(
                f"RANK must be less than WORLD_SIZE, but they are {rank} and {ranks}; start it with torchrun"
            )
        index, total = index * ranks + rank, total * ranks
    return Share(index + 1, total)


@dataclass(frozen=True)
class Head:
    """What the first line of a part's file says, as JSON; its rows follow."""

    job: dict[str, Any]
    """What all parts have in common: the command, its settings, hashes of the run and of the whole input."""
    share: Share
    inputs: str
    """A hash of the inputs of this part."""


@dataclass(frozen=True)
class Part:
    """A part's file that was found whole."""

    path: Path
    head: Head
    errors: tuple[str, ...]
    """What could not be used."""
    n_bytes: int
    """Length of its rows."""

    def copy_rows(self, file: BufferedIOBase) -> None:
        """Write its rows to an open binary file."""
        with self.path.open("rb") as opened:
            opened.readline()
            shutil.copyfileobj(opened, file)

    def rows(self) -> str:
        """All of its rows."""
        return self.path.read_bytes().split(b"\n", 1)[1].decode()


def read_part(path: Path) -> Part:
    """What a part's file says of itself.

    Raises:
        InputError: it is none, or it was cut.
    """
    with path.open("rb") as file:
        first = file.readline()
    try:
        plain = json.loads(first)
        head = Head(dict(plain["job"]), Share(*map(int, plain["part"])), str(plain["inputs"]))
        part = Part(path, head, tuple(map(str, plain["errors"])), int(plain["bytes"]))
        int(head.job["n_inputs"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} must begin as a part does, but it does not; remove it, and make it again") from error
    if (found := path.stat().st_size - len(first)) != part.n_bytes:
        raise InputError(
            f"{path} must have {part.n_bytes} bytes of rows, but it has {found}; fetch it or make it again"
        )
    return part


def write_part(path: Path, head: Head, errors: Sequence[str], rows: str) -> None:
    """Write a part's file, whole or not at all."""
    from transduce.files import write_file

    raw = rows.encode()
    write_file(path, _first_line(head, errors, len(raw)) + raw)


def _first_line(head: Head, errors: Sequence[str], n_bytes: int) -> bytes:
    share = [head.share.number, head.share.total]
    plain = {"job": head.job, "part": share, "inputs": head.inputs, "errors": list(errors), "bytes": n_bytes}
    return json.dumps(plain).encode() + b"\n"


CHUNK_FILE = re.compile(r"chunk\.part-\d+-of-\d+|\.chunk\..+\.tmp|\.lock(\.holder)?|\.\.lock\.holder\..+\.tmp")
"""The names of what stands in FILE.unfinished."""


def take_folder(folder: Path) -> None:
    """Make the folder of chunks, or take it if it has chunks alone.

    Raises:
        InputError: something else has that name.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        found = "a link" if folder.is_symlink() else "no folder"
    else:
        folder.mkdir(exist_ok=True)
        strange = sorted(path.name for path in folder.iterdir() if not CHUNK_FILE.fullmatch(path.name))
        if not strange:
            return
        found = f"a folder with {strange[0]}"
    raise InputError(f"chunks need a folder of their own, but {folder} is {found}; move it, or name another --output")


def remove_chunks(folder: Path) -> None:
    """Remove the files of chunks."""
    for path in folder.iterdir():
        if path.name.startswith(("chunk.", ".chunk.")) and CHUNK_FILE.fullmatch(path.name):
            path.unlink()


def remove_folder(folder: Path) -> None:
    """Remove the folder and its lock; what somebody else has put there in the meantime stays."""
    for path in folder.iterdir():
        if CHUNK_FILE.fullmatch(path.name):
            path.unlink()
    with suppress(OSError):
        folder.rmdir()


def is_done(path: Path, head: Head) -> bool:
    """Whether a part's file is there, whole, and says of itself what it should."""
    with suppress(ValueError, OSError):
        return read_part(path).head == head
    return False


def join(output: Path, parts: Sequence[Part], head: Head | None = None) -> None:
    """Write the rows of parts as one file, whole or not at all; with a head, as a part of something larger."""
    from transduce.files import writing_whole

    with writing_whole(output) as file:
        if head is None and "figures" in parts[0].head.job:
            from transduce.tasks.perplexity import Perplexity

            nats = (float(row) for part in parts for row in part.rows().split())
            file.write(f"{Perplexity(**parts[0].head.job['figures']).of(nats)}\n".encode())
            return
        if head is not None:
            errors = [error for part in parts for error in part.errors]
            file.write(_first_line(head, errors, sum(part.n_bytes for part in parts)))
        for part in parts:
            part.copy_rows(file)


def merge(output: Positional[Annotated[Path, arg(metavar="OUTPUT", help="As --output of the parts was.")]]) -> None:
    """Join the parts of an output, OUTPUT.part-00001-of-00004 and so on, in the order of the input.

    The parts stay; the exit code is 1 if some of the input could not be used.
    """
    check_output(output, ())
    parts = _all_parts(output)
    join(output, parts)
    errors = [error for part in parts for error in part.errors]
    n = parts[0].head.job["n_inputs"]
    print(f"{output}: {len(parts)} parts, {n} inputs", file=sys.stderr)
    if errors:
        with first_few() as is_shown:
            for error in filter(is_shown, errors):
                print(f"transduce: {error}", file=sys.stderr)
        print(f"transduce: {len(errors)} of {n} inputs could not be used", file=sys.stderr)
        sys.exit(1)


def _all_parts(output: Path) -> list[Part]:
    """The parts of an output, in order.

    Raises:
        InputError: one is missing, or they do not belong together.
    """
    named = re.compile(re.escape(output.name) + r"\.part-\d+-of-\d+")
    paths = [path for path in output.parent.iterdir() if named.fullmatch(path.name)]
    found = sorted(map(read_part, paths), key=lambda part: part.head.share.number)
    if not found:
        raise InputError(
            f"merge joins files such as {Share(1, 4).file(output).name}, but there is none in {output.parent}; "
            "name what --output named"
        )
    first = found[0]
    for part in found:
        share = part.head.share
        if part.path != share.file(output):
            raise InputError(
                f"the file of part {share.number} of {share.total} must be named {share.file(output).name}, but it is "
                f"{part.path}; name it so, or remove it"
            )
        changed = differences(first.head.job, part.head.job)
        if share.total != first.head.share.total:
            changed.insert(0, f"parts: {first.head.share.total} -> {share.total}")
        if changed:
            raise InputError(
                f"parts must belong to one job, but {part.path} and {first.path} do not: "
                f"{'; '.join(changed)}; remove those that are of no use"
            )
    there = {part.head.share.number for part in found}
    missing = [number for number in range(1, first.head.share.total + 1) if number not in there]
    if missing:
        which = ", ".join(map(str, missing[:10])) + ", ..." * (len(missing) > 10)
        raise InputError(
            f"merge needs all {first.head.share.total} parts of {output}, but these are missing: {which}; "
            "run the same command for them (--part I/N)"
        )
    return found


def run_fingerprint(directory: Path) -> str:
    """SHA-256 of what a run decodes with: configuration, tokenizers, statistics, weights; or of a file of n-grams."""
    from transduce.data.text.tokenizer_files import FILES, side_files
    from transduce.run import CONFIG, STATISTICS, weights_path

    digest = sha256()
    weights = directory if directory.is_file() else weights_path(directory)
    for path in [
        directory / name for name in (CONFIG, STATISTICS, *FILES, *side_files("source"), *side_files("target"))
    ]:
        if path.is_file():
            digest.update(path.name.encode() + sha256(path.read_bytes()).digest())
    with weights.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()
