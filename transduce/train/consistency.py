"""Consistency of two views: a batch passes twice, with other dropout, masks and voices, and the outputs should agree."""

from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from transduce.train.loss import CHUNK, IGNORE, ProjectedLoss, apply_projected

BatchT = TypeVar("BatchT")


def two_views(batch: BatchT) -> BatchT:
    """A batch of all rows and then of all rows again, those with `second_source` as their source if there is one.

    Args:
        batch: a dataclass whose tensors have a row for each example (data/batch.py).
    """
    given: Any = batch
    tensors = {f.name: t for f in fields(given) if isinstance(t := getattr(given, f.name), Tensor)}
    second = tensors.pop("second_source", None)
    both: dict[str, Any] = {name: torch.cat((t, t)) for name, t in tensors.items()}
    if second is not None:
        both["source"] = torch.cat((tensors["source"], second))
    if given.host_lengths is not None:
        both["host_lengths"] = tuple(None if t is None else torch.cat((t, t)) for t in given.host_lengths)
    return cast(BatchT, replace(given, **both, second_source=None, n_tokens=2 * given.n_tokens))


def divergence(
    first: Float[Tensor, "*B V"], second: Float[Tensor, "*B V"], *, constant_target: bool = False
) -> Float[Tensor, "*B"]:
    """KL(p || q) + KL(q || p) where p and q are the softmax of these logits, in nats; in float32 or wider.

    Args:
        constant_target: the first distribution in KL(a || b) gets no gradient, so each view learns from the other as
            from a teacher.

    Source: Liang et al. (2021), R-Drop: Regularized dropout for neural networks, where both get a gradient;
    Yao et al. (2024), CR-CTC: Consistency regularization on CTC for improved speech recognition, where one does.
    """
    dtype = torch.promote_types(first.dtype, torch.float32)
    with torch.autocast(first.device.type, enabled=False):
        log_p, log_q = first.to(dtype).log_softmax(-1), second.to(dtype).log_softmax(-1)
        p, q = (log_p.detach(), log_q.detach()) if constant_target else (log_p, log_q)
        ways = (F.kl_div(log, target, reduction="none", log_target=True) for log, target in ((log_q, p), (log_p, q)))
        return torch.stack([way.sum(-1) for way in ways]).sum(0)


class _ConsistentCrossEntropy(ProjectedLoss):
    """Label-smoothed cross-entropy of two views of n states, and alpha times KL(p || q) + KL(q || p) of what they give.

    As in `projected_cross_entropy`, the logits are made once, chunk by chunk, and with them all gradients: of the
    cross-entropy p - y; of the divergence, with respect to the logits of p, p (log p - log q - KL(p || q)) + p - q.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        n_classes: int,
        smoothing: float,
        alpha: float,
        needed: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(states.dtype, torch.float32)
        entropy, divergent = states.new_zeros((), dtype=dtype), states.new_zeros((), dtype=dtype)
        grad_states, grad_weight = ProjectedLoss.gradients(states, weight, needed)
        of_states, of_weight = needed
        for start in range(0, states.size(1), chunk := CHUNK.get(states.device.type, 256)):
            rows, wanted = states[:, start : start + chunk], targets[start : start + chunk, None].expand(2, -1, 1)
            log_p = (rows @ weight.T)[..., :n_classes].to(dtype).log_softmax(-1)
            p, ratio = log_p.exp(), log_p - log_p.flip(0)
            apart = (p * ratio).sum(-1, keepdim=True)
            divergent += apart.sum()
            entropy -= (1 - smoothing) * log_p.gather(-1, wanted).sum()
            if smoothing:
                entropy -= smoothing / n_classes * log_p.sum()
            if of_states or of_weight:
                grad = ratio.sub_(apart).mul_(p).add_(p).sub_(p.flip(0)).mul_(alpha).add_(p)
                if smoothing:
                    grad -= smoothing / n_classes
                grad.scatter_add_(-1, wanted, grad.new_full(wanted.shape, smoothing - 1))
                flat = F.pad(grad, (0, len(weight) - n_classes)).to(states.dtype).flatten(0, 1)
                if of_states:
                    grad_states[:, start : start + chunk] = (flat @ weight).unflatten(0, (2, -1))
                if of_weight:
                    grad_weight += flat.T @ rows.flatten(0, 1)
        ProjectedLoss.keep(ctx, grad_states, grad_weight, weight)
        ctx.mark_non_differentiable(divergent)
        return entropy + alpha * divergent, divergent


def projected_consistency(
    states: Float[Tensor, "B2 T D"],
    weight: Float[Tensor, "rows D"],
    targets: Int[Tensor, "B2 T"],
    *,
    n_targets: int,
    alpha: float,
    n_classes: int | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy of two views plus alpha times `divergence` between them, and that divergence, summed over all targets.

    Args:
        states: of the first view, B rows, and then of the second; so too the targets.
        n_targets: how many of `targets` are not IGNORE, both views together.
        n_classes, label_smoothing: as in `projected_cross_entropy`.

    Returns:
        The loss, and the divergence without a gradient.
    """
    n_classes, size = len(weight) if n_classes is None else n_classes, n_targets // 2
    own = targets.chunk(2)[0].flatten()
    real = torch.nonzero_static(own != IGNORE, size=size)[:, 0]
    views = states.unflatten(0, (2, -1)).flatten(1, 2)[:, real]
    return apply_projected(_ConsistentCrossEntropy, views, weight, own[real], n_classes, label_smoothing, alpha)
