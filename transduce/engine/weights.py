"""Matrices in the layout of kernels.cpp, in float32 or rounded to 8-bit integers."""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from transduce.errors import InputError
from transduce.kernels import required

POINTER, SIZE, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


def structure(name: str, **fields: Any) -> type[ctypes.Structure]:
    """A structure of kernels.cpp, by its fields in their order."""
    return type(
        name, (ctypes.Structure,), {"_fields_": list(fields.items()), "__doc__": "See kernels.cpp."}
    )


LinearStruct = structure(
    "Linear",
    **dict.fromkeys(("panels", "bias", "scale", "sums"), POINTER),
    inputs=SIZE,
    outputs=SIZE,
)


def address(tensor: Tensor | None) -> int | None:
    """Where the numbers of a contiguous tensor begin."""
    return None if tensor is None else tensor.data_ptr()


class Matrix:
    """W and b of x W^T + b for inference: W in panels of as many outputs as a product keeps in
    registers.

    Args:
        int8: round to 8-bit integers; every row of W has a scale of its own, and every row of x as
            it comes. Sums of integers are exact and a row of x knows nothing of the others, so
            results do not depend on the batch.

    Source: Wu et al. (2020), Integer quantization for deep learning inference, section 3.
    """

    def __init__(
        self,
        weight: Float[Tensor, "O I"],
        bias: Float[Tensor, " O"] | None = None,
        *,
        int8: bool = False,
    ) -> None:
        weight = weight.detach()
        scale = sums = None
        if int8:
            largest = weight.abs().amax(dim=1)
            if constant("saturates"):  # neighbours are added in 16 bits
                pairs = F.pad(weight, (0, weight.size(1) % 2)).unflatten(1, (-1, 2))
                largest = torch.maximum(largest, pairs.sum(dim=2).abs().amax(dim=1))
            scale = largest.clamp_min(torch.finfo(torch.float32).tiny) / 127
            weight = (weight / scale[:, None]).round_().to(torch.int8)
            missing = (0, -len(weight) % constant("wide"))
            sums = F.pad(weight.sum(dim=1, dtype=torch.int32), missing)
            scale = F.pad(scale, missing)
        panels = _in_panels(weight)
        self.int8 = int8
        self.tensors = panels, bias, scale, sums
        """What `linear` points to."""
        self.linear = LinearStruct(*map(address, self.tensors), weight.size(1), weight.size(0))

    def __call__(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        """x W^T + b; see `vectors`."""
        x = vectors(x, self.linear.inputs)
        y = x.new_empty(*x.shape[:-1], self.linear.outputs)
        n_rows = x.numel() // self.linear.inputs
        library = required()
        library.linear_map(
            ctypes.byref(self.linear), x.data_ptr(), n_rows, y.data_ptr(), torch.get_num_threads()
        )
        return y


def vectors(x: Tensor, width: int) -> Float[Tensor, "*B I"]:
    """The same numbers, contiguous.

    Raises:
        InputError: x is not of float32 and this width: in C++ nobody would notice.
    """
    if x.dtype != torch.float32 or x.size(-1) != width:
        raise InputError(f"x must be float32 (..., {width}), but it is {x.dtype} {tuple(x.shape)}")
    return x.contiguous()


def _in_panels(weight: Shaped[Tensor, "O I"]) -> Tensor:
    """Rows in groups of `wide`; of int8, `pair` columns of every row follow one another. Zeros fill
    both up."""
    wide = constant("wide")
    pair = constant("pair") if weight.dtype == torch.int8 else 1
    padded = F.pad(weight, (0, -weight.size(1) % pair, 0, -weight.size(0) % wide))
    return padded.view(len(padded) // wide, wide, -1, pair).transpose(1, 2).contiguous()


def constant(name: str) -> int:
    """A number that kernels.cpp was compiled with."""
    return ctypes.c_int32.in_dll(required(), name).value
