"""The optimizer and its learning rate."""

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from transduce.train.config import OptimConfig


def optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the model's parameters, with weight decay on matrices alone."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.peak_rate, betas=config.betas, eps=config.eps, fused=True)


def step(optimizer: torch.optim.AdamW, *, rate: float, finite: Bool[Tensor, ""]) -> None:
    """Take one step at this rate if `finite`; otherwise weights, moments and the count of steps stay as they are.

    The device decides, so the host does not wait for it: a fused optimizer reads `found_inf`, by which
    torch.amp.GradScaler makes it skip a step.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.found_inf  # type: ignore[attr-defined]
