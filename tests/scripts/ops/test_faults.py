"""scripts/ops/faults.py: its comparison finds what differs; and a few faults leave no trace."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from scripts.ops import faults


def test_run_comparison_ignores_only_times(tmp_path):
    """Otherwise the table would say nothing."""
    runs = [tmp_path / "a", tmp_path / "b"]
    for i, run in enumerate(runs):
        (run / "checkpoints" / "00000003").mkdir(parents=True)
        (run / "checkpoints" / "00000003" / "state.json").write_text(json.dumps({"update": 3, "seconds": 1.5 + i}))
        (run / "model.safetensors").write_bytes(b"weights")
        (run / "config.json").write_text(json.dumps({"experiment": {"run": str(run), "seed": 1}}))
        (run / "metrics.jsonl").write_text(json.dumps({"update": 3, "loss": 2.0, "seconds": 1.5 + i}) + "\n")
    assert faults.differences(*runs) == []
    (runs[0] / "checkpoints" / ".00000006.tmp").mkdir()
    (runs[0] / "model.safetensors").write_bytes(b"weighty")
    (runs[1] / "config.json").write_text(json.dumps({"experiment": {"run": "a", "seed": 2}}))
    (runs[1] / "metrics.jsonl").write_text(json.dumps({"update": 3, "loss": 2.5, "seconds": 1.5}) + "\n")
    assert faults.differences(*runs) == [
        "checkpoints/.00000006.tmp", "config.json", "metrics.jsonl", "model.safetensors",
    ]  # fmt: skip


def interruptible() -> None:
    """Called in the child: whoever runs the tests may ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


FEW = """
import random, sys
from pathlib import Path
import torch
from scripts.ops import faults

torch.set_num_threads(1)
every = faults.trainings
faults.trainings = lambda folder: {"translation": every(folder)["translation"]}
farm = faults.Farm(Path(sys.argv[1]), random.Random(1))
farm.kill(2)
for make in (farm.interrupt, farm.damage):
    farm.made[make()] += 1
print(sum(farm.made.values()), sum(farm.failures.values()))
"""


@pytest.mark.process
@pytest.mark.long
def test_runs_recover_bitwise_from_kills_ctrl_c_and_damage(tmp_path):
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", FEW, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, env=path, preexec_fn=interruptible)
    assert done.stdout == "4 0\n", done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.nightly
def test_runs_recover_bitwise_from_every_kind_of_fault():
    words = [sys.executable, faults.__file__, "--kills", "8", "--others", "1"]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=interruptible)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(re.findall(r"(?m)^(.+?) +(\d+)  the same bytes$", done.stdout))
    assert sum(int(number) for fault, number in rows.items() if fault.startswith("SIGKILL in ")) == 8
    assert len(rows) > 8
