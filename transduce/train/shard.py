"""Sharded training (FSDP): each process has a part of every weight, gradient and moment.

Source: Rajbhandari et al. (2020), ZeRO, stage 3; Zhao et al. (2023), PyTorch FSDP.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduce.train.distributed import World
from transduce.train.objectives import Objective
from transduce.train.optim import LAYER
from transduce.train.parallel import DataParallel


class ShardedDataParallel(DataParallel):
    """Every process has a part of all weights; a layer is gathered while it computes.

    Weights outside of layers, such as embeddings, are gathered from the beginning of a forward
    pass to the end of the backward pass. Each pass exchanges weights and gradients, so all
    processes run equally many, and all batches of an update must use the same weights, as in every
    objective here.

    A validation, and the beginning, need room for all weights, but not for gradients and moments.
    Under autocast a forward pass leaves a copy of all weights in bf16 for the backward pass.
    """

    def __init__(self, objective: Objective, world: World, clock: Callable[[], float]) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # both take two seconds
        from torch.distributed.fsdp import fully_shard

        super().__init__(objective, world, clock)
        modules = self.model.named_modules()
        layers = [module for name, module in modules if LAYER.fullmatch(f"{name}.")]
        mesh = init_device_mesh(next(self.model.parameters()).device.type, (world.size,))
        self.parts: list[Any] = [fully_shard(module, mesh=mesh) for module in (*layers, objective)]
        self.root = self.parts[-1]
        for part, before in zip(self.parts, [self.root, *self.parts], strict=False):
            part.set_gradient_divide_factor(1.0)  # losses are divided by the tokens of all
            part.set_force_sum_reduction_for_comms(True)
            # the default is the order of the last pass, which a validation changes in one process
            part.set_modules_to_backward_prefetch([before])
        # else the first module that runs becomes the root: a layer, in a validation
        self.root._get_fsdp_state()._lazy_init()

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """Return this process's batches; the first of all instead of one that it lacks."""
        shared = list(self.world.share(group))
        most = math.ceil(len(group) / self.world.size)
        return shared if len(shared) == most else [*shared, group[0]]

    def divisor(self, n_tokens: int) -> float:
        """Return the number of tokens that all processes have in an update."""
        return self.world.all_reduce_sum(n_tokens)[0]

    def exchange(self, names: list[str], numbers: Tensor, stop: bool) -> tuple[list[str], Tensor]:
        """Sum losses as in DataParallel; FSDP has summed the gradients."""
        numbers = torch.cat([numbers, self._decisions(numbers, stop)])
        self.world.all_reduce(numbers)
        return names, numbers

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient as in DataParallel, by the norm of all parts."""
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        square = nn.utils.get_total_norm(gradients).square()[None]
        self.world.all_reduce(square)
        norm = square[0].sqrt()
        factor = ((limit or math.inf) / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        return norm

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """While open, every process has all weights, and may run any number of passes."""
        for part in self.parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in self.parts:
                part.set_reshard_after_forward(part is not self.root, recurse=False)
                part.reshard()


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has: all of it, unless it is sharded."""
    part: Tensor = cast(Any, tensor).to_local() if _is_sharded(tensor) else tensor
    return part


def gathered(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """Gather sharded tensors on the CPU, one by one; all processes must call it.

    Args:
        keep: whether this process gets the result; the others get nothing.
    """
    result = {}
    for name, tensor in tensors.items():
        full = cast(Any, tensor.detach()).full_tensor().cpu() if _is_sharded(tensor) else tensor
        if keep:
            result[name] = full
    return result


def parts_like(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shard the tensors whose targets, of the same name and shape, are sharded."""
    result = dict(tensors)
    for name, target in targets.items():
        if _is_sharded(target) and name in result and result[name].shape == target.shape:
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(target, DTensor)
            result[name] = distribute_tensor(
                result[name], target.device_mesh, target.placements, src_data_rank=None
            )
    return result


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor; its class takes a second to import
