"""Files that a crash cannot leave half written, and weights as safetensors."""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedIOBase
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transduce.config import Json
from transduce.errors import InputError, logger

WEIGHT_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

Weights = dict[str, Tensor]
"""Tensors by their names."""

LOCK = ".lock"
HOLDER = ".lock.holder"

MANIFEST = "manifest.json"
"""In a checkpoint: bytes and CRC-32 of every file by its name."""


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BufferedIOBase]:
    """Open a temporary file that replaces `path` when the `with` ends without an error, and is
    removed otherwise; a missing folder is created.

    Args:
        durable: wait for the disk; otherwise a power cut may still tear the file.

    Raises:
        InputError: `path` is a device, such as /dev/null, or another thing that is no file.
    """
    if regular(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, file = _open_temporary(path)
    try:
        with file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        _sync(path.parent)


def _open_temporary(path: Path) -> tuple[Path, BufferedIOBase]:
    """Open a new file beside `path`; it stays locked as long as its writer runs."""
    while True:
        # the name may have 255 bytes already, the most that a file system takes
        temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")
        file = temporary.open("xb")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:  # else removed as a leftover before it was locked
            return temporary, file
        file.close()


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files of killed processes; those of running processes are locked, and
    stay."""
    for path in directory.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{16}\.tmp", path.name):
            with suppress(OSError), path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Lock a run directory against other processes until the `with` ends.

    Raises:
        InputError: another process holds it; the message names the process.
    """
    lock = FileLock(directory / LOCK)
    holder = directory / HOLDER
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        by = holder.read_text("utf-8", "replace") if holder.is_file() else "another process"
        raise InputError(
            f"a run is trained by one process at a time, but {directory} is held by {by}; wait for "
            "it or stop it, or name another directory with --run"
        ) from error
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        write_file(holder, f"process {os.getpid()} on {socket.gethostname()} since {since}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def write_file(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file whole or not at all; see `replacing`."""
    raw = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with replacing(path, durable=durable) as file:
        file.write(raw)


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Write a directory whole or not at all, also over an existing one; `damaged` checks it.

    Args:
        fill: called with a directory; writes the files into it.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        fill(temporary)
        files = sorted(temporary.iterdir())
        manifest = {file.name: _checksum(file) for file in files}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        for file in (*files, temporary / MANIFEST, temporary):
            _sync(file)
    except BaseException:  # such as on a full disk: free the space
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    old = _put_aside(path)  # two renames, so that only a crash right between them leaves neither
    temporary.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    _sync(path.parent)


def remove_directory(path: Path) -> None:
    """Remove a directory; a crash leaves all of it or nothing under its name."""
    shutil.rmtree(_put_aside(path))


def _put_aside(path: Path) -> Path:
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    return old


def damaged(directory: Path, names: Collection[str] = ()) -> str | None:
    """Find the first file that is missing or differs from what `write_directory` wrote.

    Args:
        names: the files to check; by default all in manifest.json. Without a manifest, which older
            versions did not write, they only need to exist, and a warning is logged once.
    """
    if not (directory / MANIFEST).is_file():
        _warn_unchecked(directory)
        manifest = {}
    else:
        try:
            manifest = read_json(directory / MANIFEST)
        except InputError:
            return MANIFEST
    for name in names or manifest:
        file = directory / name
        if not file.is_file() or manifest.get(name) not in (None, _checksum(file)):
            return name
    return None


def check_undamaged(path: Path) -> None:
    """Raise InputError if a file of a checkpoint differs from what was written."""
    if name := damaged(path.parent, [path.name]):
        raise InputError(
            f"a checkpoint must be as it was written, but {path.parent / name} is damaged; remove "
            f"{path.parent}, and use the others"
        )


@cache
def _warn_unchecked(directory: Path) -> None:
    logger.warning(
        "%s has no %s, so its files are used unchecked",
        directory,
        MANIFEST,
    )


def _checksum(path: Path) -> dict[str, object]:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return {"bytes": path.stat().st_size, "crc32": f"{crc:08x}"}


def numbered(directory: Path) -> list[Path]:
    """List subdirectories whose names are eight digits or more, such as 00000400, in order."""
    paths = [path for path in directory.glob("[0-9]*") if re.fullmatch("[0-9]{8,}", path.name)]
    return sorted(filter(Path.is_dir, paths), key=lambda path: int(path.name))


def weights_of(module: nn.Module) -> Weights:
    """All parameters and persistent buffers; a shared tensor is listed once, under its first
    name."""
    state = module.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: tensor for name, tensor in state.items() if first[id(tensor)] == name}


def save_weights(path: Path, module: nn.Module) -> None:
    """Write `weights_of` a module as safetensors."""
    save_tensors(path, weights_of(module))


def save_tensors(path: Path, tensors: Weights) -> None:
    """Write tensors by name as safetensors, with the permissions of any other new file.

    Raises:
        OSError: they cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path
        )
        path.chmod(mode)  # the library's own is 0600, whatever the umask
    except SafetensorError as error:  # only its text has the errno, such as that of a full disk
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise OSError(f"{path} cannot be written: {error}") from error
        raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from error


def read_weights(path: Path) -> Weights:
    """Read tensors by name.

    Raises:
        InputError: the file is damaged.
        OSError: the file does not exist, or there is no permission to read it.
    """
    regular(path).open("rb").close()  # as safetensors reports any OSError as a missing file
    try:
        return load_file(path)
    except (SafetensorError, TypeError, KeyError) as error:  # the last two: dtypes that torch lacks
        raise InputError(
            f"{path} is not a whole safetensors file: {error}; copy it again, or, if its run has "
            "checkpoints, remove it to use those"
        ) from error


def set_weights(module: nn.Module, weights: Weights, name: str) -> None:
    """Copy weights into a module; errors name their origin, `name`.

    Raises:
        InputError: a name is missing or unknown, or a shape differs.
    """
    copy_weights(weights_of(module), weights, name)


def copy_weights(targets: Weights, weights: Weights, name: str) -> None:
    """Copy weights into the tensors of the same names; errors name their origin, `name`.

    Raises:
        InputError: a name is missing or unknown, or a shape or a type does not fit.
    """
    check_weights(targets, weights, name)
    with torch.no_grad():
        for n, tensor in targets.items():
            tensor.copy_(weights[n])


def check_weights(targets: Weights, weights: Weights, name: str) -> None:
    """Check that weights can be copied into the tensors of the same names; see `copy_weights`."""
    pairs = [(n, tensor, weights[n]) for n, tensor in targets.items() if n in weights]
    problems = [f"{n} is missing" for n in targets if n not in weights]
    problems += [f"{n} is unknown" for n in weights if n not in targets]
    problems += [
        f"{n} is {tuple(w.shape)} instead of {tuple(t.shape)}"
        for n, t, w in pairs
        if w.shape != t.shape
    ]
    problems += [
        f"{n} is of {w.dtype}" for n, t, w in pairs if w.dtype not in (*WEIGHT_TYPES, t.dtype)
    ]
    if problems:
        raise InputError(
            f"weights must fit the configuration, but in {name} {'; '.join(problems[:5])}"
        )


def regular(path: Path) -> Path:
    """Return a path that is a file, a directory, or does not exist.

    Raises:
        InputError: it is a FIFO, a socket or a device, where reading may wait forever, and which no
            file must replace.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(
            f"{path} must be a file, but it is a FIFO, a socket or a device; name another, or put "
            "a file in its place"
        )
    return path


def read_json(path: Path) -> Json:
    """Read the object in a JSON file, which may be malformed.

    Raises:
        InputError: it is not an object, or has NaN.
    """
    way_out = f"take {path.name} from a whole run directory"
    content = regular(path).read_bytes()
    try:
        plain = json.loads(content.decode(), parse_constant=_infinity)
    except (ValueError, RecursionError) as error:  # from decoding and from JSON
        raise InputError(f"{path} must be JSON without NaN, but: {error}; {way_out}") from error
    if not isinstance(plain, dict):
        raise InputError(
            f"{path} must hold a JSON object, but it holds a {type(plain).__name__}; {way_out}"
        )
    return plain


def read_optional(path: Path) -> Json:
    """The object of a JSON file; an empty one if there is no file."""
    return read_json(path) if path.is_file() else {}


def write_json(path: Path, plain: Json) -> None:
    """Write an object as indented JSON."""
    write_file(path, json.dumps(plain, indent=2) + "\n")


def _infinity(number: str) -> float:
    if number == "NaN":
        raise InputError("it has NaN")
    return float(number)


def read_json_lines(path: Path) -> list[Json]:
    """Read the JSON objects of a file, one a line; skip other lines, such as one that a crash cut
    off."""
    objects = []
    for line in regular(path).read_text(encoding="utf-8", errors="replace").split("\n"):
        with suppress(ValueError, RecursionError):
            plain = json.loads(line)
            if isinstance(plain, dict):
                objects.append(plain)
    return objects


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
