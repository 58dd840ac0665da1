"""A training small enough for a test: the target is the source backwards."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transduce.data.batch import Batch, Epoch, pair_epoch
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.log import standard_sinks
from transduce.train.objectives import CrossEntropy, Loss
from transduce.train.optim import OptimConfig
from transduce.train.state import Validation
from transduce.train.trainer import Trainer, TrainingConfig

LETTERS, FIRST = 8, 4
"""Ids 4 to 11, each equally likely."""


@dataclass(frozen=True)
class Backwards:
    """`n` pairs of random letters and the same letters backwards."""

    n: int = 200
    length: tuple[int, int] = (3, 6)
    tokens_per_batch: int = 256
    seed: int = 1
    letters: int = 5
    """Another number, other pairs."""

    def epoch(self, n: int) -> Epoch:
        """As `TextPairs.epoch`."""
        rng = np.random.default_rng(self.letters)
        rows = [rng.integers(FIRST, FIRST + LETTERS, size=rng.integers(*self.length)).tolist() for _ in range(self.n)]
        source, target = [[*row, EOS] for row in rows], [[*row[::-1], EOS] for row in rows]
        return pair_epoch(source, target, tokens_per_batch=self.tokens_per_batch, seed=self.seed, epoch=n, bos=BOS)


def model(*, dropout: float = 0.0, d_model: int = 16, n_layers: int = 1) -> Transformer:
    """So many layers each side, the same weights every time."""
    torch.manual_seed(0)
    stack = StackConfig(input=Tokens(vocab_size=FIRST + LETTERS), n_layers=n_layers)
    return Transformer(
        TransformerConfig(
            encoder=stack, decoder=stack, d_model=d_model, n_heads=2, d_ff=2 * d_model, dropout=dropout, tie="all"
        )
    )


def config(**changes: Any) -> TrainingConfig:
    """30 updates, with a validation after every 10."""
    optim = OptimConfig(peak_rate=1e-2, warmup_steps=20)
    settings: dict[str, Any] = {"optim": optim, "max_updates": 30, "validate_every": 10, "label_smoothing": 0.0}
    return TrainingConfig(**(settings | changes))


@dataclass
class Scores:
    """Validations with given scores; the last one repeats when they run out."""

    values: list[float] = field(default_factory=lambda: [0.0])
    calls: int = 0

    def __call__(self, model: nn.Module) -> Validation:
        """The next score."""
        assert not model.training and not torch.is_grad_enabled()
        self.calls += 1
        score = self.values[min(self.calls, len(self.values)) - 1]
        return Validation({"loss": -score}, score, [("a", "b", "c")])


class Faulty(CrossEntropy):
    """The toy's objective, but its loss is not finite at these calls, the first being 1."""

    def __init__(self, at: frozenset[int], *, value: float = math.nan) -> None:
        super().__init__(model())
        self.at, self.value, self.calls = at, value, 0

    def forward(self, batch: Batch) -> Loss:
        """Nats, summed."""
        self.calls += 1
        loss = super().forward(batch)
        return loss._replace(total=loss.total * self.value) if self.calls in self.at else loss


def trainer(directory: Path, **parts: Any) -> Trainer:
    """A Trainer of the toy, with some arguments replaced."""
    given = {"data": Backwards(), "validate": Scores(), "config": config()} | parts
    given.setdefault("objective", CrossEntropy(model()))
    given["sinks"] = [*standard_sinks(directory, given["config"]), *parts.get("sinks", [])]
    directory.mkdir(parents=True, exist_ok=True)
    return Trainer(directory=directory, **given)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether all weights are equal bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def metrics(directory: Path) -> list[tuple[str, int]]:
    """(kind, update) of every line of metrics.jsonl."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["update"]) for line in lines]
