"""The optimizer and its learning rate."""

import re
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from transduce.train.config import OptimConfig

LAYER = re.compile(r"(\w+)\.layers\.(\d+)\.")
INPUTS = {"source_input": "encoder", "target_input": "decoder"}
"""By the name of an input, the stack that reads it."""


def levels(model: nn.Module) -> dict[str, int]:
    """How many layers lie above each parameter, by name: 0 for the output, 1 for the last layer of a stack.

    The norm after a stack is the output's. Embeddings and positions lie below the first layer; a table that is also the
    output is the output's.
    """
    names = [name for name, _ in model.named_parameters()]
    heights: dict[str, int] = {}
    for stack, i in (layer.groups() for name in names if (layer := LAYER.match(name))):
        heights[stack] = max(heights.get(stack, 0), int(i) + 1)
    found: dict[str, int] = {}
    for name in names:
        first, *rest = name.split(".")
        if layer := LAYER.match(name):
            found[name] = heights[layer[1]] - int(layer[2])
        elif first in INPUTS or rest[:1] == ["positions"]:
            found[name] = heights.get(INPUTS.get(first, first), 0) + 1
        else:
            found[name] = 0
    return found


def optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the model's parameters, with weight decay on matrices alone, and a factor on the rate of each level."""
    above = levels(model) if config.layer_decay < 1 else {}
    groups: list[dict[str, Any]] = []
    for level in sorted({0, *above.values()}):
        parameters = [p for name, p in model.named_parameters() if p.requires_grad and above.get(name, 0) == level]
        factor = config.layer_decay**level
        for chosen, decay in (
            ([p for p in parameters if p.dim() >= 2], config.weight_decay),
            ([p for p in parameters if p.dim() < 2], 0.0),
        ):
            groups.append({"params": chosen, "weight_decay": decay, "factor": factor})
    return torch.optim.AdamW(groups, lr=config.peak_rate, betas=config.betas, eps=config.eps, fused=True)


def step(optimizer: torch.optim.AdamW, *, rate: float, finite: Bool[Tensor, ""]) -> None:
    """Take one step at this rate, times each group's factor, if `finite`.

    Otherwise weights, moments and the count of steps stay as they are.

    The device decides, so the host does not wait for it: a fused optimizer reads `found_inf`, by which
    torch.amp.GradScaler makes it skip a step.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.found_inf  # type: ignore[attr-defined]
