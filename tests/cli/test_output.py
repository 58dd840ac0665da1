"""Where output ends: a full disk and a closed pipe give one line at most, the right exit code and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.language_runs import language_run
from tests.runs import LITTLE, random_run, random_speech_run, record
from transduce.cli.main import main

FULL = Path("/dev/full")
MESSAGE = "transduce: no space is left on the disk; make room, and run it again\n"
pytestmark = pytest.mark.skipif(not FULL.is_char_device(), reason="needs /dev/full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("output")
    random_run(folder / "text", model=LITTLE)
    random_speech_run(folder / "speech")
    language_run(folder / "letters")
    record(folder, ["red blue"])
    for name in ("hyp", "ref"):
        (folder / name).write_text("Print it.\n" * 3)
    return folder


COMMANDS = {
    "translate": "translate text hyp --greedy --device cpu",
    "transcribe": "transcribe speech a00.wav --device cpu",
    "generate": "generate letters --prompt A --max-length 5 --device cpu",
    "describe": "describe text",
    "bleu": "score bleu hyp ref --resamples 0",
    "wer": "score wer hyp ref",
    "help": "--help",
}


def run(command: str, folder: Path, **how) -> subprocess.CompletedProcess:
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-m", "transduce.cli.main", *command.split()]
    return subprocess.run(arguments, cwd=folder, env=own, stderr=subprocess.PIPE, text=True, check=False, **how)


@pytest.fixture
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("command", [c for name, c in COMMANDS.items() if name != "help"])
def test_a_full_disk_is_reported_once(in_folder, monkeypatch, capsys, command):
    with open(FULL, "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert main(command.split()) == 2
    assert capsys.readouterr().err.endswith(MESSAGE)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_closed_pipe_is_no_error(in_folder, monkeypatch, capsys, command):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        assert main(command.split()) == 0
    assert not any(word in capsys.readouterr().err for word in ("Traceback", "Exception", "Error", "pipe"))


@pytest.mark.process
@pytest.mark.parametrize("command", [COMMANDS["translate"], COMMANDS["bleu"]], ids=["translate", "bleu"])
def test_no_traceback_at_exit_on_full_disks_and_closed_pipes(folder, command):
    """It flushes standard output once more."""
    with FULL.open("w") as full:
        done = run(command, folder, stdout=full)
    assert (done.returncode, done.stderr.splitlines(keepends=True)[-1:]) == (2, [MESSAGE])
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(command, folder, stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert not any(word in done.stderr for word in ("Traceback", "Exception", "Error", "pipe"))
