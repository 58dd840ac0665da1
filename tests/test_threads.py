"""OpenMP's own word on how its threads wait."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
from transduce.threads import wait_politely
print(wait_politely())
import torch
print(wait_politely())
"""


@pytest.mark.parametrize(
    ("own", "spins"),
    [
        ({}, "1000"),
        ({"OMP_NUM_THREADS": "1"}, "1000"),
        ({"OMP_WAIT_POLICY": "active"}, None),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
    ],
)
def test_threads_sleep_soon_unless_the_user_decides(own, spins):
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    asked = {"OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run(
        [sys.executable, "-c", BEGIN], env=theirs | asked | own, capture_output=True, text=True, check=True
    )
    first, again = found.stdout.split("\n")[:2]
    assert again == ""
    said = "threads that wait sleep soon, for the sake of other work: GOMP_SPINCOUNT=1000"
    assert first == (said if spins == "1000" else "")
    if "GOMP_SPINCOUNT" in found.stderr and spins:  # GNU's OpenMP prints it; others may not
        assert f"GOMP_SPINCOUNT = '{spins}'" in found.stderr


FAULTS = """
import resource, sys
import torch
from transduce.threads import keep_memory
torch.set_num_threads(1)
kept = keep_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(12 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(kept, faults())
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="needs GNU's malloc")
@pytest.mark.parametrize(("own", "kept"), [({}, True), ({"MALLOC_ARENA_MAX": "2"}, False)])
def test_freed_memory_stays_unless_the_user_decides(own, kept):
    """The pages of 48 MB, over and over: without it, the system gives each of them anew."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    path = {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", FAULTS], env=theirs | path | own, capture_output=True, text=True, check=True
    )
    said, faults = found.stdout.split()
    assert said == str(kept)
    assert int(faults) < 1000 if kept else int(faults) > 400
