"""Files that several write at once, and what a failure leaves behind."""

import fcntl
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from transduce.files import damaged, read_weights, remove_leftovers, save_tensors, write_directory, write_file


def test_writers_with_equal_process_ids_do_not_collide(tmp_path, monkeypatch):
    """Two containers that share a disk may well have the same process id."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    path = tmp_path / "a.txt"

    def write(letter: str) -> None:
        for _ in range(100):
            write_file(path, 50 * letter, durable=False)
            assert path.read_text() in (50 * "a", 50 * "b")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write, "ab")) == [None, None]
    assert list(tmp_path.iterdir()) == [path]


def test_devices_and_fifos_are_not_replaced(tmp_path):
    """A root user's output named /dev/null would put a file there, for all programs of the machine."""
    os.mkfifo(fifo := tmp_path / "fifo")
    (device := tmp_path / "device").symlink_to("/dev/null")
    for path in (fifo, device):
        with pytest.raises(ValueError, match=rf"^{path} must be a file, but it is a FIFO, a socket or a device"):
            write_file(path, "new", durable=False)
    assert fifo.is_fifo() and device.is_symlink() and len([*tmp_path.iterdir()]) == 2


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path):
    """The transcript of a recording has its name, such as the title of a video in Japanese."""
    for name in ("a" * 255, "日" * 85, "\U00020000" * 63):
        write_file(tmp_path / name, "whole", durable=False)
        assert (tmp_path / name).read_text() == "whole"
    assert len([*tmp_path.iterdir()]) == 3


@pytest.mark.parametrize("fault", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_write_leaves_no_temporary_file(tmp_path, monkeypatch, fault):
    def fail(self: Path, target: Path) -> None:
        raise fault

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(type(fault)):
        write_file(tmp_path / "a.txt", "new", durable=False)
    assert list(tmp_path.iterdir()) == []


def test_only_temporary_files_of_dead_writers_are_removed(tmp_path, monkeypatch):
    names = [".a.txt.0123456789abcdef.tmp", ".a.txt.0123.tmp", "a.txt.0123456789abcdef.tmp", ".b.tmp"]
    for name in names:
        (tmp_path / name).write_text("half")
    replace, there = Path.replace, []

    def meanwhile(self: Path, target: Path) -> Path:
        remove_leftovers(tmp_path)
        there.extend(path.name for path in tmp_path.iterdir() if path.name != self.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", meanwhile)
    write_file(tmp_path / "c.txt", "whole")
    assert sorted(there) == sorted(names[1:])
    assert (tmp_path / "c.txt").read_text() == "whole"


def test_a_writer_retries_if_its_temporary_file_is_removed(tmp_path, monkeypatch):
    """Between its opening and its lock."""
    lock, calls = fcntl.flock, []

    def late(file, how: int) -> None:
        if not calls:
            calls.append(file.name)
            remove_leftovers(tmp_path)
        lock(file, how)

    monkeypatch.setattr("transduce.files.fcntl.flock", late)
    write_file(tmp_path / "a.txt", "whole")
    assert calls and [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_manifests_detect_damaged_files(tmp_path, caplog):
    path = tmp_path / "a"
    write_directory(path, lambda at: [(at / name).write_text(name * 9) for name in ("one", "two")] and None)
    want = {name: {"bytes": 27, "crc32": f"{zlib.crc32(9 * name.encode()):08x}"} for name in ("one", "two")}
    assert json.loads((path / "manifest.json").read_text()) == want
    assert damaged(path) is None
    (path / "two").write_text("twotwotwotwotwotwotwotwotwO")
    assert damaged(path) == "two" and damaged(path, ["one"]) is None and damaged(path, ["three"]) == "three"
    (path / "manifest.json").write_text("{")
    assert damaged(path) == "manifest.json"
    (path / "manifest.json").unlink()
    assert damaged(path, ["one", "two"]) is None and damaged(path, ["three"]) == "three"
    assert caplog.messages == [f"{path} has no manifest.json, so its files are used unchecked"]


def test_tensors_get_the_permissions_of_other_files(tmp_path):
    """The library's own, 0600, would shut out a server that runs as another user."""
    before = os.umask(0o027)
    try:
        save_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)})
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o640
    assert read_weights(tmp_path / "a.safetensors")["a"].tolist() == [0.0]
