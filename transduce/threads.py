"""How the threads of a computation wait for one another."""

import os
import sys

SPINS = "1000"
"""Turns that a thread waits awake before it sleeps. GNU's OpenMP has 300,000 of its own accord, milliseconds."""

OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""With one of these variables the user has decided."""


def wait_politely() -> str:
    """Let OpenMP's threads sleep soon while they wait; to be called before torch is loaded.

    A thread that spins keeps its core while the one that it waits for does not get any: with two threads on two cores
    and two busy processes beside them, a training fell to a quarter of its speed, and to a half where they sleep soon.
    On a quiet machine that costs nothing (recipes/README.md, "Beside other work"), and whether work begins later nobody
    knows.

    Returns:
        A line that says so; empty where nothing was changed.
    """
    if "torch" in sys.modules or any(name in os.environ for name in OWN):
        return ""
    os.environ["GOMP_SPINCOUNT"] = SPINS
    return f"threads that wait sleep soon, for the sake of other work: GOMP_SPINCOUNT={SPINS}"
