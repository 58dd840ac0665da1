"""The optimizer and its learning rate."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from transduce.config import at_least, within


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Adam with the paper's betas and epsilon, and its inverse-square-root schedule.

    Source: Vaswani et al. (2017), section 5.3.
    """

    peak_rate: float = 7e-4
    """Learning rate at the end of the warm-up; the paper's own is (d_model * warmup_steps)^-0.5."""
    warmup_steps: int = 4000
    schedule: Literal["inverse_sqrt", "cosine", "constant"] = "inverse_sqrt"
    """After the warm-up: fall with 1 / sqrt(update), along half a cosine down to final_rate at the end of the training,
    or stay."""
    final_rate: float = 0.0
    """Where the cosine ends."""
    cooldown: float = 0.0
    """Share of the training, at its end, over which the rate falls in a straight line to 0, whatever the schedule."""
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.0
    """Decoupled (AdamW), on matrices only."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; 0 = no clipping."""

    def __post_init__(self) -> None:
        within("(0, inf)", peak_rate=self.peak_rate, eps=self.eps)
        within(f"[0, {self.peak_rate}]", final_rate=self.final_rate)
        within("[0, 1]", cooldown=self.cooldown)
        at_least(0, warmup_steps=self.warmup_steps, clip_norm=self.clip_norm, weight_decay=self.weight_decay)

    def rate(self, update: int, max_updates: int, *, done: float = 0.0) -> float:
        """Learning rate of this update; the first is 1, the last max_updates.

        Cosine and cooldown follow the progress of the training, which is the larger of update / max_updates and `done`:
        so a training that another limit ends before max_updates has cooled down by then, too. The warm-up and
        inverse_sqrt follow the update.

        Args:
            done: the share of that other limit that is used up, such as minutes / max_minutes; 1 is the end.

        Source: the cosine is Loshchilov and Hutter (2017), equation 5, without restarts; the cooldown, Zhai et al.
        (2022), Scaling vision transformers.
        """
        at = max(float(update), min(done, 1.0) * max_updates)  # the update at which the training would be as far
        rate = self._scheduled(update, at, max_updates)
        left, cooldown = max_updates - at, self.cooldown * max_updates
        return rate * max(0, left) / cooldown if cooldown and left < cooldown else rate

    def _scheduled(self, update: int, at: float, max_updates: int) -> float:
        warmup, rate = max(1, self.warmup_steps), self.peak_rate
        if self.schedule == "inverse_sqrt":
            rate *= math.sqrt(warmup / max(update, warmup))
        elif self.schedule == "cosine" and max_updates > warmup:
            done = min(1.0, max(0.0, (at - warmup) / (max_updates - warmup)))
            rate = self.final_rate + (self.peak_rate - self.final_rate) * (1 + math.cos(math.pi * done)) / 2
        return min(rate, self.peak_rate * update / warmup) if update < warmup else rate


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
