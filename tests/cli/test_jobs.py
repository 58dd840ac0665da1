"""Chunks go to processes and come back as rows, and no process outlives what began it."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from transduce.cli.common import Machine
from transduce.cli.jobs import Job, Rows, by_workers
from transduce.errors import InputError

logger = logging.getLogger("transduce")


@dataclass(frozen=True, kw_only=True)
class Sums(Job):
    """A job that does not need torch, and so begins quickly."""

    UNIT = "number"
    CHUNK = 2

    what: str = ""

    def load(self) -> None:
        if self.what == "no run":
            raise InputError("there is no such run")

    def rows(self, task: None, start: int, items: list[int], progress) -> Rows:
        if self.what == "killed" and start == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "bad input" and start == 2:
            raise InputError("input 2 is bad")
        if self.what == "slow":
            os.write(1, f"{os.getpid()}\n".encode())  # at once, so that two cannot mix
            time.sleep(100)
        if start == 4:
            logger.warning("a warning of %d", start)
        process = f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS')}"
        return Rows(f"{start} {sum(items)}\n", (process,))


CHUNKS = [(0, [1, 1]), (2, [2, 2]), (4, [3, 3]), (6, [4])]


@pytest.mark.process
def test_every_chunk_is_returned_once_by_two_processes(caplog, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    steps = []
    got = list(by_workers(Sums(run=Path(), machine=Machine()), iter(CHUNKS), lambda *step: steps.append(step), 2, 3))
    assert [rows.text for _, rows in got] == ["0 2\n", "2 4\n", "4 6\n", "6 4\n"]
    assert [n for n, _ in got] == [2, 2, 2, 1] and steps == [(2, 0), (2, 0), (2, 0), (1, 0)]
    assert [record.getMessage() for record in caplog.records] == ["a warning of 4"]
    processes = {tuple(rows.errors[0].split()) for _, rows in got}
    assert str(os.getpid()) not in {pid for pid, _ in processes} and {threads for _, threads in processes} == {"3"}
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.process
@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("no run", InputError, "there is no such run"),
        ("bad input", InputError, "input 2 is bad"),
        (
            "killed",
            ChildProcessError,
            "workers must run until all is done, but one was killed, probably for lack of memory; use fewer --workers or "
            "--processes, and run the command again",
        ),
    ],
)
def test_an_error_of_a_worker_is_raised_and_stops_the_others(what, kind, message):
    with pytest.raises(kind) as caught:
        list(by_workers(Sums(run=Path(), machine=Machine(), what=what), CHUNKS, lambda *_: None, 2, 1))
    assert str(caught.value) == message


SLOW = """
import signal
from pathlib import Path
from tests.cli.test_jobs import CHUNKS, Sums
from transduce.cli.common import Machine
from transduce.cli.jobs import by_workers

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore Ctrl-C
    list(by_workers(Sums(run=Path(), machine=Machine(), what="slow"), CHUNKS, lambda *_: None, 2, 1))
"""


def process_exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_workers_end_with_their_parent_and_print_no_traceback(tmp_path, how):
    """As a terminal does it: the whole group gets the signal of Ctrl-C."""
    (tmp_path / "slow.py").write_text(SLOW)
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, tmp_path / "slow.py"], env=path, text=True, start_new_session=True, **pipes
    ) as p:
        pids = [int(p.stdout.readline()) for _ in range(2)]
        assert all(map(process_exists, pids))
        os.killpg(p.pid, how) if how == signal.SIGINT else p.kill()
        said = p.stderr.read()  # until nobody can write to it any more
        assert said.count("Traceback") == (1 if how == signal.SIGINT else 0)  # its own
    assert not any(map(process_exists, pids))
