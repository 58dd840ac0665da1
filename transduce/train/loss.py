"""Label-smoothed cross-entropy, fused with the output projection."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORE = -100
"""A target that asks for no prediction: as in data/batch.py, and in torch's own losses."""

CHUNK = {"cpu": 256, "cuda": 4096}
"""Rows of logits that exist at once, by device: few enough for a CPU's caches, enough to fill a GPU."""


class ProjectedLoss(torch.autograd.Function):
    """A loss of states (n, D) that are projected, whose gradients its forward pass makes. It leaves those of the states and of
    the weight in `saved_tensors`, and the type of the weight in `weight_dtype`."""

    @staticmethod
    def gradients(states: Tensor, weight: Tensor, needed: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
        """Room for the gradient of the states, and for the sum that is the weight's, in float32 or wider; none unless needed."""
        of_states, of_weight = needed
        dtype = torch.promote_types(weight.dtype, torch.float32)
        sums = torch.zeros_like(weight, dtype=dtype) if of_weight else weight.new_empty(0, dtype=dtype)
        return torch.empty_like(states) if of_states else states.new_empty(0), sums

    @staticmethod
    def keep(ctx: Any, grad_states: Tensor, grad_weight: Tensor, weight: Tensor) -> None:
        """Save the gradients for the backward pass."""
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.weight_dtype = weight.dtype

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_weight = ctx.saved_tensors
        of_states, of_weight, *others = ctx.needs_input_grad
        return (
            grad_total * grad_states if of_states else None,
            (grad_total * grad_weight).to(ctx.weight_dtype) if of_weight else None,
            *[None] * len(others),
        )


def product_dtype(x: Tensor) -> torch.dtype:
    """What products of x are computed in: autocast's type where autocast is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def apply_projected(loss: type[ProjectedLoss], states: Tensor, weight: Tensor, *how: object) -> Any:
    """Apply the loss in autocast's type where autocast is on; how it is computed, and last which gradients are needed."""
    dtype = product_dtype(states)
    needed = tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in (states, weight))
    with torch.autocast(states.device.type, enabled=False):
        return loss.apply(states.to(dtype), weight.to(dtype), *how, needed)


class _ProjectedCrossEntropy(ProjectedLoss):
    """sum of -sum_v y_v log softmax(states @ weight.T)_v, with y = (1 - smoothing) onehot + smoothing / V.

    The gradient with respect to the logits is p - y, known as soon as p is. So both gradients are made in the forward
    pass, chunk by chunk, and the (n, V) logits never exist as a whole. Rows of `weight` beyond the V classes take part
    in the products, for the sake of their size; their logits are -inf, so p and p - y are zero there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        n_classes: int,
        smoothing: float,
        needed: tuple[bool, bool],
    ) -> Tensor:
        total = states.new_zeros((), dtype=torch.promote_types(states.dtype, torch.float32))
        grad_states, grad_weight = ProjectedLoss.gradients(states, weight, needed)
        of_states, of_weight = needed
        if smoothing:  # its parts pass over all logits and weights once more
            weight_sum = weight[:n_classes].sum(dim=0, dtype=total.dtype)  # a row times this is the sum of its logits
        chunk = CHUNK.get(states.device.type, 256)
        for start in range(0, len(states), chunk):
            rows, wanted = states[start : start + chunk], targets[start : start + chunk, None]
            logits = (rows @ weight.T).to(total.dtype)
            if n_classes < len(weight):
                logits[:, n_classes:] = -torch.inf
            largest = logits.amax(dim=-1, keepdim=True)
            picked = logits.gather(1, wanted)
            exp = logits.sub_(largest).exp_()
            norm = exp.sum(dim=-1, keepdim=True)
            # not in place: torch.compile takes an output that is written to for one without a gradient
            total = total + (norm.log() + largest - (1 - smoothing) * picked).sum()
            if smoothing:
                total = total - smoothing / n_classes * (rows.to(total.dtype) @ weight_sum).sum()
            if of_states or of_weight:
                grad = exp.mul_(1 / norm)  # p, and then p - y
                if smoothing:
                    grad[:, :n_classes] -= smoothing / n_classes
                if torch.compiler.is_compiling():  # so that it is one kernel with what stands before and after it
                    chosen = torch.arange(grad.size(1), device=grad.device) == wanted
                    grad = torch.where(chosen, grad + (smoothing - 1), grad)
                else:
                    grad.scatter_add_(1, wanted, grad.new_full(wanted.shape, smoothing - 1))
                grad = grad.to(states.dtype)
                if of_states:
                    torch.mm(grad, weight, out=grad_states[start : start + chunk])
                if of_weight:
                    grad_weight += grad.T @ rows
        ProjectedLoss.keep(ctx, grad_states, grad_weight, weight)
        return total


def projected_cross_entropy(
    states: Float[Tensor, "*B D"],
    weight: Float[Tensor, "rows D"],
    targets: Int[Tensor, "*B"],
    *,
    n_classes: int | None = None,
    label_smoothing: float = 0.0,
    n_targets: int | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy of softmax(states @ weight.T) with smoothed targets, in nats, summed.

    Computes in autocast's type where autocast is on, its softmax and sums in float32 or wider.

    Args:
        n_classes: how many rows of `weight` are classes; those that follow fill the table up, have neither probability
            nor share in the smoothing, and get a gradient of zero. None: all of them.
        n_targets: how many of `targets` are not IGNORE. The positions of the others are left out before the projection,
            so padding costs nothing here. None: there is a target at every position, and torch.compile may take the
            loss into its graph.

    Source: Szegedy et al. (2016), label smoothing; Vaswani et al. (2017), section 5.4. The gradient p - y of the
    logits is why one pass is enough.
    """
    n_classes = len(weight) if n_classes is None else n_classes
    states, targets = states.flatten(0, -2), targets.flatten()
    if n_targets is not None:  # for nonzero() a GPU must be waited for, as it alone knows the size of the result
        real = torch.nonzero_static(targets != IGNORE, size=n_targets)[:, 0]
        states, targets = states[real], targets[real]
    return apply_projected(_ProjectedCrossEntropy, states, weight, targets, n_classes, label_smoothing)
