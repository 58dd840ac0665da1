"""How a program ends, with outputs that fail in their own way."""

import errno
import io
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from tests.train import toy
from transduce.exit import exit_code


class Broken(io.TextIOWrapper):
    """Standard output of a file descriptor, whose flush fails once with this error."""

    def __init__(self, descriptor: int, number: int) -> None:
        super().__init__(io.FileIO(descriptor, "w", closefd=False))
        self.number: int | None = number

    def flush(self) -> None:
        if self.number is not None:
            raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ENOSPC, 2, "x: no space is left on the disk; make room, and run it again\n"),
        (errno.EPIPE, 0, ""),
        (errno.EIO, 2, "x: [Errno 5] Input/output error\n"),
    ],
)
def test_output_that_fails_at_the_end_is_told_in_one_line(tmp_path, monkeypatch, capsys, number, code, said):
    with (tmp_path / "out").open("wb") as file:
        broken = Broken(os.dup(file.fileno()), number)
        monkeypatch.setattr(sys, "stdout", broken)
        assert exit_code(lambda: print("text"), prefix="x", interrupted="") == code
        broken.number = None
    assert capsys.readouterr().err == said


def test_a_full_disk_while_a_checkpoint_is_written_keeps_the_one_before(tmp_path, monkeypatch, capsys):
    toy.trainer(tmp_path, config=toy.config(max_updates=5, validate_every=5)).run()
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    monkeypatch.setattr("transduce.files.os.fsync", full)
    training = toy.trainer(tmp_path, config=toy.config(max_updates=10, validate_every=5))
    capsys.readouterr()
    assert exit_code(training.run, prefix="error", interrupted="") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"error: no space is left on the disk, {tmp_path}; make room, and run it again"
    kept = {path: path.read_bytes() for path in before}
    assert kept == before
    monkeypatch.undo()
    assert toy.trainer(tmp_path, config=toy.config(max_updates=10, validate_every=5)).run().update == 10


def test_weights_that_cannot_be_written_are_told_in_one_line(tmp_path, monkeypatch, capsys):
    """safetensors has an error of its own, here of a folder that is not there."""
    monkeypatch.setattr("transduce.train.state.save_file", lambda tensors, path: save_nowhere(tmp_path))
    with pytest.raises(SafetensorError) as caught:
        save_nowhere(tmp_path)
    training = toy.trainer(tmp_path, config=toy.config(max_updates=5, validate_every=5))
    assert exit_code(training.run, prefix="error", interrupted="") == 2
    path = tmp_path / "checkpoints" / "00000005"
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {path} cannot be written: ") and str(caught.value).split(":")[0] in last
    assert not path.exists()


def save_nowhere(folder: Path) -> None:
    save_file({"a": torch.zeros(3)}, folder / "nowhere" / "model.safetensors")
