"""What a training loads in order to draw and log, and nothing else does."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_command_loads_what_only_a_training_draws_and_logs_with():
    """Neither the package, nor the command line, nor a recipe before its first update."""
    program = (
        "import sys, transduce, transduce.cli.main, transduce.experiment.run, transduce.experiment.validation\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'matplotlib', 'tensorboard'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
