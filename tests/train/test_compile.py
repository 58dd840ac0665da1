"""torch.compile changes the speed of a training, not what is learned, and compiles once and not for every batch."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory) -> dict[str, list[float]]:
    """Of each: how far the compiled one ends from the plain one; how far that one went; graphs; different batches."""
    command = [sys.executable, "-m", "tests.train.compiled", str(tmp_path_factory.mktemp("runs"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line]
    return {name: [float(number) for number in numbers] for name, *numbers in lines}


@pytest.mark.parametrize("training", ["language", "translation", "speech", "layers"])
def test_compiled_the_weights_end_where_they_do_without(trainings, training):
    apart, went, *_ = trainings[training]
    assert went > 1e-3  # with no gradient none would move
    assert apart < 1e-9


@pytest.mark.parametrize(("training", "at_most"), [("language", 1), ("translation", 4), ("speech", 8), ("layers", 4)])
def test_graphs_are_few_whatever_the_shapes(trainings, training, at_most):
    """Those before, between and after the losses that stay outside, some of them twice; no more for more shapes.
    By layers, one for each kind of layer with padding and one without, and none for every layer."""
    _, _, n_graphs, n_batches = trainings[training]
    assert n_graphs <= at_most and (training == "language" or n_batches > at_most)
