"""How much memory a stretch of code adds to this process (Linux), for the benchmarks."""

import ctypes
from collections.abc import Callable
from pathlib import Path


def added_by(action: Callable[[], object]) -> int:
    """MiB between what is resident before `action` and the peak during it."""
    ctypes.CDLL(None).malloc_trim(0)  # what was loaded and freed before would hide what comes
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _resident("VmRSS")
    action()
    return round((_resident("VmHWM") - before) / 1024)


def _resident(field: str) -> int:
    """KiB of this process: VmRSS now, VmHWM at the peak."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])
