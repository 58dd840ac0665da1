"""Where a training stands, and the checkpoints that remember it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from transduce.files import read_weights, save_weights, set_weights, write_directory


@dataclass(frozen=True)
class Validation:
    """What one look at held-out data gave."""

    metrics: dict[str, float]
    score: float
    """Higher is better; it decides which checkpoints are best."""
    samples: list[tuple[str, str, str]] = field(default_factory=list)
    """Source, reference, output: the same few every time."""
    pictures: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    """What draws a picture into a file, by name."""


@dataclass
class Progress:
    """Everything a resumed training must know besides weights and optimizer."""

    update: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch already used."""
    seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    validations: list[tuple[int, float]] = field(default_factory=list)
    """(update, score) of every validation."""

    @property
    def validated(self) -> bool:
        """Has this very update been validated?"""
        return bool(self.validations) and self.validations[-1][0] == self.update

    @property
    def validations_since_best(self) -> int:
        """How many validations came after the best one."""
        scores = [score for _, score in self.validations]
        return len(scores) - 1 - scores.index(max(scores)) if scores else 0

    def last(self, k: int) -> list[int]:
        """Updates of the last k validations."""
        return [update for update, _ in self.validations[-k:]]

    def best(self, k: int) -> list[int]:
        """Updates of the k best validations, best first; the earlier one of two equals."""
        return [update for update, _ in sorted(self.validations, key=lambda v: -v[1])[:k]]

    def chosen(self, how: Literal["last", "best", "none"], last: int, best: int) -> list[int]:
        """Updates whose checkpoints make the finished model: the last ones, the best ones, or the best one alone."""
        return {"last": self.last(last), "best": self.best(best), "none": self.best(1)}[how]


class Store:
    """checkpoints/UPDATE/ with model.safetensors, state.json and, in the newest, optimizer.safetensors.

    A checkpoint appears whole or not at all. After each save, what is neither the newest, nor among the last, nor
    among the best is removed.
    """

    def __init__(self, directory: Path, *, keep_last: int, keep_best: int) -> None:
        self.directory, self.keep_last, self.keep_best = directory / "checkpoints", keep_last, keep_best

    def path(self, update: int) -> Path:
        """Where the checkpoint of this update is kept."""
        return self.directory / f"{update:08d}"

    def newest(self) -> Path | None:
        """The newest checkpoint one can resume from."""
        found = sorted(self.directory.glob("[0-9]*/optimizer.safetensors"))
        return found[-1].parent if found else None

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Write the checkpoint of this update, then remove what is not kept."""

        def fill(path: Path) -> None:
            save_weights(path / "model.safetensors", model)
            save_file(_flat_state(optimizer), path / "optimizer.safetensors")
            (path / "state.json").write_text(json.dumps(asdict(progress)) + "\n")

        write_directory(self.path(progress.update), fill)
        kept = {progress.update, *progress.last(self.keep_last), *progress.best(self.keep_best)}
        for path in self.directory.glob("[0-9]*"):
            if int(path.name) not in kept:
                shutil.rmtree(path)
            elif int(path.name) != progress.update:
                (path / "optimizer.safetensors").unlink(missing_ok=True)

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
        """Load the newest checkpoint into model and optimizer; None where there is none."""
        path = self.newest()
        if path is None:
            return None
        weights = path / "model.safetensors"
        set_weights(model, read_weights(weights), str(weights))
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in load_file(path / "optimizer.safetensors").items():
            index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return read_progress(path)


def read_progress(checkpoint: Path) -> Progress:
    """Where the training stood when it wrote this checkpoint."""
    plain = json.loads((checkpoint / "state.json").read_text())
    plain["validations"] = [(update, score) for update, score in plain["validations"]]
    return Progress(**plain)


def _flat_state(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    states = optimizer.state_dict()["state"]
    return {f"{i}.{key}": t.detach().cpu().contiguous() for i, state in states.items() for key, t in state.items()}
