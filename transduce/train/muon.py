"""Muon: the momentum of a matrix, made orthogonal, is the step; AdamW steps for everything else."""

import math
from collections import defaultdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.device import computes_bf16

STEPS = ((3.4445, -4.7750, 2.0315),) * 5
"""Coefficients a, b, c of every Newton-Schulz step x <- a x + b (x x^T) x + c (x x^T)^2 x. Source:
Jordan et al. (2024)."""


def orthogonal(matrices: Float[Tensor, "N R C"]) -> Float[Tensor, "N R C"]:
    """The same singular vectors, with singular values near 1: between about 0.7 and 1.2.

    It is computed in bfloat16 where the hardware has instructions for it. Source: Jordan et al.
    (2024), Muon: an optimizer for hidden layers in neural networks,
    kellerjordan.github.io/posts/muon.
    """
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # no singular value above 1
    if computes_bf16(x.device):
        x = x.bfloat16()
    for a, b, c in STEPS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.AdamW):
    """Muon over the groups that have `rows`, AdamW over the others.

    `rows` are, for each parameter of the group, the numbers of rows of its maps, as the maps of
    queries, keys and values are one parameter. A step has the size of AdamW's, 0.2 for each weight,
    so both share one rate; momentum is Nesterov's, 0.95, and weight decay is decoupled. Source of
    the size: Liu et al. (2025), Muon is scalable for LLM training, equation 4.
    """

    momentum = 0.95

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step, unless `found_inf` is there and not 0; see `optim.step`."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if "rows" not in group]
        super().step()
        self.param_groups = groups
        overflow = getattr(self, "found_inf", None)
        finite = None if overflow is None else overflow == 0
        for group in groups:
            if "rows" in group:
                self._step_maps(group, finite)

    def _step_maps(self, group: dict[str, Any], finite: Tensor | None) -> None:
        """Step all maps of one shape at once: many small kernels would be slow on a GPU."""
        maps: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
        for p, rows in zip(group["params"], group["rows"], strict=True):
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"] = torch.zeros(())  # AdamW reads it
                state["momentum"] = torch.zeros_like(p)
            for views in zip(
                p.split(rows), p.grad.split(rows), state["momentum"].split(rows), strict=True
            ):
                maps[views[0].shape].append(views)
        for shape, all_of_shape in maps.items():
            weight_views, gradient_views, momentum_views = map(
                list, zip(*all_of_shape, strict=True)
            )
            weights, gradients, before = map(
                torch.stack, (weight_views, gradient_views, momentum_views)
            )
            rate = group["lr"]
            momentum = before.lerp(gradients, 1 - self.momentum)
            if finite is not None:
                momentum, gradients = (
                    torch.where(finite, x, before) for x in (momentum, gradients)
                )
                rate = finite.to(weights) * rate
            change = orthogonal(gradients.lerp(momentum, self.momentum)) * (
                0.2 * math.sqrt(max(shape))
            )
            weights -= rate * (change + group["weight_decay"] * weights)
            torch._foreach_copy_(weight_views, list(weights))
            torch._foreach_copy_(momentum_views, list(momentum))
