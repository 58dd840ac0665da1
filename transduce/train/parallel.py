"""Data parallelism: the batches of an update are shared, their gradients and losses summed."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from transduce.train.distributed import World
from transduce.train.objectives import Objective


class DataParallel:
    """Every process has all weights; one exchange after its last batch sums their gradients.

    Args:
        clock: this process's count of the training's seconds.
    """

    def __init__(self, objective: Objective, world: World, clock: Callable[[], float]) -> None:
        self.model = objective.model
        self.world = world
        self.clock = clock
        self.names: list[str] | None = None  # of losses

    def share(self, group: Sequence[int]) -> Sequence[int]:
        """Return the batches of an update that this process computes."""
        return self.world.share(group)

    def divisor(self, n_tokens: int) -> float:
        """Return the number that divides the losses for the gradient, of this process's tokens."""
        return float(n_tokens)

    def exchange(self, names: list[str], numbers: Tensor, stop: bool) -> tuple[list[str], Tensor]:
        """Sum gradients and losses over all processes, in one exchange.

        Args:
            names: those of the losses.
            numbers: the number of tokens, and sums of the losses over this process's batches.
            stop: whether this process has been asked to stop.

        Returns:
            Names and sums; where there are several processes, behind them the number of those that
            have been asked to stop, and the first one's seconds.
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
        numbers = torch.cat([numbers, self._decisions(numbers, stop), numbers.new_tensor(used)])
        flat = torch.cat([numbers, *(gradient.flatten() for gradient in gradients)])
        self.world.all_reduce(flat)
        sizes = [len(numbers) - len(used), len(used), len(flat) - len(numbers)]
        numbers, n_using, total = flat.split(sizes)
        if not all(used):  # another process may use more; only then a device is waited for
            used = (n_using > 0).tolist()
        parts = (total / numbers[0]).split([p.numel() for p in parameters])
        for p, part, is_used in zip(parameters, parts, used, strict=True):
            p.grad = part.view_as(p) if is_used else None  # the optimizer skips unused weights
        return self.names, numbers

    def _decisions(self, numbers: Tensor, stop: bool) -> Tensor:
        return numbers.new_tensor([float(stop), self.clock() if self.world.first else 0.0])

    def clip(self, limit: float) -> Tensor:
        """Scale the gradient to a norm of at most `limit`, 0: none; returns the norm before."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit or math.inf)

    def unsharded(self) -> AbstractContextManager[None]:
        """While open, every process has all weights."""
        return nullcontext()
