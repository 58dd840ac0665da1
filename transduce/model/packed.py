"""Weights packed once for the CPU's matrix kernels: inference is faster and gives the same numbers."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.model.transformer import Transformer

SMALLEST = 1 << 17
"""Smallest number of elements for which packing pays: below it, calling the operator takes longer than the product."""


class PackedWeight:
    """W of x W^T, in the blocked layout of oneDNN. Without it, W is packed anew for every product.

    The operators are those of torch.compile's frozen graphs; used directly, they need no C++ compiler.
    """

    def __init__(self, weight: Float[Tensor, "O I"]) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def __call__(self, x: Float[Tensor, "*B I"], bias: Float[Tensor, " O"] | None = None) -> Float[Tensor, "*B O"]:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedWeight":
        return self  # it never changes


class PackedLinear(nn.Module):
    """A packed nn.Linear for inference; its state_dict is that of the nn.Linear."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.product, self.bias = PackedWeight(linear.weight), linear.bias

    @property
    def weight(self) -> Float[Tensor, "O I"]:
        """The packed weight; `to_dense` gives the original."""
        return self.product.packed

    def forward(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        return self.product(x, self.bias)

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight.to_dense()
        super()._save_to_state_dict(destination, prefix, keep_vars)


class PackedTransformer(Transformer):
    """A Transformer with packed weights. Inference only; device and dtype are fixed. Its state_dict is unchanged."""

    logits: PackedWeight | None

    def project(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """States to logits, as in Transformer."""
        return super().project(states) if self.logits is None else self.logits(states)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        raise RuntimeError(
            "the weights of a loaded model are packed for this CPU and this type; "
            "say what you want when you load it: td.load(RUN, device, dtype)"
        )

    def _load_from_state_dict(self, *_: Any) -> None:
        raise RuntimeError("the weights of a loaded model are packed and stay as they are; td.load_model gives others")


def pack(model: Transformer) -> Transformer:
    """Pack a model in place if it is on a CPU, in float32 or bfloat16, and the CPU has the kernels; else leave it."""
    if not can_pack(model.device, next(model.parameters()).dtype):
        return model
    model.eval().requires_grad_(False)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and child.weight.numel() >= SMALLEST:
                setattr(module, name, PackedLinear(child))
    logits = None
    if model.output is not None and model.output.numel() >= SMALLEST:
        logits = PackedWeight(model.output[: model.vocab_size])
    model.__class__ = PackedTransformer
    assert isinstance(model, PackedTransformer)
    model.logits = logits
    return model


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this PyTorch and this machine have the kernels for packed weights."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
