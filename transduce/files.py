"""Files that a crash cannot leave half done, and weights as safetensors, which run nothing when they are read."""

import errno
import fcntl
import json
import logging
import math
import os
import re
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transduce.errors import InputError

logger = logging.getLogger("transduce")

WEIGHT_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

PARTIAL = ".partial"
LOCK, HOLDER = ".lock", ".lock.holder"

MANIFEST = "manifest.json"
"""Of a checkpoint: by the name of a file, its bytes and its CRC-32."""

DEEPEST = 100
"""So many objects and lists inside each other are more than any file of ours has."""


@contextmanager
def writing_whole(path: Path, *, durable: bool = True, keep: bool = False) -> Iterator[BufferedIOBase]:
    """An open file that becomes `path` once the `with` ends well, and otherwise goes.

    Args:
        durable: wait for the disk; otherwise a power cut may still tear the file.
        keep: where the `with` ends in an error, what was written becomes PATH with PARTIAL behind it.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    beside, file = _beside(path)
    try:
        with file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            beside.replace(path)
    except BaseException:  # Ctrl-C too: nobody would ever use that name again
        if keep and beside.stat().st_size:
            beside.replace(path.with_name(path.name + PARTIAL))
        beside.unlink(missing_ok=True)
        raise
    if durable:
        _sync(path.parent)


def _beside(path: Path) -> tuple[Path, BufferedIOBase]:
    """A new file beside `path`, whose lock says that its writer lives."""
    while True:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # two containers may share a process id
        file = beside.open("xb")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:  # else, before it was locked, it was taken for a leftover
            return beside, file
        file.close()


def remove_leftovers(directory: Path) -> None:
    """Remove what killed writers of `write_file` left in a directory; what a living one is writing stays."""
    for path in directory.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{16}\.tmp", path.name):
            with suppress(OSError), path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


@contextmanager
def held(directory: Path, rule: str, way_out: str) -> Iterator[None]:
    """Hold a directory, so that no other process does, until the `with` ends.

    Raises:
        InputError: another process holds it; the message says the rule, which process it is, since when, and the way out.
    """
    lock, holder = FileLock(directory / LOCK), directory / HOLDER
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        by = holder.read_text("utf-8", "replace") if holder.is_file() else "another process"
        raise InputError(f"{rule}, but {directory} is held by {by}; wait for it or stop it, or {way_out}") from error
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        write_file(holder, f"process {os.getpid()} on {socket.gethostname()} since {since}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def write_file(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file whole or not at all; see `writing_whole`."""
    with writing_whole(path, durable=durable) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a directory whole or not at all; `fill` writes its files, `damaged` checks them. An existing one is replaced."""
    beside = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        fill(beside)
        files = sorted(beside.iterdir())
        manifest = {file.name: {"bytes": file.stat().st_size, "crc32": _crc32(file)} for file in files}
        (beside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        for file in (*files, beside / MANIFEST):
            _sync(file)
        _sync(beside)
    except BaseException:  # a full disk, above all, has no room for it
        shutil.rmtree(beside, ignore_errors=True)
        raise
    old = _put_aside(path)  # two renames, so that only a crash right between them finds neither
    beside.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    _sync(path.parent)


def remove_directory(path: Path) -> None:
    """Remove a directory with its files; a crash leaves all of it or none under its name."""
    shutil.rmtree(_put_aside(path))


def _put_aside(path: Path) -> Path:
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    return old


def damaged(directory: Path, names: Collection[str] = ()) -> str | None:
    """The first file of a directory that is missing or not as `write_directory` left it; None where there is none.

    Args:
        names: the files to look at; by itself all that its manifest.json has. Where it has no manifest, as of versions
            before there were manifests, they only need to be there, and a warning says so once.
    """
    path = directory / MANIFEST
    if not path.is_file():
        _warn_unchecked(directory)
    try:
        manifest = read_json(path) if path.is_file() else dict.fromkeys(names)
    except ValueError:
        return MANIFEST
    for name in names or manifest:
        file, wanted = directory / name, manifest.get(name)
        if not file.is_file():
            return name
        if wanted and wanted != {"bytes": file.stat().st_size, "crc32": _crc32(file)}:
            return name
    return None


def check_whole(path: Path) -> None:
    """Raise InputError where a file of a checkpoint is not as it was written."""
    if damaged(path.parent, [path.name]):
        raise InputError(
            f"a checkpoint must be as it was written, but {path} is damaged; remove {path.parent}, and use the others"
        )


@cache
def _warn_unchecked(directory: Path) -> None:
    logger.warning("%s has no %s, so its files cannot be checked and are taken as they are", directory, MANIFEST)


def _crc32(path: Path) -> str:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return f"{crc:08x}"


def numbered(directory: Path) -> list[Path]:
    """The directories in it whose names are numbers of eight digits or more, such as 00000400, in their order."""
    found = (path for path in directory.glob("[0-9]*") if re.fullmatch("[0-9]{8,}", path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name))


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer by name; what is shared stands once, under its first name."""
    first = {id(tensor): name for name, tensor in reversed(module.state_dict(keep_vars=True).items())}
    return {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if first[id(tensor)] == name}


