"""A matrix in the layout of kernels.cpp, in float32 or rounded to 8-bit integers."""

import ctypes

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from transduce.errors import InputError
from transduce.kernels import required


class Linear(ctypes.Structure):
    """See kernels.cpp."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("panels", "bias", "scale", "sums")] + [
        (name, ctypes.c_int64) for name in ("inputs", "outputs")
    ]


class KernelWeight:
    """W of x W^T in panels of as many outputs as a product keeps in registers.

    It multiplies as model/packed.PackedWeight does.
    """

    def __init__(self, weight: Float[Tensor, "O I"]) -> None:
        self.library = required()
        self.panels = _in_panels(weight.detach(), 1)
        self.map = Linear(self.panels.data_ptr(), None, None, None, weight.size(1), weight.size(0))

    @property
    def packed(self) -> Tensor:
        """The panels."""
        return self.panels

    def __call__(
        self, x: Float[Tensor, "*B I"], bias: Float[Tensor, " O"] | None = None, *, relu: bool = False
    ) -> Float[Tensor, "*B O"]:
        """x W^T + bias, and where `relu` is set, not below 0.

        Raises:
            InputError: x is not of float32 and this width: in C++ nobody would notice.
        """
        if x.dtype != torch.float32 or x.size(-1) != self.map.inputs:
            raise InputError(f"x must be float32 (..., {self.map.inputs}), but it is {x.dtype} {tuple(x.shape)}")
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.map.outputs)
        n_rows, added = x.numel() // self.map.inputs, None if bias is None else bias.data_ptr()
        pointers = ctypes.byref(self.map), added, x.data_ptr()
        self.library.linear_map(*pointers, n_rows, y.data_ptr(), relu, torch.get_num_threads())
        return y

    def dense(self) -> Float[Tensor, "O I"]:
        """The weight as it was."""
        return self.panels.transpose(1, 2).reshape(-1, self.map.inputs)[: self.map.outputs]

    def __deepcopy__(self, memo: object) -> "KernelWeight":
        return self  # it never changes


class KernelInt8Weight(KernelWeight):
    """W of x W^T in 8-bit integers: every row of W, and every row of x as it comes, has a scale of its own.

    The products of integers are summed exactly, and a row of x knows nothing of the others: so the result does not
    depend on the batch. Source: Wu et al. (2020), Integer quantization for deep learning inference, section 3.
    """

    def __init__(self, weight: Float[Tensor, "O I"]) -> None:
        self.library = required()
        weight, wide = weight.detach(), constant("wide")
        scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        rounded = (weight / scale[:, None]).round_().to(torch.int8)
        self.panels = _in_panels(rounded, constant("pair"))
        room = (0, -len(weight) % wide)
        self.scale, self.sums = F.pad(scale, room), F.pad(rounded.sum(dim=1, dtype=torch.int32), room)
        panels, scales, sums = (each.data_ptr() for each in (self.panels, self.scale, self.sums))
        self.map = Linear(panels, None, scales, sums, weight.size(1), weight.size(0))

    def dense(self) -> Float[Tensor, "O I"]:
        n_panels, _, wide, _ = self.panels.shape
        rows = self.panels.transpose(1, 2).reshape(n_panels * wide, -1)
        return (rows * self.scale[:, None])[: self.map.outputs, : self.map.inputs]


def _in_panels(weight: Shaped[Tensor, "O I"], pair: int) -> Tensor:
    """Rows in groups of `wide`, in each of which `pair` columns of every row follow one another; zeros fill both up."""
    wide = constant("wide")
    padded = F.pad(weight, (0, -weight.size(1) % pair, 0, -weight.size(0) % wide))
    panels = padded.view(len(padded) // wide, wide, -1, pair).transpose(1, 2).contiguous()
    return panels if weight.dtype == torch.int8 else panels.squeeze(-1)


def constant(name: str) -> int:
    """A number that kernels.cpp was compiled with."""
    return ctypes.c_int32.in_dll(required(), name).value
