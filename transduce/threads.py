"""How the threads of a computation wait for one another, beside other work."""

import os
import sys

BUSY = 0.5
"""A machine's load, in computing threads, from which on somebody else is at work."""

OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
"""With one of these variables the user has decided."""


def wait_politely() -> str:
    """Let OpenMP's threads wait without spinning if the machine is at work already; to be called before torch is loaded.

    A thread that spins keeps its core while the one that it waits for does not get any: with two threads on two cores
    and one busy process beside them, a training fell to a seventh of its speed, and to a half where they sleep. On a
    quiet machine spinning is a little faster, and stays.

    Returns:
        A line that says so; empty where nothing was changed.
    """
    if "torch" in sys.modules or any(name in os.environ for name in OWN) or not hasattr(os, "getloadavg"):
        return ""
    load = os.getloadavg()[0]
    if load < BUSY:
        return ""
    os.environ["OMP_WAIT_POLICY"] = "passive"
    return f"the machine has other work (load {load:.1f}), so threads wait without spinning: OMP_WAIT_POLICY=passive"
