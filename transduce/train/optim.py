"""The optimiser and its learning rate."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Adam with the paper's betas and epsilon, and its inverse-square-root schedule.

    Source: Vaswani et al. (2017), section 5.3.
    """

    peak_rate: float = 7e-4
    """Learning rate at the end of the warm-up; the paper's own is (d_model * warmup_steps)^-0.5."""
    warmup_steps: int = 4000
    schedule: Literal["inverse_sqrt", "constant"] = "inverse_sqrt"
    """After the warm-up: fall with 1 / sqrt(update), or stay."""
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.0
    """Decoupled (AdamW), on matrices only."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; 0 = no clipping."""

    def __post_init__(self) -> None:
        if self.peak_rate <= 0:
            raise ValueError(f"peak_rate must be positive, but peak_rate={self.peak_rate}")
        if self.warmup_steps < 0 or self.clip_norm < 0 or self.weight_decay < 0:
            raise ValueError(
                "warmup_steps, clip_norm and weight_decay must not be negative, but "
                f"warmup_steps={self.warmup_steps}, clip_norm={self.clip_norm}, weight_decay={self.weight_decay}"
            )

    def rate(self, update: int) -> float:
        """Learning rate of this update; the first is 1."""
        warmup = max(1, self.warmup_steps)
        if update < warmup:
            return self.peak_rate * update / warmup
        return self.peak_rate * (math.sqrt(warmup / update) if self.schedule == "inverse_sqrt" else 1.0)


def optimiser(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the model's parameters, decaying matrices and nothing else."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.peak_rate, betas=config.betas, eps=config.eps, fused=True)
