"""Utilities for a process: imports at first use, threads, memory, cancellation, progress bars."""

import ast
import ctypes
import gc
import getpass
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Event, Lock, Thread, local
from typing import Any

from tqdm import tqdm


def lazily(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's __getattr__ and __dir__ (PEP 562) from its imports under `if TYPE_CHECKING`.

    So each name is listed only once, where type checkers and editors read it too.

    Args:
        file: the package's __file__.
    """
    (block,) = (
        node for node in ast.parse(Path(file).read_text("utf-8")).body if isinstance(node, ast.If)
    )
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: node.module for node in imports for alias in node.names}

    def get(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    return get, lambda: sorted(modules)


SPINS = "1000"
"""Iterations that an idle thread spins before it sleeps; the default, 300,000, takes
milliseconds."""

OPENMP_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""If the user has set one of these environment variables, nothing is changed."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Constants of <malloc.h>: settings of GNU's malloc."""

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

    Objects that exist by now are also excluded from garbage collection.

    Both hold for the whole process until it ends, so only commands call this. Without it, the
    system allocates the large tensors of every step again, page by page, which takes a tenth of the
    time of a beam search. The user's own MALLOC_ variables win.
    """
    gc.freeze()
    chosen = any(name.startswith("MALLOC_") for name in os.environ)
    if chosen or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 1 << 26}
    return mallopt is not None and all(mallopt(name, value) for name, value in settings.items())


@cache
def compute_after_fork() -> None:
    """Make processes that are forked from this one compute with one thread.

    OpenMP's threads do not exist in them, and waiting for those would never end.
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
    """Make the calling thread compute on one core; all others, later ones too, stay as they were.

    torch.set_num_threads alone would also set the number for threads that start later.
    """
    import torch  # after `limit_omp_spin`

    with _ONE_AT_A_TIME:  # else a second caller would restore the 1 of the first
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        restore = Thread(target=torch.set_num_threads, args=(n_threads,))
        restore.start()
        restore.join()


_own = local()
"""Data of each thread."""


def cancel_with(cancelled: Event) -> None:
    """Let `raise_if_cancelled` raise in the calling thread when the event is set."""
    _own.cancelled = cancelled


def raise_if_cancelled() -> None:
    """Raise CancelledError if the work of the calling thread has been cancelled."""
    if hasattr(_own, "cancelled") and _own.cancelled.is_set():
        raise CancelledError


EVERY = 30
"""Seconds between two lines of progress if stderr is not a terminal."""


class Bar(tqdm):
    """tqdm's bar on stderr; if that is not a terminal, a line every 30 seconds and at the end."""

    def __init__(self, **options: Any) -> None:
        self.terminal = sys.stderr.isatty()
        self.last_line = time.monotonic()
        super().__init__(**{"dynamic_ncols": True} | options)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draw the bar; tqdm calls this many times a second, and after each line written above
        it."""
        if self.terminal:
            return bool(super().display(msg, pos))
        closing = self.disable
        if closing or time.monotonic() - self.last_line >= EVERY:
            self.last_line = time.monotonic()
            self.fp.write(f"{self}" if closing else f"{self}\n")  # tqdm itself ends the last line
            self.fp.flush()
        return True

    def clear(self, nolock: bool = False) -> None:
        """Clear the bar from the terminal, so that another line can be written."""
        if self.terminal:
            super().clear(nolock)
