"""Files that several write at once, and what a failure leaves behind."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transduce.files import write_file


def test_two_writers_with_one_process_id_do_not_meet(tmp_path, monkeypatch):
    """Two containers that share a disk may well have the same process id."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    path = tmp_path / "a.txt"

    def write(letter: str) -> None:
        for _ in range(300):
            write_file(path, 50 * letter, durable=False)
            assert path.read_text() in (50 * "a", 50 * "b")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write, "ab")) == [None, None]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fault", [OSError("disk full"), KeyboardInterrupt()])
def test_what_is_not_finished_leaves_nothing_beside(tmp_path, monkeypatch, fault):
    def fail(self: Path, target: Path) -> None:
        raise fault

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(type(fault)):
        write_file(tmp_path / "a.txt", "new", durable=False)
    assert list(tmp_path.iterdir()) == []
