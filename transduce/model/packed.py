"""Weights packed once for the CPU's matrix kernels: inference is faster and gives the same numbers; int8 rounds them."""

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.errors import InputError
from transduce.kernels import library
from transduce.model.inputs import TokenInput
from transduce.model.kernel_step import KernelEncoder, KernelStep
from transduce.model.kernel_weight import KernelInt8Weight, KernelWeight
from transduce.model.layers import FeedForward
from transduce.model.transformer import Memory, Transformer
from transduce.threads import compute_after_fork

logger = logging.getLogger("transduce")

SMALLEST = 1 << 17
"""Smallest number of elements for which int8 pays, and packing for oneDNN: below it, calling takes longer than the product."""


class PackedWeight:
    """W of x W^T, in the blocked layout of oneDNN. Without it, W is packed anew for every product.

    The operators are those of torch.compile's frozen graphs; used directly, they need no C++ compiler.
    """

    def __init__(self, weight: Float[Tensor, "O I"]) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def __call__(
        self, x: Float[Tensor, "*B I"], bias: Float[Tensor, " O"] | None = None, *, relu: bool = False
    ) -> Float[Tensor, "*B O"]:
        """x W^T + bias, and where `relu` is set, not below 0."""
        after = "relu" if relu else "none"
        result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, bias, after, [], "")
        return result

    def dense(self) -> Float[Tensor, "O I"]:
        """The weight as it was."""
        weight: Tensor = self.packed.to_dense()
        return weight

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedWeight":
        return self  # it never changes


