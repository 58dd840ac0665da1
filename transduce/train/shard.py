"""Training what does not fit one device: every process keeps a part of each weight, gradient and moment (FSDP).

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
    """Every process has a part of all weights; each layer is made whole for as long as it computes.

    What is in no layer, such as embeddings, is whole from the beginning of a forward pass to the end of the backward
    pass. All processes run equally many of them, for in each of them they exchange weights and gradients. So all batches of an
    update must use the same weights, as they do in every objective here.

    A validation needs room for the weights alone, whole, but not for gradients and moments. So does the beginning. Under
    autocast a forward pass leaves a copy of all weights in bf16, until the backward pass has used it.
    """

    def __init__(self, objective: Objective, world: World, clock: Callable[[], float]) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # with what follows two seconds
        from torch.distributed.fsdp import fully_shard

        super().__init__(objective, world, clock)
        layers = [module for name, module in self.model.named_modules() if LAYER.fullmatch(f"{name}.")]
        mesh = init_device_mesh(next(self.model.parameters()).device.type, (world.size,))
        self.parts: list[Any] = [fully_shard(module, mesh=mesh) for module in (*layers, objective)]
        self.root = self.parts[-1]
        for part, before in zip(self.parts, [self.root, *self.parts], strict=False):
            part.set_gradient_divide_factor(1.0)  # the loss is divided by the tokens of all processes
            part.set_force_sum_reduction_for_comms(True)
            # by default that is what ran before, which after a validation differs between processes
            part.set_modules_to_backward_prefetch([before])
        self.root._get_fsdp_state()._lazy_init()  # else the first module that runs is the root, a layer in a validation

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """The batches of an update that this process computes, and the first where others have one more."""
        own = list(self.world.share(group))
        return own if len(own) == -(-len(group) // self.world.size) else [*own, group[0]]

    def n_tokens(self, own: int) -> float:
        """How many tokens all processes have in an update, of which this one has `own`."""
        return self.world.all_reduce_sum(own)[0]

    def exchange(self, names: list[str], numbers: Tensor, stop: bool) -> tuple[list[str], Tensor]:
        """Make sums those of all processes, and agree on what comes next, as in DataParallel; gradients are so by now."""
        numbers = torch.cat([numbers, self._decisions(numbers, stop)])
        self.world.all_reduce(numbers)
        return names, numbers

    def clip(self, limit: float) -> Tensor:
        """As in DataParallel, by the norm of the whole gradient."""
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        square = nn.utils.get_total_norm(gradients).square()[None]
        self.world.all_reduce(square)
        norm = square[0].sqrt()
        torch._foreach_mul_(gradients, ((limit or math.inf) / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @contextmanager
    def whole(self) -> Iterator[None]:
        """While open, every process has all weights, and may compute as much or as little as it likes."""
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
    """The part of a tensor that this process holds; all of it where it is not sharded."""
    part: Tensor = cast(Any, tensor).to_local() if _is_sharded(tensor) else tensor
    return part


def gathered(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """The tensors, and those that are sharded whole and on the CPU, gathered one by one. All processes call it.

    Args:
        keep: whether this process wants them; otherwise it gets nothing.
    """
    found = {}
    for name, tensor in tensors.items():
        whole = cast(Any, tensor.detach()).full_tensor() if _is_sharded(tensor) else None
        if keep:
            found[name] = tensor if whole is None else whole.cpu()
    return found


def parts_like(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, but of those that `own` has sharded, in the same shape, the parts that this process holds."""
    found = dict(tensors)
    for name, like in own.items():
        if _is_sharded(like) and name in found and found[name].shape == like.shape:
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(like, DTensor)
            found[name] = distribute_tensor(found[name], like.device_mesh, like.placements, src_data_rank=None)
    return found


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor; its class takes a second to import
