"""Matrix products by the library that is fastest on this CPU."""

from functools import cache, reduce
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@cache
def _onednn_is_faster() -> bool:
    """Whether oneDNN should compute float32 products: MKL reaches less than half the speed of AMD's
    CPUs."""
    cpu = Path("/proc/cpuinfo")
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return both and cpu.is_file() and "AuthenticAMD" in cpu.read_text()


def _blocks(x: Float[Tensor, "B I"]) -> list[Tensor]:
    """Split rows into blocks of few sizes, as oneDNN compiles and keeps code for each size; the
    last block is padded with zeros."""
    *blocks, last = x.split(2048)
    return [*blocks, F.pad(last, (0, 0, 0, -len(last) % 128))]


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class _OneDNNLinear(torch.autograd.Function):
    """F.linear of a matrix, and its gradients, by oneDNN."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        first, *others = (_by_onednn(rows, weight, bias) for rows in _blocks(x))
        return (torch.cat([first, *others]) if others else first)[: len(x)]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        product = _OneDNNLinear.apply  # differentiable, for second derivatives
        pairs = zip(_blocks(gradient), _blocks(x), strict=True) if of_weight else ()
        parts = (product(g.T, rows.T, None) for g, rows in pairs)
        return (
            product(gradient, weight.T, None) if of_x else None,
            reduce(torch.add, parts) if of_weight else None,
            gradient.sum(dim=0) if of_bias else None,
        )


def linear(
    x: Float[Tensor, "*B I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*B O"]:
    """x W^T + bias, as F.linear; oneDNN computes large float32 products on AMD's CPUs."""
    float32 = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if x.device.type != "cpu" or not float32 or traced or not _onednn_is_faster():
        return F.linear(x, weight, bias)
    # for fewer rows, rearranging the weights would take more time than it saves
    if x.size(-1) != weight.size(1) or x.numel() < 64 * weight.size(1):
        return F.linear(x, weight, bias)
    product: Tensor = _OneDNNLinear.apply(x.flatten(0, -2), weight, bias)
    return product.view(*x.shape[:-1], -1)