class Int8Weight(PackedWeight):
    """W of x W^T in 8-bit integers: every row of W, and every row of x as it comes, has a scale of its own.

    The products of integers are summed exactly, and a row of x knows nothing of the others: so the result does not
    depend on the batch. Where a CPU's sums of two products saturate (see `largest_weight`), weights are rounded to a bit
    less. Source: Wu et al. (2020), Integer quantization for deep learning inference, section 3.
    """

    def __init__(self, weight: Float[Tensor, "O I"]) -> None:
        weight = weight.detach()
        self.scale = weight.abs().amax(dim=1).clamp_min(TINY) / largest_weight()
        self.rounded = (weight / self.scale[:, None]).round_().to(torch.int8)
        self.zero = torch.zeros(len(weight), dtype=torch.long)
        self.packed = torch.ops.onednn.qlinear_prepack(self.rounded, None)

    def __call__(
        self, x: Float[Tensor, "*B I"], bias: Float[Tensor, " O"] | None = None, *, relu: bool = False
    ) -> Float[Tensor, "*B O"]:
        rows = x.reshape(-1, x.size(-1))
        scale = rows.abs().amax(dim=1, keepdim=True).clamp_min_(TINY).div_(127)
        # the product of signed integers has no fast kernel; flipping the highest bit adds 128
        rounded = (rows / scale).round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)
        y = torch.ops.onednn.qlinear_pointwise.default(
            rounded, 1.0, 128, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        y = y.mul_(scale) if bias is None else torch.addcmul(bias, y, scale, out=y)
        return (y.relu_() if relu else y).view(*x.shape[:-1], y.size(1))

    def dense(self) -> Float[Tensor, "O I"]:
        return self.rounded * self.scale[:, None]


@cache
def largest_weight() -> int:
    """The largest integer of an Int8Weight: 127, or 64 on x86 CPUs without VNNI.

    Those add two products of an unsigned and a signed byte in 16 bits, and what is beyond is cut: 2 * 255 * 64 is not.
    """
    ones = torch.ones(256, 256)
    packed = torch.ops.onednn.qlinear_prepack((127 * ones).to(torch.int8), None)
    zero = torch.zeros(256, dtype=torch.long)
    largest = (255 * ones[:16]).to(torch.uint8)
    y = torch.ops.onednn.qlinear_pointwise.default(
        largest, 1.0, 128, packed, ones[0], zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return 127 if torch.equal(y, torch.full_like(y, 256.0 * 127 * 127)) else 64


LONGEST = 512
"""Positions of a source up to which the encoder is one call of C++; the attention of longer ones is quicker in blocks."""

Product = PackedWeight | KernelWeight
"""A packed matrix: it has `dense()`, and multiplies."""

TINY = torch.finfo(torch.float32).tiny
"""The least scale: a row of zeros stays one."""


class PackedLinear(nn.Module):
    """A packed nn.Linear for inference; its state_dict is that of the nn.Linear, rounded where the weight is.

    Args:
        relu: zero what is below 0, in the same operator.
    """

    def __init__(self, linear: nn.Linear, kind: type[Product] = PackedWeight, *, relu: bool = False) -> None:
        super().__init__()
        self.product, self.bias, self.relu = kind(linear.weight), linear.bias, relu

    @property
    def weight(self) -> Tensor:
        """The packed weight, of whatever shape."""
        return self.product.packed

    def forward(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        return self.product(x, self.bias, relu=self.relu)

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.product.dense()
        super()._save_to_state_dict(destination, prefix, keep_vars)


class PackedTransformer(Transformer):
    """A Transformer with packed weights. Inference only; device and dtype are fixed. Its state_dict is unchanged."""

    logits: Product | None
    step: KernelStep | None
    whole: KernelEncoder | None

    def encode(self, source: Tensor | None, source_lengths: Int[Tensor, " B"] | None = None, **known: Any) -> Memory:
        """Ids (B, S) or frames (B, S, F) to memory, as in Transformer."""
        whole = self.whole
        if (
            source is None
            or whole is None
            or whole.watched
            or source.size(1) > LONGEST
            or known.get("taps") is not None
        ):
            return super().encode(source, source_lengths, **known)
        assert self.source_input is not None
        vectors, lengths = self.source_input(source, source_lengths)
        return Memory(whole(vectors, lengths), lengths)

    def decoder_states(self, target_in: Int[Tensor, "N T"], **known: Any) -> Float[Tensor, "N T D"]:
        """The states that `decode` projects to logits, as in Transformer; one position more of a search is a quick step."""
        step, cache, memory = self.step, known.get("cache"), known.get("memory")
        if step is None or cache is None or target_in.size(1) > 1 or step.watched or known.get("taps") is not None:
            return super().decoder_states(target_in, **known)
        if cache.length or memory is not None or self.encoder is None:
            return step(target_in, cache, memory)
        return super().decoder_states(target_in, **known)

    def project(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """States to logits, as in Transformer."""
        return super().project(states) if self.logits is None else self.logits(states, self.output_bias)

    def projection(self, ids: Int[Tensor, " U"]) -> Callable[[Float[Tensor, "*B D"]], Float[Tensor, "*B U"]]:
        """What `project` gives for these tokens alone, rounded where that is."""
        assert self.output is not None
        if self.logits is None:
            return super().projection(ids)
        return partial(type(self.logits)(self.output[ids]), bias=self.bias_of(ids))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        raise RuntimeError(
            "the weights of a loaded model are packed for this CPU and this type; "
            "say what you want when you load it: td.load(RUN, device, dtype)"
        )

    def _load_from_state_dict(self, *_: Any) -> None:
        raise RuntimeError("the weights of a loaded model are packed and stay as they are; td.load_model gives others")


def pack(model: Transformer, *, int8: bool = False) -> Transformer:
    """Pack a model in place if it is on a CPU, in float32 or bfloat16, and the CPU has the kernels; else leave it.

    Args:
        int8: round the large matrices to 8-bit integers; what is small, norms, tables, routers and CTC stay float32.

    Raises:
        InputError: int8 is wanted where this machine or this PyTorch has no kernels for it.
    """
    dtype = next(model.parameters()).dtype
    if int8 and not (dtype == torch.float32 and can_pack(model.device, torch.int8)):
        raise InputError(
            "int8 computes with float32 on a CPU, in C++ or with kernels of oneDNN, but this is "
            f"{dtype} on {model.device} with PyTorch {torch.__version__}; use fp32 or bf16"
        )
    if not can_pack(model.device, dtype):
        return model
    compute_after_fork()
    in_cpp = dtype == torch.float32 and library() is not None
    exact: type[Product] = KernelWeight if in_cpp else PackedWeight
    rounding: type[Product] = KernelInt8Weight if in_cpp else Int8Weight
    least = 0 if in_cpp else SMALLEST

    def kind(n_elements: int) -> type[Product]:
        return rounding if int8 and n_elements >= SMALLEST else exact

    model.eval().requires_grad_(False)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and child.weight.numel() >= least:
                relu = name == "wide" and isinstance(module, FeedForward) and module.activation is F.relu
                relu = relu and not module.gated
                if relu:
                    assert isinstance(module, FeedForward)
                    module.activation = torch.positive  # the identity
                large = name not in ("router", "ctc")  # what decides, and what is heard once
                setattr(module, name, PackedLinear(child, kind(child.weight.numel()) if large else exact, relu=relu))
    logits = None
    if model.output is not None and model.output.numel() >= least:
        logits = kind(model.output.numel())(model.output[: model.vocab_size])
    made = [logits, *(getattr(module, "product", None) for module in model.modules())]
    if int8 and not any(isinstance(product, rounding) for product in made):
        logger.warning("int8 changes nothing: no matrix of this model has %s elements, where it pays", f"{SMALLEST:,}")
    model.__class__ = PackedTransformer
    assert isinstance(model, PackedTransformer)
    model.logits = logits
    model.step = model.whole = None
    config, heard, said = model.config, model.encoder, model.decoder
    if in_cpp and heard is not None and KernelEncoder.fits(config, config.encoder):
        model.whole = KernelEncoder(heard, config)
    if (
        in_cpp
        and said is not None
        and isinstance(model.target_input, TokenInput)
        and KernelStep.fits(config, config.decoder)
    ):
        model.step = KernelStep(said, config, model.target_input)
    return model


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this PyTorch and this machine have the kernels for packed weights; int8: for such weights."""
    if device.type != "cpu":
        return False
    if library() is not None and dtype in (torch.float32, torch.int8):
        return True
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.int8:
        return all(hasattr(torch.ops.onednn, name) for name in ("qlinear_prepack", "qlinear_pointwise"))
    if not all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
