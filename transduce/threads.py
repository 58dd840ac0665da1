"""What a process that computes asks of its system: how threads wait, that freed memory stays, and who its user is."""

import ctypes
import getpass
import os
import sys
import tempfile
from functools import cache
from threading import Lock, Thread

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


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""The names that <malloc.h> has for the settings of GNU's malloc."""


def keep_memory() -> bool:
    """Let GNU's malloc keep what is freed, up to 2 GB, for the next tensors; whether it does so now.

    It is for a process of our own, which commands are, as it holds for everything in the process and for good.

    Otherwise the large tensors of every step come from the system anew, page by page, which was a tenth of the time of a
    beam search. The user's own MALLOC_ variables win.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 1 << 26}
    return mallopt is not None and all(mallopt(name, value) for name, value in settings.items())


@cache
def compute_after_fork() -> None:
    """Let processes that are forked from this one, from whichever thread, compute by one thread.

    They would wait for ever for threads of OpenMP, which do not live on in them; so it is with PyTorch alone, too.
    """
    import torch

    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def allow_user_without_name() -> None:
    """Let torch.compile's code be imported, as optimizers do, where the user has no name: in a container, mostly.

    Its cache is named after the user, unless a variable says where it is; PyTorch sets that variable itself.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")


ONE_AT_A_TIME = Lock()


def use_one_core() -> None:
    """Let the calling thread compute on one core, and leave to all others, born sooner or later, what they have.

    torch.set_num_threads alone also says what threads begin with that are born afterwards.
    """
    import torch  # late, as `wait_politely` comes before it

    with ONE_AT_A_TIME:  # else another one would take the 1 for what the others have
        others = torch.get_num_threads()
        torch.set_num_threads(1)
        again = Thread(target=torch.set_num_threads, args=(others,))
        again.start()
        again.join()
