"""Where to compute, and in which numbers."""

from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]


def default_device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def torch_device(name: torch.device | str) -> torch.device:
    """The device of this name.

    Raises:
        ValueError: there is no such device.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"device must be one that this machine has, but {str(name)!r}: {reason}; try --device cpu"
        ) from error
    return device


def dtype_of(precision: Precision) -> torch.dtype:
    """The type of the weights."""
    return torch.bfloat16 if precision == "bf16" else torch.float32
