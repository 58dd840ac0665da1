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
    """The number of layers above each parameter: 0 for the output, 1 for the last layer of a stack.

    The norm after a stack is the output's. Embeddings and positions lie below the first layer; a
    table that is also the output is the output's.
    """
    names = [name for name, _ in model.named_parameters()]
    n_layers = {layer[1]: int(layer[2]) + 1 for name in names if (layer := LAYER.match(name))}

    def level(name: str) -> int:
        if layer := LAYER.match(name):
            return n_layers[layer[1]] - int(layer[2])
        first, *rest = name.split(".")
        below_layers = first in INPUTS or rest[:1] in (["positions"], ["embedding_norm"])
        return n_layers.get(INPUTS.get(first, first), 0) + 1 if below_layers else 0

    return {name: level(name) for name in names}


def optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over all parameters, or Muon over the linear maps of layers and AdamW over the others.

    Weight decay is for matrices alone, and each level has a factor on its rate.
    """
    above = levels(model) if config.layer_decay < 1 else {}
    rows: dict[nn.Parameter, list[int]] = {}
    """By the weight that Muon steps, the number of rows of each map in it."""
    for each in linear_maps(model) if config.optimizer == "muon" else ():
        if LAYER.match(each.name) and isinstance(
            each.module.weight, nn.Parameter
        ):  # with LoRA it is a sum
            rows.setdefault(each.module.weight, []).append(len(each.rows))
    groups: list[dict[str, Any]] = []
    for level in sorted({0, *above.values()}):
        parameters = [
            p
            for name, p in model.named_parameters()
            if p.requires_grad and above.get(name, 0) == level
        ]
        matrices = [p for p in parameters if p.dim() >= 2 and p not in rows]
        vectors = [p for p in parameters if p.dim() < 2]
        by_muon = [p for p in parameters if p in rows]
        factor = config.layer_decay**level
        groups.append({"params": matrices, "weight_decay": config.weight_decay, "factor": factor})
        groups.append({"params": vectors, "weight_decay": 0.0, "factor": factor})
        if by_muon:
            of_maps = [rows[p] for p in by_muon]
            groups.append(
                {
                    "params": by_muon,
                    "weight_decay": config.weight_decay,
                    "factor": factor,
                    "rows": of_maps,
                }
            )
    kind = Muon if config.optimizer == "muon" else torch.optim.AdamW
    return kind(groups, lr=config.peak_rate, betas=config.betas, eps=config.eps, fused=True)


def scale_of(scaler: torch.amp.GradScaler) -> tuple[float, int] | None:
    """The factor of the loss, and the good updates since it changed; None if it is off."""
    state = scaler.state_dict()
    return (state["scale"], state["_growth_tracker"]) if state else None


def set_scale(scaler: torch.amp.GradScaler, scale: tuple[float, int] | None) -> None:
    """Set the result of `scale_of`; None changes nothing."""
    if scale is not None:
        scaler.load_state_dict(
            scaler.state_dict() | {"scale": scale[0], "_growth_tracker": scale[1]}
        )


def step(optimizer: torch.optim.AdamW, *, rate: float, finite: Bool[Tensor, ""]) -> None:
    """Take one step at this rate, times each group's factor, if `finite`.

    Otherwise weights, moments and the count of steps stay as they are.

    The device decides, so the host does not wait for it: a fused optimizer reads `found_inf`, by
    which torch.amp.GradScaler makes it skip a step.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.found_inf  # type: ignore[attr-defined]
