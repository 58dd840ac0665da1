"""Settings of a process that computes: OpenMP's threads, malloc, the name of its user."""

import ctypes
import getpass
import os
import sys
import tempfile
from functools import cache
from threading import Lock, Thread

SPINS = "1000"
"""Turns that an idle thread spins before it sleeps; by default 300,000, milliseconds."""

OPENMP_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""With one of these environment variables the user has decided."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""The names that <malloc.h> has for the settings of GNU's malloc."""

_ONE_AT_A_TIME = Lock()


def limit_omp_spin() -> bool:
    """Set GOMP_SPINCOUNT, before torch is imported, so that idle OpenMP threads yield the CPU.

    A thread that spins keeps its core from the one that it waits for: with two threads on two cores
    and two busy processes beside them, a training fell to a quarter of its speed, and to a half
    where threads sleep soon. On a quiet machine it costs nothing (docs/results/everyday_use.md),
    and load may rise later.

    Returns:
        Whether it was set; the user's own variables win.
    """
    if "torch" in sys.modules or any(name in os.environ for name in OPENMP_VARIABLES):
        return False
    os.environ["GOMP_SPINCOUNT"] = SPINS
    return True


def keep_memory() -> bool:
    """Let GNU's malloc keep up to 2 GB of freed memory for new tensors; False where it does not.

    It holds for the whole process and for good, so only commands call it. Without it the large
    tensors of every step come from the system anew, page by page, a tenth of the time of a beam
    search. The user's own MALLOC_ variables win.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or not sys.platform.startswith(
        "linux"
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 1 << 26}
    return mallopt is not None and all(mallopt(name, value) for name, value in settings.items())


@cache
def compute_after_fork() -> None:
    """Let processes that are forked from this one compute by one thread.

    OpenMP's threads do not live on in them, and waiting for those would never end.
    """
    import torch

    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def allow_user_without_name() -> None:
    """Let torch.compile's code be imported where the user has no name, as in a container.

    Its cache is named after the user, unless a variable names its directory.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ.setdefault(
            "TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
        )


def use_one_core() -> None:
    """Let the calling thread compute on one core, and all others, later ones too, as before.

    torch.set_num_threads alone also sets the number with which later threads begin.
    """
    import torch  # after `limit_omp_spin`

    with _ONE_AT_A_TIME:  # else a second caller would restore the 1 of the first
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        restore = Thread(target=torch.set_num_threads, args=(n_threads,))
        restore.start()
        restore.join()
