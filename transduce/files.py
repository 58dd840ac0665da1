"""Writing that a crash cannot leave half done: first beside, then in place."""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_file(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file whole or not at all; `durable=False` does not wait for the disk (a power cut may still tear it)."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # two containers may share a process id
    try:
        with beside.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:  # Ctrl-C too: nobody would ever use that name again
        beside.unlink(missing_ok=True)
        raise
    if durable:
        _sync_directory(path.parent)


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a directory whole or not at all; `fill` writes its files. An existing one is replaced."""
    beside = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    fill(beside)
    for file in beside.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)  # two renames, so that only a crash right between them finds neither
    beside.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    _sync_directory(path.parent)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON objects; one that a crash has torn is left out."""
    lines = []
    for line in path.read_text().split("\n"):
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
