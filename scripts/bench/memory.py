"""How much memory a stretch of code adds to this process (Linux), or to its share of a GPU, for the benchmarks."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch


def added_by(action: Callable[[], object], device: str = "cpu") -> int:
    """MiB between what is resident, or allocated on the GPU, before `action` and the peak during it."""
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        action()
        return round((torch.cuda.max_memory_allocated(device) - start) / 2**20)
    ctypes.CDLL(None).malloc_trim(0)  # what was loaded and freed before would hide what comes
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _resident("VmRSS")
    action()
    return round((_resident("VmHWM") - before) / 1024)


def _resident(field: str) -> int:
    """KiB of this process: VmRSS now, VmHWM at the peak."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])
