"""The optimizer and its learning rate."""

import re
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from transduce.train.adapt import linear_maps
from transduce.train.config import OptimConfig
from transduce.train.muon import Muon

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
        elif first in INPUTS or rest[:1] in (["positions"], ["embedding_norm"]):
            found[name] = heights.get(INPUTS.get(first, first), 0) + 1
        else:
            found[name] = 0
    return found


def optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the model's parameters; or Muon over the linear maps of its layers, and AdamW over what is left.

    Weight decay is for matrices alone, and each level has a factor on its rate.
    """
    above = levels(model) if config.layer_decay < 1 else {}
    maps: dict[nn.Parameter, list[int]] = {}  # what Muon steps, and how many rows each map in it has
    for name, _, linear, of in linear_maps(model) if config.optimizer == "muon" else ():
        if LAYER.match(name) and isinstance(linear.weight, nn.Parameter):  # with LoRA it is a sum
            maps.setdefault(linear.weight, []).append(len(of))
    groups: list[dict[str, Any]] = []
    for level in sorted({0, *above.values()}):
        own = [p for name, p in model.named_parameters() if p.requires_grad and above.get(name, 0) == level]
        turned = [p for p in own if p in maps]
        factor = config.layer_decay**level
        for chosen, decay in (
            ([p for p in own if p.dim() >= 2 and p not in maps], config.weight_decay),
            ([p for p in own if p.dim() < 2], 0.0),
        ):
            groups.append({"params": chosen, "weight_decay": decay, "factor": factor})
        if turned:
            rows = [maps[p] for p in turned]
            groups.append({"params": turned, "weight_decay": config.weight_decay, "factor": factor, "rows": rows})
    kind = Muon if config.optimizer == "muon" else torch.optim.AdamW
    return kind(groups, lr=config.peak_rate, betas=config.betas, eps=config.eps, fused=True)


def scale_of(scaler: torch.amp.GradScaler) -> tuple[float, int] | None:
    """The factor of the loss, and how many good updates there were since it changed; None of a scaler that is off."""
    state = scaler.state_dict()
    return (state["scale"], state["_growth_tracker"]) if state else None


def set_scale(scaler: torch.amp.GradScaler, kept: tuple[float, int] | None) -> None:
    """Set what `scale_of` gives; None changes nothing."""
    if kept is not None:
        scaler.load_state_dict(scaler.state_dict() | {"scale": kept[0], "_growth_tracker": kept[1]})


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
