"""A progress bar is one on a terminal, and does not fill a log file."""

import io
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tqdm import tqdm

from transduce import process
from transduce.train.log import Log, ProgressBar, RunFiles, TensorBoard
from transduce.train.state import Progress, Validation


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test passes."""
    now = [1000.0]
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_progress_in_a_log_file_is_one_line_in_30_seconds(tmp_path, monkeypatch, clock):
    """At most: one in 30 seconds, and one at the end; lines of the training stand alone, and none is overwritten."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    log = Log([ProgressBar(600), RunFiles(tmp_path), TensorBoard(tmp_path)])
    monkeypatch.setattr("transduce.train.log.learning_curve", lambda *_: None)
    log.open(Progress())
    for update in range(1, 601):
        clock[0] += 0.2
        log.update(Progress(update=update), {"loss": 2.0}, norm=1.0, rate=0.1, n_tokens=7, at=clock[0])
        if update % 100 == 0:
            log.validation(Progress(update=update), Validation({"loss": 2.5}, samples=[("a", "b", "c")] * 3))
    log.close()
    said = sys.stderr.getvalue()
    lines = said.splitlines()
    bars = [line for line in lines if "update/s" in line]
    assert "\r" not in said and said.endswith("\n") and "" not in lines
    *shown, last = [int(line.split("%|")[0]) for line in bars]
    assert shown and last == 100 and all(b - a >= 25 for a, b in pairwise([0, *shown]))  # 25 % take 30 seconds
    others = [line for line in lines if line not in bars]
    assert " s an update: about " in others.pop(0)
    assert len(others) == 6 * (1 + 3 * 3) and all(line.startswith(("update ", "  ")) for line in others)


@pytest.mark.parametrize(
    ("max_minutes", "ends", "eta"),
    [
        (None, "about 2.7 min for the remaining 80", "03:08"),
        (1.0, "about 6 of the remaining 80 in max_minutes", "00:13"),
    ],
)
def test_progress_shows_remaining_time_and_memory(max_minutes, ends, eta, monkeypatch, capsys):
    """A first update of 9 s and 19 of 2 s: 47 s, or 2.35 s an update in the mean, and 80 to come."""
    now = [0.0]
    monkeypatch.setattr("transduce.train.log.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    bar = ProgressBar(103, max_minutes=max_minutes and max_minutes + 0.5)
    bar.open(Progress(update=3, seconds=30.0))
    for seconds in (9.0, *[2.0] * 19):
        now[0] += seconds
        bar.update({"loss": 2.0}, 7.0)
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    (line,) = (line for line in lines if " s an update: " in line)
    assert line.startswith(f"2 s an update: {ends}, without validations; host memory so far: ")
    assert f", ETA={eta}, loss=2.000" in lines[-1]
    gib = float(line.split()[-2])
    status = dict(row.split(":\t", 1) for row in Path("/proc/self/status").read_text().splitlines())
    assert gib == pytest.approx(int(status["VmHWM"].split()[0]) / 2**20, abs=0.06)


def test_progress_on_a_terminal_equals_tqdm(monkeypatch):
    got = []
    for kind in (process.Bar, tqdm):
        monkeypatch.setattr(sys, "stderr", Terminal())
        with kind(total=3, dynamic_ncols=True, bar_format="{n_fmt} of {total_fmt}", mininterval=0) as bar:
            for _ in range(3):
                bar.update()
                kind.write("a line", file=sys.stderr)
        got.append(sys.stderr.getvalue())
    assert got[0] == got[1] and got[0].count("\r") > 6
