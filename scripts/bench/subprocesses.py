"""Commands that benchmarks run in processes of their own."""

import subprocess
import sys


def this_benchmark(*arguments: object) -> str:
    """What this benchmark prints when it runs again with further arguments."""
    return _output([sys.executable, *sys.argv, *arguments])


def transduce(*arguments: object) -> str:
    """What a command of transduce prints."""
    return _output([sys.executable, "-m", "transduce.cli.main", *arguments])


def _output(command: list[object]) -> str:
    words = list(map(str, command))
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
