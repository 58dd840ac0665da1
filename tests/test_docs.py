"""The pages of docs/ do what they say: their code runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import transduce as td

ROOT = Path(__file__).parents[1]


@pytest.mark.process
@pytest.mark.train
def test_code_of_your_own_experiment_runs(tmp_path):
    page = (ROOT / "docs" / "your_own_experiment.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) <= 40
    (tmp_path / "read_aloud.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "read_aloud.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    scores = [float(score) for score in re.findall(r"^  BLEU (\S+) ", done.stdout, flags=re.MULTILINE)]
    assert len(scores) == 2 and min(scores) > 90  # greedy and beam
    assert td.load(tmp_path / "runs" / "numbers")(["4 0 7"]) == ["four zero seven"]
