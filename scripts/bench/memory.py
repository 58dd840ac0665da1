"""Measure the memory that code adds to this process (Linux), or to its share of a GPU."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import torch


def added_by(action: Callable[[], object], device: str = "cpu") -> int:
    """MiB from what is resident (on a GPU: allocated) before `action` to the peak during it."""
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        action()
        return round((torch.cuda.max_memory_allocated(device) - start) / 2**20)
    ctypes.CDLL(None).malloc_trim(0)  # freed memory would hide what is added
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status_kib("VmRSS")
    action()
    return round((status_kib("VmHWM") - before) / 1024)


def status_kib(field: str, process: int | str = "self") -> int:
    """KiB of a process: VmRSS now, VmHWM at the peak, RssAnon without files."""
    status = Path(f"/proc/{process}/status").read_text()
    match = re.search(rf"^{field}:\s+(\d+)", status, re.MULTILINE)
    assert match
    return int(match[1])
