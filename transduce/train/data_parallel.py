"""How several processes share an update: batches are shared, gradients are summed, and weights may
be sharded."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from transduce.train.distributed import World
from transduce.train.objectives import Objective
from transduce.train.optim import LAYER


class DataParallel:
    """Every process has all weights; one exchange after its last batch of an update sums the
    gradients."""

    def __init__(self, objective: Objective, world: World) -> None:
        self.model = objective.model
        self.world = world
        self.names: list[str] | None = None  # of losses

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """Return the batches of an update that this process computes."""
        return self.world.share(group)

    def divisor(self, n_tokens: int) -> float:
        """Return the divisor of losses for the gradient: the number of this process's tokens."""
        return float(n_tokens)

    def exchange(
        self, names: list[str], numbers: Tensor, more: Sequence[float]
    ) -> tuple[list[str], Tensor]:
        """Sum gradients and losses over all processes, in one exchange.

        Args:
            names: names of the losses.
            numbers: the number of tokens, and sums of the losses over this process's batches.
            more: other numbers to sum.

        Returns:
            Names and sums; with several processes, the sums of `more` follow.
        """
        if self.world.size == 1:
            return names, numbers
        if self.names is None:  # the first process has a batch in every update
            self.names = self.world.broadcast(names)
        if len(numbers) == 1:  # the last batches of an epoch may be too few for all
            numbers = numbers.new_zeros(1 + len(self.names))
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        used = [p.grad is not None for p in parameters]
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad * numbers[0] for p in parameters
        ]
        numbers = torch.cat([numbers, numbers.new_tensor(more)])
        pieces = [numbers, numbers.new_tensor(used), *gradients]
        flat = torch.cat([piece.flatten() for piece in pieces])
        self.world.all_reduce(flat)
        numbers, n_using, *totals = flat.split([piece.numel() for piece in pieces])
        if not all(used):  # another process may use more; only this case waits for the device
            used = (n_using > 0).tolist()
        means = torch._foreach_div(totals, numbers[0])
        for p, mean, is_used in zip(parameters, means, used, strict=True):
            p.grad = mean.view_as(p) if is_used else None  # the optimizer skips unused weights
        return self.names, numbers

    def clip(self, limit: float) -> Tensor:
        """Clip the norm of the gradient to `limit`; 0: do not clip. Returns the norm before."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit or math.inf)

    def unsharded(self) -> AbstractContextManager[None]:
        """While open, every process has all weights."""
        return nullcontext()


class ShardedDataParallel(DataParallel):
    """Every process has a part of all weights; a layer is gathered while it computes.

    Weights outside of layers, such as embeddings, are gathered from the beginning of a forward
    pass to the end of the backward pass. Each pass exchanges weights and gradients, so all
    processes run the same number of passes, and all batches of an update must use the same weights,
    as in every objective here.

    A validation, and the beginning, need room for all weights, but not for gradients and moments.
    Under autocast a forward pass leaves a copy of all weights in bf16 for the backward pass.
    """

    def __init__(self, objective: Objective, world: World) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # both are slow: two seconds
        from torch.distributed.fsdp import fully_shard

        super().__init__(objective, world)
        modules = self.model.named_modules()
        layers = [module for name, module in modules if LAYER.fullmatch(f"{name}.")]
        mesh = init_device_mesh(next(self.model.parameters()).device.type, (world.size,))
        self.parts: list[Any] = [fully_shard(module, mesh=mesh) for module in (*layers, objective)]
        self.root = self.parts[-1]
        for part, before in zip(self.parts, [self.root, *self.parts], strict=False):
            part.set_gradient_divide_factor(1.0)  # losses are divided by all processes' tokens
            part.set_force_sum_reduction_for_comms(True)
            # the default is the order of the last pass, which a validation changes in one process
            part.set_modules_to_backward_prefetch([before])
        # otherwise the first module that runs would become the root: a layer, in a validation
        self.root._get_fsdp_state()._lazy_init()

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """Return this process's batches; if it has one less than others, the group's first one is
        added."""
        return [*self.world.share(group), group[0]][: math.ceil(len(group) / self.world.size)]

    def divisor(self, n_tokens: int) -> float:
        """Return the number of tokens that all processes have in an update."""
        return self.world.all_reduce_sum(n_tokens)[0]

    def exchange(
        self, names: list[str], numbers: Tensor, more: Sequence[float]
    ) -> tuple[list[str], Tensor]:
        """Sum losses as in DataParallel; FSDP has summed the gradients."""
        numbers = torch.cat([numbers, numbers.new_tensor(more)])
        self.world.all_reduce(numbers)
        return names, numbers

    def clip(self, limit: float) -> Any:
        """Scale the gradient as in DataParallel, by the norm of all parts."""
        norm: Any = super().clip(limit)
        return norm.full_tensor()

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
