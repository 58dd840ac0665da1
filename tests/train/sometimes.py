"""An objective that uses some weights in some batches alone."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.train import toy
from transduce.data.batch import Batch
from transduce.train.objectives import CrossEntropy, Loss
from transduce.train.trainer import Trainer

USES: dict[str, Callable[[int, Batch], bool]] = {
    "later": lambda update, batch: update >= 2,
    "at first": lambda update, batch: update < 2,
    "in every second batch": lambda update, batch: int(batch.target_in.sum()) % 2 == 1,
    "seldom": lambda update, batch: int(batch.target_in.sum()) % 5 == 0,
    "never": lambda update, batch: False,
}
"""By name, of the number of updates before and a batch."""


class Sometimes(CrossEntropy):
    """The toy's objective in float64 with two layers; it uses an adapter, a weight and the last layer only in some batches."""

    def __init__(self, uses: str) -> None:
        model = toy.model(n_layers=2).double()
        model.adapter, model.weight = nn.Linear(16, 16).double(), nn.Parameter(torch.ones(3, 3).double())
        super().__init__(model)
        self.uses, self.update, self.used = USES[uses], 0, False
        model.decoder.layers[1].register_forward_hook(lambda layer, given, y: y if self.used else given[0])

    def forward(self, batch: Batch) -> Loss:
        """The loss of CrossEntropy, plus a term that depends on both weights."""
        self.used = self.uses(self.update, batch)
        loss = super().forward(batch)
        return loss._replace(total=loss.total + self.extra(batch)) if self.used else loss

    def extra(self, batch: Batch) -> Tensor:
        """A term of the loss that uses the adapter and the weight."""
        x = self.model.adapter(torch.ones(16).double() * batch.n_tokens / 10).square().sum()
        return x + (self.model.weight * batch.n_tokens).square().sum() / 100


def count(trainer: Trainer) -> None:
    """Let the objective know how many updates there were."""
    own = trainer._update

    def update(*args: object, **more: object) -> None:
        trainer.objective.update = trainer.progress.update
        own(*args, **more)

    trainer._update = update