def save_weights(path: Path, module: nn.Module) -> None:
    """Write `weights_of` a module as safetensors."""
    save_tensors(path, weights_of(module))


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors by name as safetensors.

    Raises:
        OSError: they cannot be written.
    """
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # it hides the number of the error, such as a full disk's, in its text
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise OSError(f"{path} cannot be written: {error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name.

    Raises:
        InputError: the file is damaged.
        FileNotFoundError: there is none.
    """
    if not path.exists():  # safetensors' own error does not name it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        return load_file(regular(path))  # it compares the sizes that the file declares with the file's own
    except (SafetensorError, TypeError, KeyError) as error:  # the last two: numbers of a kind that torch lacks
        raise InputError(f"{path} is not a whole safetensors file: {error}") from error


def set_weights(module: nn.Module, weights: dict[str, Tensor], name: str) -> None:
    """Copy weights into a module; `name` says in errors where they come from.

    Raises:
        InputError: a name is missing or unknown, or a shape differs.
    """
    copy_weights(weights_of(module), weights, name)


def copy_weights(own: dict[str, Tensor], weights: dict[str, Tensor], name: str) -> None:
    """Copy `weights` into the tensors `own` of the same names; `name` says in errors where they come from.

    Raises:
        InputError: a name is missing or unknown, a shape differs, or the numbers are none that weights have.
    """
    check_weights(own, weights, name)
    with torch.no_grad():
        for n, tensor in own.items():
            tensor.copy_(weights[n])


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], name: str) -> None:
    """Check that `weights` can be copied into the tensors `own`; the arguments and errors are those of `copy_weights`."""
    wrong = [f"{n} is missing" for n in own if n not in weights]
    wrong += [f"{n} is unknown" for n in weights if n not in own]
    wrong += [
        f"{n} is {tuple(weights[n].shape)} instead of {tuple(own[n].shape)}"
        for n in own
        if n in weights and weights[n].shape != own[n].shape
    ]
    wrong += [
        f"{n} is of {w.dtype}" for n, w in weights.items() if n in own and w.dtype not in (*WEIGHT_TYPES, own[n].dtype)
    ]
    if wrong:
        raise InputError(f"weights must fit the configuration, but in {name} {'; '.join(wrong[:5])}")


def regular(path: Path) -> Path:
    """The path itself, which is a file, a directory or nothing.

    Raises:
        InputError: it is a FIFO, a socket or a device, where reading may wait forever.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} must be a file, but it is a FIFO, a socket or a device; put a file in its place")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds, whoever wrote it.

    Raises:
        InputError: it is something else than one object, nested deeper than DEEPEST, or has a number that is not finite.
    """
    way_out = f"take {path.name} from a whole run directory"
    content = regular(path).read_bytes()
    try:
        plain = json.loads(content.decode(), parse_constant=_finite, parse_float=_finite)
        _check_depth(plain)
    except RecursionError as error:
        raise InputError(f"{path} must be nested at most {DEEPEST} deep, but it is deeper; {way_out}") from error
    except ValueError as error:  # of decoding and of JSON, too
        raise InputError(f"{path} must be JSON without NaN and Infinity, but: {error}; {way_out}") from error
    if not isinstance(plain, dict):
        raise InputError(f"{path} must hold a JSON object, but it holds a {type(plain).__name__}; {way_out}")
    return plain


def _finite(number: str) -> float:
    if not math.isfinite(found := float(number)):
        raise InputError(f"it has {number}")
    return found


def _check_depth(plain: object) -> None:
    """Raise RecursionError where objects and lists lie deeper in each other than DEEPEST."""
    level = [plain]
    for _ in range(DEEPEST):
        level = [x for each in level if isinstance(each, dict | list) for x in _inside(each)]
    if any(isinstance(each, dict | list) for each in level):
        raise RecursionError


def _inside(plain: dict[str, object] | list[object]) -> Iterable[object]:
    return plain.values() if isinstance(plain, dict) else plain


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that are JSON objects; one that a crash has torn is left out."""
    lines = []
    for line in regular(path).read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            plain = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(plain, dict):
            lines.append(plain)
    return lines


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
