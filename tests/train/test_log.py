"""What a training loads in order to draw and log, and nothing else does."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


SLOW = {"matplotlib", "tensorboard", "torch._dynamo"}


@pytest.mark.parametrize("program", ["transduce.cli.main", "transduce.experiment"])
def test_nothing_is_loaded_for_help_that_only_a_training_needs(program):
    """Neither by the command line nor by a recipe before its first update."""
    words = f"import sys, transduce, {program}; print(sorted(set(sys.modules) & {SLOW}))"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
