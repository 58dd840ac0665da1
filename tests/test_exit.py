"""How a program ends, with outputs that fail in their own way."""

import errno
import io
import os
import sys

import numpy as np
import pytest
from safetensors import SafetensorError

from tests.limits import without_files
from tests.train import toy
from transduce.errors import InputError, exit_code
from transduce.files import read_weights, save_tensors


class Broken(io.TextIOWrapper):
    """Standard output of a file descriptor, whose flush fails once with this error."""

    def __init__(self, descriptor: int, number: int) -> None:
        super().__init__(io.FileIO(descriptor, "w", closefd=False))
        self.number: int | None = number

    def flush(self) -> None:
        if self.number is not None:
            raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "code", "stderr"),
    [
        (errno.ENOSPC, 2, "transduce: no space is left on the disk; make room, and run it again\n"),
        (errno.EPIPE, 0, ""),
        (errno.EIO, 2, "transduce: [Errno 5] Input/output error\n"),
    ],
)
def test_output_errors_at_exit_are_one_line(tmp_path, monkeypatch, capsys, number, code, stderr):
    with (tmp_path / "out").open("wb") as file:
        broken = Broken(os.dup(file.fileno()), number)
        monkeypatch.setattr(sys, "stdout", broken)
        assert exit_code(lambda: print("text"), interrupted="") == code
        broken.number = None
    assert capsys.readouterr().err == stderr


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path, monkeypatch, capsys):
    toy.trainer(tmp_path, config=toy.config(max_updates=2, validate_every=2)).run()
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    monkeypatch.setattr("transduce.files.os.fsync", full)
    training = toy.trainer(tmp_path, config=toy.config(max_updates=4, validate_every=2))
    capsys.readouterr()
    assert exit_code(training.run, interrupted="") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"transduce: no space is left on the disk, {tmp_path}; make room, and run it again"
    kept = {path: path.read_bytes() for path in before}
    assert kept == before
    monkeypatch.undo()
    assert toy.trainer(tmp_path, config=toy.config(max_updates=4, validate_every=2)).run().update == 4


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space is left on the disk, {path}; make room, and run it again"),
        (errno.EROFS, "{path} may not be read or written (Read-only file system); change its permissions, or name another place"),
        (None, "{path} cannot be written: InvalidHeader"),
    ],
)  # fmt: skip
def test_errors_writing_weights_are_one_line(tmp_path, monkeypatch, capsys, number, message):
    """safetensors has an error of its own, whose text alone has the number."""
    path = tmp_path / "a.safetensors"
    text = f"I/O error: {os.strerror(number)} (os error {number})" if number else "InvalidHeader"
    monkeypatch.setattr("transduce.files.save_file", failing(SafetensorError(text)))
    assert exit_code(lambda: save_tensors(path, {}), interrupted="") == 2
    assert capsys.readouterr().err == f"transduce: {message.format(path=path)}\n"


def test_missing_files_and_folders_without_permission_are_named(tmp_path, capsys):
    path = tmp_path / "a.safetensors"
    for action, message in (
        (lambda: read_weights(path), f"{path} does not exist"),
        (failing(FileNotFoundError("there is no such voice")), "there is no such voice"),
        (
            failing(PermissionError(errno.EACCES, "Permission denied", str(path.with_name(".a.0.tmp")))),
            f"{tmp_path} may not be read or written (Permission denied); change its permissions, or name another place",
        ),
    ):
        assert exit_code(action, interrupted="") == 2
        assert capsys.readouterr().err == f"transduce: {message}\n"


def test_too_many_open_files_is_not_reported_as_missing_weights(tmp_path, capsys):
    """safetensors calls them so, whatever the reason."""
    path = tmp_path / "a.safetensors"
    save_tensors(path, {})
    with without_files():
        assert exit_code(lambda: read_weights(path), interrupted="") == 2
    assert capsys.readouterr().err == f"transduce: [Errno 24] Too many open files: '{path}'\n"


@pytest.mark.parametrize("inside", ["", "a", "a/b"])
def test_a_file_in_place_of_a_folder_is_named(tmp_path, capsys, inside):
    file = tmp_path / "file"
    file.touch()
    assert exit_code(lambda: (file / inside).mkdir(parents=True, exist_ok=True), interrupted="") == 2
    message = f"transduce: {file} is a file, where a folder must be; name another place\n"
    assert capsys.readouterr().err == message


def failing(error: Exception):
    """What raises it, however it is called."""

    def action(*_):
        raise error

    return action


def raises(error: Exception) -> None:
    raise error


def test_input_errors_are_one_line_and_other_errors_propagate(capsys):
    """An InputError is a ValueError for who catches that, but a ValueError of NumPy's is no answer to a user."""
    assert exit_code(lambda: raises(InputError("beam_size must be at least 1")), interrupted="") == 2
    assert capsys.readouterr().err == "transduce: beam_size must be at least 1\n"
    assert issubclass(InputError, ValueError)
    with pytest.raises(ValueError, match="broadcast"):
        exit_code(lambda: np.zeros(2) + np.zeros(3), interrupted="")
