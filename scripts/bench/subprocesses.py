"""Commands that benchmarks run in separate processes."""

import subprocess
import sys


def this_benchmark(*arguments: object) -> str:
    """Run this benchmark again with further arguments, and return its output."""
    return _output([sys.executable, *sys.argv, *arguments])


def transduce(*arguments: object) -> str:
    """Run a transduce command, and return its output."""
    return _output([sys.executable, "-m", "transduce.cli.main", *arguments])


def _output(command: list[object]) -> str:
    words = list(map(str, command))
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
