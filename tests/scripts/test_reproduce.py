"""scripts/reproduce.sh lists the figures of the register, and refuses what is none."""

import subprocess
from pathlib import Path

import pytest

from scripts.ops.results import read_register

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]


def reproduce(*words: str) -> subprocess.CompletedProcess[str]:
    """The script's answer."""
    return subprocess.run(["bash", "scripts/reproduce.sh", *words], cwd=ROOT, capture_output=True, text=True)


def test_every_figure_is_listed_with_its_command():
    lines = reproduce().stdout.splitlines()
    assert len(lines) == len(read_register()) + 1
    for figure, line in zip(read_register(), lines[1:], strict=True):
        assert line.split()[:2] == [figure.name, figure.value]
        assert line.endswith(f"  {figure.command}")


def test_unknown_figure_is_refused():
    done = reproduce("commandz")
    assert done.returncode == 2 and "'commandz'" in done.stderr
