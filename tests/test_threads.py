"""How threads wait and what malloc keeps: OpenMP's own word, and the pages that the system counts."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from transduce import process
from transduce.process import OPENMP_VARIABLES, allow_user_without_name, keep_memory, limit_omp_spin

DECIDED = [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}]


@pytest.fixture
def before_torch(monkeypatch):
    """As in a process that has not loaded torch, and whose user has decided nothing."""
    monkeypatch.delitem(sys.modules, "torch")
    for name in OPENMP_VARIABLES:
        monkeypatch.setenv(name, "")  # so that in the end it is as it was
        monkeypatch.delenv(name)


def test_limit_omp_spin_respects_the_user_and_loaded_torch(before_torch, monkeypatch):
    for own in DECIDED:
        with monkeypatch.context() as user:
            for name, value in own.items():
                user.setenv(name, value)
            there = dict(os.environ)
            assert not limit_omp_spin() and dict(os.environ) == there, own
    with monkeypatch.context() as late:
        late.setitem(sys.modules, "torch", process)
        assert not limit_omp_spin() and "GOMP_SPINCOUNT" not in os.environ
    assert limit_omp_spin() and os.environ["GOMP_SPINCOUNT"] == "1000"


def test_keep_memory_respects_malloc_settings_of_the_user(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert keep_memory() is False


def in_a_process(code: str, **own: str) -> subprocess.CompletedProcess[str]:
    """Run it where none of the variables of OpenMP and malloc are set but these."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MALLOC_"))}
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code], env=theirs | path | own, capture_output=True, text=True, check=True
    )


@pytest.mark.process
def test_openmp_reads_the_spin_count():
    code = "from transduce.process import limit_omp_spin; limit_omp_spin(); import torch"
    said = in_a_process(code, OMP_DISPLAY_ENV="verbose").stderr
    if "GOMP_SPINCOUNT" in said:  # GNU's OpenMP prints it; others may not
        assert "GOMP_SPINCOUNT = '1000'" in said


FAULTS = """
import resource
import torch
from transduce.process import keep_memory
torch.set_num_threads(1)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(12 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
assert keep_memory()
faults()
print(faults())
"""


@pytest.mark.process
@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="needs GNU's malloc")
def test_freed_memory_is_kept_for_reuse():
    """The pages of 48 MB, over and over: without it, the system gives each of them anew."""
    without, kept = map(int, in_a_process(FAULTS, OMP_NUM_THREADS="1").stdout.split())
    assert kept < 1000 and without > 400


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("No username set in the environment")])
def test_a_user_without_a_name_has_an_inductor_cache(error, monkeypatch):
    """The password database knows no such user (Python 3.13 makes that an OSError); the variable is PyTorch's own."""

    def unknown():
        raise error

    monkeypatch.setattr(process.getpass, "getuser", unknown)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    allow_user_without_name()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "mine"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    allow_user_without_name()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].endswith(f"torchinductor_{os.getuid()}")


NAMELESS = """
import os, pwd
def unknown(uid): raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "TORCHINDUCTOR_CACHE_DIR"): os.environ.pop(name, None)
import sys, tempfile
from pathlib import Path
from tests.train import toy
with tempfile.TemporaryDirectory() as folder:
    print(toy.trainer(Path(folder), config=toy.config(max_updates=1, validate_every=1)).run().update)
"""


@pytest.mark.process
def test_a_user_without_a_name_can_train():
    assert in_a_process(NAMELESS, OMP_NUM_THREADS="1").stdout.split()[-1] == "1"
