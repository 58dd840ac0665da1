"""The weights that a training changes: all, all but some parts, or low-rank changes (LoRA)."""

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn.utils import parametrize

from transduce.errors import InputError
from transduce.files import weights_of
from transduce.train.config import LoRAConfig


class LinearMap(NamedTuple):
    """One linear map of a model: all rows of a module's weight, or those of one map fused in it."""

    name: str
    module_name: str
    module: nn.Linear
    rows: range

    def matches(self, pattern: str) -> bool:
        """Whether the last parts of its name, or of its module's, are this pattern."""
        return any(
            fnmatchcase(f".{name}", f"*.{pattern}") for name in (self.name, self.module_name)
        )


def linear_maps(model: nn.Module) -> Iterator[LinearMap]:
    """All linear maps of a model; the `widths` of a module are the rows of the maps fused in it."""
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
        with torch.autocast(
            weight.device.type, enabled=False
        ):  # the sum is what the finished model has
            return weight + F.pad(self.scale * self.b @ self.a, (0, 0, self.above, self.below))


def add_lora(model: nn.Module, config: LoRAConfig, *, seed: int) -> None:
    """Freeze a model but for some parts, and add low-rank changes to some of its linear maps.

    Raises:
        InputError: a name is that of no linear map or of no part, or the rank is larger than a map.
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
    for name, _, module, rows in (each for each in maps if any(map(each.matches, config.maps))):
        if config.rank > min(len(rows), module.in_features):
            raise InputError(
                "lora.rank must be at most the rows and columns of every map, but "
                f"rank={config.rank} and {name} has {len(rows)} and {module.in_features}"
            )
        parametrize.register_parametrization(
            module, "weight", LowRank(module.weight, rows, config, rng)
        )


def parts_of(model: nn.Module, parts: Sequence[str], field: str) -> list[nn.Parameter]:
    """The parameters of these modules or parameters, by name; `field` names them in errors.

    Raises:
        InputError: a name stands for no weight.
    """
    parameters = dict(
        model.named_parameters(remove_duplicate=False)
    )  # a shared table has several names
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
        InputError: a name stands for no weight, or no weight is left to train.
    """
    for parameter in parts_of(model, parts, "freeze"):
        parameter.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            f"a training needs weights to train, but freeze={', '.join(parts)} leaves none"
        )


def _adapted(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear maps with a low-rank change, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight")
    }


def merge(model: nn.Module) -> None:
    """Make every sum of a weight and its low-rank changes an ordinary weight again."""
    for module in _adapted(model).values():
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


@torch.no_grad()
def merged(model: nn.Module) -> dict[str, Tensor]:
    """The weights that the model would have after `merge`, by name."""
    weights = {name: weight for name, weight in weights_of(model).items() if not is_part(name)}
    return weights | {f"{name}.weight": module.weight for name, module in _adapted(model).items()}


def is_part(name: str) -> bool:
    """Whether this is a part of a weight: the frozen one, or A or B."""
    return ".parametrizations." in name


def merged_name(name: str) -> str:
    """The name of the weight that a part belongs to."""
    return name.split(".parametrizations.")[0] + ".weight"
