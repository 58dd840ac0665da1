"""What all experiments have, and what can decide in them. It is read without torch."""

from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from transduce.train.config import TrainingConfig

ValidateBy = Literal[
    "loss", "bleu", "bleu.lowercase", "chrf", "chrf++", "ter", "wer", "cer", "per", "comet"
]
"""What can decide which checkpoint is best: the loss, or a measure of outputs."""


@runtime_checkable
class AnyExperiment(Protocol):
    """What all experiments have: where, how, and on what machine."""

    @property
    def run(self) -> Path: ...
    @property
    def training(self) -> TrainingConfig: ...
    @property
    def device(self) -> str: ...
