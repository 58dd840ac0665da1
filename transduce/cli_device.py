"""Where a command computes, in which numbers, and how it searches."""

from dataclasses import replace
from typing import Literal

import torch

from transduce.decoding import Decoding

Precision = Literal["fp32", "bf16"]


def torch_device(name: str) -> torch.device:
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
            f"device must be one that this machine has, but {name!r}: {reason}; try --device cpu"
        ) from error
    return device


def dtype_of(precision: Precision) -> torch.dtype:
    """The type of the weights."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def with_options(own: Decoding, *, greedy: bool, **given: int | float | None) -> Decoding:
    """A run's own way to search, with what the command line names instead; greedy search has one hypothesis."""
    settled = ("beam_size", "n_best") if greedy else ()
    named = {name: value for name, value in given.items() if value is not None and name not in settled}
    return replace(own.greedy() if greedy else own, **named)  # type: ignore[arg-type]  # every name is a field's
