"""Every recipe under torchrun, from its start to its report, and how it ends where it cannot start."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.recipes.several import RECIPES

pytestmark = [pytest.mark.process, pytest.mark.train, pytest.mark.long]

ROOT = Path(__file__).parents[2]
DATA = {"translation": "parallel_text", "speech": "recordings", "language": "running_text", "masked": "running_text"}
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in (".", "scripts/corpora", "recipes")),
}


def command(name: str, run: Path, data: Path, *flags: str) -> list[str]:
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "0",
    ]
    return [*launcher, "-m", "tests.recipes.several", name, str(run), str(data), *flags]


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_train_and_the_first_one_reports(name, tmp_path, request):
    """Again, too, when all is done: then it only scores."""
    data = request.getfixturevalue(DATA[name])
    for first in (True, False):
        done = subprocess.run(
            command(name, tmp_path / "run", data, "--training.accumulate", "2"),
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout.count("finished model: ") == first
    scores = {"language": "validation.json", "masked": "validation.json"}.get(name, "test.json")
    assert json.loads((tmp_path / "run" / scores).read_text())
    assert (tmp_path / "run" / "report.html").is_file()


def test_an_error_of_process_0_is_reported_once(tmp_path, running_text):
    done = subprocess.run(
        command("language", tmp_path / "run", tmp_path / "none", "--training.accumulate", "2"),
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("transduce: ") == 1 and "none" in done.stderr
    own = done.stderr.split("torch/distributed/")[0]  # what the launcher itself says comes behind
    assert "Traceback" not in own


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_when_torchrun_is_killed(tmp_path, running_text):
    words = command(
        "language", tmp_path / "run", running_text, "--training.accumulate", "2", "--training.max-updates", "100000"
    )
    with subprocess.Popen(
        words, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as launcher:
        until = time.monotonic() + 120
        while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < until:
            time.sleep(0.2)
        children = _children(launcher.pid)
        assert len(children) == 2
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    until = time.monotonic() + 60
    while any(map(_is_there, children)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not any(map(_is_there, children))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
