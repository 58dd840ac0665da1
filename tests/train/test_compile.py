"""torch.compile changes the speed of a training, not what is learned."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def differences(tmp_path_factory) -> dict[str, tuple[float, float]]:
    """Of every training: how far the compiled one ends from the plain one, and how far that one went."""
    command = [sys.executable, "-m", "tests.train.compiled", str(tmp_path_factory.mktemp("runs"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line]
    return {name: (float(apart), float(went)) for name, apart, went in lines}


@pytest.mark.parametrize("training", ["language", "speech"])
def test_compiled_the_weights_end_where_they_do_without(differences, training):
    apart, went = differences[training]
    assert went > 1e-3  # with no gradient none would move
    assert apart < 1e-9
