"""Where to compute, in which numbers and with which attention kernels."""

import os
import resource
import sys
from pathlib import Path
from threading import Lock
from typing import Literal

import torch

from transduce.config import environment_count
from transduce.errors import InputError

TrainingPrecision = Literal["fp32", "bf16", "fp16"]

Device = torch.device | str
DType = torch.dtype | str

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}


def default_device() -> str:
    """A GPU if there is one, else the CPU; each process of torchrun gets its own GPU."""
    if not torch.cuda.is_available():
        return "cpu"
    if "LOCAL_RANK" not in os.environ:
        return "cuda"
    return f"cuda:{environment_count('LOCAL_RANK') % torch.cuda.device_count()}"


def torch_device(name: Device) -> torch.device:
    """The device of this name; "auto" is a GPU where there is one.

    Raises:
        InputError: there is no such device.
    """
    wanted = default_device() if name == "auto" else name
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device).item()  # "meta" makes tensors, but computes nothing
    except Exception as error:  # a device that was not compiled in fails in its own way
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"device must be one that this machine has, but {str(name)!r}: {reason}; try --device "
            "cpu"
        ) from error
    return device


def torch_dtype(name: DType) -> torch.dtype:
    """The dtype of this name, which is a key of DTYPES or torch's name.

    Raises:
        InputError: there is no such type.
    """
    dtype = DTYPES.get(name, getattr(torch, name, None)) if isinstance(name, str) else name
    if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or dtype == torch.int8):
        raise InputError(f"a dtype must be one of {', '.join(DTYPES)}, but it is {name!r}")
    return dtype


def trains_in(
    precision: TrainingPrecision | Literal["auto"], device: torch.device
) -> TrainingPrecision:
    """The precision to train in: `auto` is bf16 if the hardware supports it, else fp32."""
    if precision == "auto":
        return "bf16" if computes_bf16(device) else "fp32"
    return precision


def computes_bf16(device: torch.device) -> bool:
    """Whether the hardware computes bf16; without, it is several times slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def memory(device: torch.device) -> int | None:
    """Bytes that this process can use; None: unknown. On a GPU, free memory and what the process
    has reserved; on a CPU, all memory of the machine or its container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdecimal() else total


class _WithoutCudnnAttention:
    """Switches cuDNN's attention off for the whole process while at least one thread is inside.

    cuDNN makes a new plan for every new (batch, length), which takes longer than the attention
    where lengths vary. PyTorch has one switch per process, and `torch.nn.attention.sdpa_kernel`
    sets that same one: of two threads whose contexts overlap, the first to leave would switch cuDNN
    on for the other, and the second would leave it off for good. So threads are counted: the first
    to enter switches it off, the last to leave restores it.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.n_inside = 0
        self.before = True

    def __enter__(self) -> None:
        with self.lock:
            if self.n_inside == 0:
                self.before = torch.backends.cuda.cudnn_sdp_enabled()
                torch.backends.cuda.enable_cudnn_sdp(False)
            self.n_inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.n_inside -= 1
            if self.n_inside == 0:
                torch.backends.cuda.enable_cudnn_sdp(self.before)


without_cudnn_attention = _WithoutCudnnAttention()


PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "B200": 2250e12,
    "L40S": 362e12,
}
"""Dense bf16 operations a second, from NVIDIA's data sheets, by part of the device's name."""


def peak_flops(device: torch.device) -> float | None:
    """Return the peak of a GPU in dense bf16 operations a second; None: it is not in PEAKS."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def full_speed(device: torch.device, flops_per_token: float | None) -> float | None:
    """Tokens a second that would use the whole device; None: unknown."""
    peak = peak_flops(device)
    return peak / flops_per_token if peak and flops_per_token else None


def peak_memory() -> tuple[str, int]:
    """The device (GPU if this process uses one, else host), and the process's peak memory on it so
    far, in bytes."""
    if torch.cuda.is_initialized():
        return "GPU", torch.cuda.max_memory_reserved()
    unit = 1 if sys.platform == "darwin" else 1024
    return "host", unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
