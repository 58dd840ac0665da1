"""A process that uses the package as a library stays as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import LITTLE, random_run

pytestmark = pytest.mark.process

HOST = """
import io, locale, logging, os, resource, signal, sys, warnings
import torch

def state():
    old = os.umask(0)
    os.umask(old)
    root = logging.getLogger()
    return {
        "streams": (sys.stdin, sys.stdout, sys.stderr, sys.stdout.encoding, sys.stdout.errors, sys.excepthook),
        "environment": dict(os.environ), "folder": os.getcwd(), "umask": old, "locale": locale.setlocale(locale.LC_ALL),
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "logging": (list(root.handlers), root.level, list(logging.getLogger("transduce").handlers)),
        "warnings": list(warnings.filters), "recursion": sys.getrecursionlimit(),
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed(),
                  torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()),
        "random": torch.get_rng_state().tolist(),
    }

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(12 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def check(what, before):
    changed = [name for name, now in state().items() if now != before[name]]
    assert not changed, f"{what} changes {changed}"

run, text, out = sys.argv[1:]
faults()
given_back, before = faults(), state()
import transduce as td
check("import", before)
translator = td.load(run)
check("load", before)
translator(["Open the old letter."], max_length=3)
assert faults() > given_back / 2, "freed memory is kept"
check("a call", before)
from transduce.cli.main import main
assert main(["translate", run, text, "--output", out, "--greedy"]) == 0
check("a command", before)
sys.stdout = None
assert main(["--version"]) == 2 and sys.stdout is None
"""


def test_a_host_process_keeps_its_streams_settings_and_memory(tmp_path):
    run = random_run(tmp_path / "run", model=LITTLE)
    (tmp_path / "in").write_text("Open the old letter.\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    env |= {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "latin-1:replace"}
    command = [sys.executable, "-c", HOST, str(run), str(tmp_path / "in"), str(tmp_path / "out")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_translation_works_without_torchaudio(tmp_path):
    """Where torchaudio does not fit torch, importing it is an OSError: translation goes on."""
    run = random_run(tmp_path / "run", model=LITTLE)
    code = (
        "import sys; sys.modules['torchaudio'] = None\n"
        "import transduce as td, transduce.experiment\n"
        "from transduce.cli.main import main\n"
        f"sys.exit(main(['translate', {str(run)!r}, '--greedy']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="Print it.\n", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stderr
