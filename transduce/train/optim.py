"""Which weights a training changes (all, some parts, or low-rank changes, LoRA), and the optimizers
AdamW and Muon."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn
from torch.nn.utils import parametrize

from transduce.device import computes_bf16
from transduce.errors import InputError
from transduce.files import Weights, weights_of
from transduce.train.config import LoRAConfig, OptimConfig


class LinearMap(NamedTuple):
    """One linear map of a model: all rows of a module's weight, or those of one map fused in it."""

    name: str
    module_name: str
    module: nn.Linear
    rows: range

    def matches(self, pattern: str) -> bool:
        """Whether its name, or its module's, ends with parts that match this pattern."""
        return any(
            fnmatchcase(f".{name}", f"*.{pattern}") for name in (self.name, self.module_name)
        )


def linear_maps(model: nn.Module) -> Iterator[LinearMap]:
    """All linear maps of a model; a module's `widths` are the numbers of rows of its fused maps."""
    for module_name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            leaf = module_name.rpartition(".")[2]
            start = 0
            for part, width in getattr(module, "widths", {leaf: module.out_features}).items():
                name = module_name.removesuffix(leaf) + part
                yield LinearMap(name, module_name, module, range(start, start + width))
                start += width


class LowRank(nn.Module):
    """Adds alpha / rank * B A to some rows of a weight; B begins with zeros."""

    def __init__(self, weight: Tensor, rows: range, config: LoRAConfig, rng: Generator) -> None:
        super().__init__()
        a = torch.randn(config.rank, weight.size(1), generator=rng) / math.sqrt(weight.size(1))
        self.a = nn.Parameter(a.to(weight))
        self.b = nn.Parameter(weight.new_zeros(len(rows), config.rank))
        self.scale = config.alpha / config.rank
        self.above, self.below = rows.start, len(weight) - rows.stop

    def forward(self, weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        # no autocast: the sum must be exactly the weight that is saved
        with torch.autocast(weight.device.type, enabled=False):
            return weight + F.pad(self.scale * self.b @ self.a, (0, 0, self.above, self.below))


def add_lora(model: nn.Module, config: LoRAConfig, *, seed: int) -> None:
    """Freeze a model but for some parts, and add low-rank changes to some of its linear maps.

    Raises:
        InputError: a name matches no linear map or no part, or the rank is larger than a map.
    """
    maps = list(linear_maps(model))
    for pattern in config.maps:
        if not any(each.matches(pattern) for each in maps):
            names = ", ".join(sorted({each.name.rpartition(".")[2] for each in maps}))
            raise InputError(
                f"lora.maps must name linear maps of the model, but {pattern!r} is none; it has "
                f"{names}"
            )
    model.requires_grad_(False)
    for parameter in parts_of(model, config.train, "lora.train"):
        parameter.requires_grad_(True)
    rng = torch.Generator().manual_seed(seed)
    changes = []
    for name, _, module, rows in (each for each in maps if any(map(each.matches, config.maps))):
        if config.rank > min(len(rows), module.in_features):
            raise InputError(
                "lora.rank must be at most the rows and columns of every map, but "
                f"rank={config.rank} and {name} has {len(rows)} and {module.in_features}"
            )
        changes.append((module, LowRank(module.weight, rows, config, rng)))
    for module, change in changes:  # unsafe: not computed first, as the meta device has no autocast
        parametrize.register_parametrization(module, "weight", change, unsafe=True)


def parts_of(model: nn.Module, parts: Sequence[str], field: str) -> list[nn.Parameter]:
    """The parameters of the modules or parameters with these names; errors name the `field`.

    Raises:
        InputError: a name matches no weight.
    """
    # a shared table has several names
    parameters = dict(model.named_parameters(remove_duplicate=False))
    chosen = []
    for part in parts:
        of_part = [
            parameter for name, parameter in parameters.items() if f"{name}.".startswith(f"{part}.")
        ]
        if not of_part:
            names = ", ".join(dict.fromkeys(name.split(".")[0] for name in parameters))
            raise InputError(
                f"{field} must name parts of the model, but {part!r} has no weights; it has {names}"
            )
        chosen += of_part
    return chosen


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Let these parts keep their weights.

    Args:
        parts: names of modules or parameters, such as encoder.

    Raises:
        InputError: a name matches no weight, or no weight is left to train.
    """
    for parameter in parts_of(model, parts, "freeze"):
        parameter.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            f"a training needs weights to train, but freeze={', '.join(parts)}, or LoRA of no "
            "maps, leaves none"
        )


def adapted(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear maps with a low-rank change, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight")
    }


def merge(model: nn.Module) -> None:
    """Make every sum of a weight and its low-rank changes an ordinary weight again."""
    for module in adapted(model).values():
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


@torch.no_grad()
def merged(model: nn.Module) -> Weights:
    """The weights that the model would have after `merge`, by name."""
    weights = {name: weight for name, weight in weights_of(model).items() if not is_part(name)}
    return weights | {f"{name}.weight": module.weight for name, module in adapted(model).items()}


def is_part(name: str) -> bool:
    """Whether this is a part of a weight: the frozen one, or A or B."""
    return ".parametrizations." in name


LAYER = re.compile(r"(\w+)\.layers\.(\d+)\.")
INPUTS = {"source_input": "encoder", "target_input": "decoder"}
"""The stack that reads each input, by the input's name."""


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
    rows: dict[nn.Parameter, list[int]] = defaultdict(list)
    """For each weight that Muon updates, the number of rows of each map in it."""
    for each in linear_maps(model) if config.optimizer == "muon" else ():
        weight = each.module.weight
        if LAYER.match(each.name) and isinstance(weight, nn.Parameter):  # with LoRA it is a sum
            rows[weight].append(len(each.rows))
    groups: list[dict[str, Any]] = []
    for level in sorted({0, *above.values()}):
        parameters = [
            p
            for name, p in model.named_parameters()
            if p.requires_grad and above.get(name, 0) == level
        ]
        matrices = [p for p in parameters if p.dim() >= 2 and p not in rows]
        vectors = [p for p in parameters if p.dim() < 2]
        shared = {"weight_decay": config.weight_decay, "factor": config.layer_decay**level}
        groups.append(shared | {"params": matrices})
        groups.append(shared | {"params": vectors, "weight_decay": 0.0})
        if by_muon := [p for p in parameters if p in rows]:
            groups.append(shared | {"params": by_muon, "rows": [rows[p] for p in by_muon]})
    kind = Muon if config.optimizer == "muon" else torch.optim.AdamW
    return kind(groups, lr=config.peak_rate, betas=config.betas, eps=config.eps, fused=True)


def scale_of(scaler: torch.amp.GradScaler) -> tuple[float, int] | None:
    """The loss scale, and the number of good updates since it changed; None if it is off."""
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

    The device decides, so the host does not wait for it: a fused optimizer reads `found_inf`, the
    attribute with which torch.amp.GradScaler makes it skip a step.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.found_inf  # type: ignore[attr-defined]


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

    `rows` lists, for each parameter of the group, the numbers of rows of the maps fused in it, such
    as queries, keys and values. A step is as large as AdamW's, 0.2 per weight (root mean square),
    so both share one rate; momentum is Nesterov's, 0.95, and weight decay is decoupled. Source of
    the size: Liu et al. (2025), Muon is scalable for LLM training, equation 4.
    """

    momentum = 0.95
    found_inf: Tensor

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step, unless `found_inf` is not 0; only `optim.step` calls it."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if "rows" not in group]
        super().step()
        self.param_groups = groups
        for group in groups:
            if "rows" in group:
                self._step_maps(group, self.found_inf == 0)

    def _step_maps(self, group: dict[str, Any], finite: Bool[Tensor, ""]) -> None:
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
        rate = finite * group["lr"]
        for shape, all_of_shape in maps.items():
            weights, gradients, momentum = zip(*all_of_shape, strict=True)
            # a skipped update changes nothing: momentum is averaged with itself, and the rate is 0
            gradients = torch.where(finite, torch.stack(gradients), torch.stack(momentum)).unbind()
            torch._foreach_lerp_(momentum, gradients, 1 - self.momentum)
            ahead = torch._foreach_lerp(gradients, momentum, self.momentum)
            change = orthogonal(torch.stack(ahead)) * (0.2 * math.sqrt(max(shape)))
            torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
            torch._foreach_sub_(weights, (rate * change).unbind())
