"""How the processes of a training share an update: which batches, whose gradient, and what they agree on."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from transduce.train.distributed import World
from transduce.train.objectives import Objective


class DataParallel:
    """Every process has all weights and computes some batches; one exchange after the last makes their gradients one.

    Args:
        clock: this process's count of the training's seconds.
    """

    def __init__(self, objective: Objective, world: World, clock: Callable[[], float]) -> None:
        self.model, self.world, self.clock = objective.model, world, clock
        self.names: list[str] | None = None  # of losses

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """The batches of an update that this process computes."""
        return self.world.share(group)

    def n_tokens(self, own: int) -> float:
        """By what the losses of an update are divided for the gradient, where this process has `own` tokens."""
        return float(own)

    def exchange(self, names: list[str], numbers: Tensor, stop: bool) -> tuple[list[str], Tensor]:
        """Make gradients and sums those of all processes, in one exchange, by which they also agree on what comes next.

        Returns:
            The names of the losses; the number of tokens and the sums over all batches of the update; then, where there
            are several processes, how many of them are to stop, and the first one's seconds.
        """
        if self.world.size == 1:
            return names, numbers
        if self.names is None:  # the first process has a batch in every update
            self.names = self.world.broadcast(names)
        if len(numbers) == 1:  # the last batches of an epoch need not suffice for all
            numbers = numbers.new_zeros(1 + len(self.names))
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        used = [p.grad is not None for p in parameters]
        own = [torch.zeros_like(p) if p.grad is None else p.grad * numbers[0] for p in parameters]
        numbers = torch.cat([numbers, self._decisions(numbers, stop), numbers.new_tensor(used)])
        flat = torch.cat([numbers, *(part.flatten() for part in own)])
        self.world.all_reduce(flat)
        numbers, n_using, gradient = flat.split([len(numbers) - len(used), len(used), len(flat) - len(numbers)])
        if not all(used):  # a batch of another process may use more; a device is waited for only then
            used = (n_using > 0).tolist()
        parts = (gradient / numbers[0]).split([p.numel() for p in parameters])
        for p, part, flag in zip(parameters, parts, used, strict=True):
            p.grad = part.view_as(p) if flag else None  # the optimizer leaves alone what no batch has used
        return self.names, numbers

    def _decisions(self, numbers: Tensor, stop: bool) -> Tensor:
        return numbers.new_tensor([float(stop), self.clock() if self.world.first else 0.0])

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient so that its norm is at most `limit`, unless that is 0; returns the norm before."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit or math.inf)

    def whole(self) -> AbstractContextManager[None]:
        """While open, every process has all weights."""
        return nullcontext()
