"""Distillation: cross-entropy with what teachers predict at every target, beside that with the target itself."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.train.loss import CHUNK, IGNORE, ProjectedLoss, apply_projected, product_dtype


def mean_prediction(
    states: Sequence[Float[Tensor, "n _"]], weights: Sequence[Float[Tensor, "_ _"]], n_classes: int
) -> Float[Tensor, "n V"]:
    """The mean of the teachers' distributions softmax(states @ weight.T) over V classes, in float32 or wider."""
    total: Tensor | None = None
    for rows, weight in zip(states, weights, strict=True):
        logits = (rows @ weight.T)[:, :n_classes]
        p = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        total = p if total is None else total.add_(p)
    assert total is not None
    return total.div_(len(states))


class _DistilledCrossEntropy(ProjectedLoss):
    """(1 - share) * label-smoothed cross-entropy + share * KL(q || p), of states and of the mean q of what teachers say.

    The gradient with respect to the logits is p - (1 - share) y - share q; see `_ProjectedCrossEntropy`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        teachers: tuple[Sequence[Tensor], Sequence[Tensor]],
        n_classes: int,
        smoothing: float,
        share: float,
        needed: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.promote_types(states.dtype, torch.float32)
        entropy, apart = states.new_zeros((), dtype=dtype), states.new_zeros((), dtype=dtype)
        grad_states, grad_weight = ProjectedLoss.gradients(states, weight, needed)
        of_states, of_weight = needed
        taught_by, tables = teachers
        for start in range(0, len(states), chunk := CHUNK.get(states.device.type, 256)):
            rows, wanted = states[start : start + chunk], targets[start : start + chunk, None]
            q = mean_prediction([each[start : start + chunk] for each in taught_by], tables, n_classes).to(dtype)
            log_p = (rows @ weight.T)[:, :n_classes].to(dtype).log_softmax(-1)
            apart += (torch.special.xlogy(q, q) - q * log_p).sum()
            entropy -= (1 - smoothing) * log_p.gather(1, wanted).sum()
            if smoothing:
                entropy -= smoothing / n_classes * log_p.sum()
            if of_states or of_weight:
                grad = log_p.exp_().sub_(q, alpha=share)
                if smoothing:
                    grad -= (1 - share) * smoothing / n_classes
                grad.scatter_add_(1, wanted, grad.new_full(wanted.shape, (1 - share) * (smoothing - 1)))
                grad = grad.to(states.dtype)
                if of_states:
                    torch.mm(grad, weight[:n_classes], out=grad_states[start : start + chunk])
                if of_weight:
                    grad_weight[:n_classes] += grad.T @ rows
        ProjectedLoss.keep(ctx, grad_states, grad_weight, weight)
        ctx.mark_non_differentiable(entropy, apart)
        return (1 - share) * entropy + share * apart, entropy, apart


def projected_distillation(
    states: Float[Tensor, "*B D"],
    weight: Float[Tensor, "rows D"],
    targets: Int[Tensor, "*B"],
    teachers: Sequence[tuple[Float[Tensor, "*B _"], Float[Tensor, "_ _"]]],
    *,
    n_targets: int,
    share: float,
    n_classes: int | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """(1 - share) * cross-entropy + share * KL(q || p), where q is the mean of what the teachers predict; summed over targets.

    Args:
        teachers: states at the same positions and the output table of each; they get no gradient.
        n_targets: how many of `targets` are not IGNORE; the others are left out.
        n_classes, label_smoothing: as in `projected_cross_entropy`.

    Returns:
        The loss, and without gradients the cross-entropy and the divergence.

    Source: Hinton et al. (2015), Distilling the knowledge in a neural network; Kim and Rush (2016), Sequence-level knowledge
    distillation, whose word level this is; of an ensemble, Freitag et al. (2017), Ensemble distillation for neural
    machine translation.
    """
    n_classes, targets = len(weight) if n_classes is None else n_classes, targets.flatten()
    real = torch.nonzero_static(targets != IGNORE, size=n_targets)[:, 0]
    own = states.flatten(0, -2)[real]
    dtype = product_dtype(own)
    with torch.no_grad():
        taught = ([s.flatten(0, -2)[real].to(dtype) for s, _ in teachers], [w.to(dtype) for _, w in teachers])
    return apply_projected(
        _DistilledCrossEntropy, own, weight, targets[real], taught, n_classes, label_smoothing, share
    )
