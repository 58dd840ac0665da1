"""OpenMP's own word on how its threads wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import os
os.getloadavg = lambda: ({load}, 0.0, 0.0)
from transduce.threads import wait_politely
print(wait_politely())
import torch
print(wait_politely())
"""


@pytest.mark.parametrize(
    ("load", "own", "policy"),
    [
        (1.3, {}, "PASSIVE"),
        (0.4, {}, None),
        (1.3, {"OMP_WAIT_POLICY": "active"}, "ACTIVE"),
        (1.3, {"GOMP_SPINCOUNT": "7"}, None),
        (1.3, {"OMP_NUM_THREADS": "1"}, None),
    ],
)
def test_threads_wait_as_the_machine_and_the_user_want_it(load, own, policy):
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    asked = {"OMP_DISPLAY_ENV": "true", "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run(
        [sys.executable, "-c", BEGIN.format(load=load)],
        env=theirs | asked | own,
        capture_output=True,
        text=True,
        check=True,
    )
    first, again = found.stdout.split("\n")[:2]
    assert again == ""
    if policy == "PASSIVE":
        assert first == (
            "the machine has other work (load 1.3), so threads wait without spinning: OMP_WAIT_POLICY=passive"
        )
    else:
        assert first == ""
    if "OMP_WAIT_POLICY" in found.stderr and policy:  # GNU's OpenMP prints it; others may not
        assert f"OMP_WAIT_POLICY = '{policy}'" in found.stderr
