"""The progress of a training, and the checkpoints that keep it."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from transduce.config import from_dict, to_dict
from transduce.files import copy_weights, read_json, read_weights, set_weights, weights_of, write_directory
from transduce.train.adapt import is_part, merged, whole

EMPTY: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class Validation:
    """The result of one validation."""

    metrics: dict[str, float]
    score: float = math.nan
    """Higher is better; it decides which checkpoints are best."""
    samples: list[tuple[str, str, str]] = field(default_factory=list)
    """(source, reference, output) of a few held-out examples, the same ones in every validation."""
    by: str = "score"
    """The name of the metric that the score is."""
    pictures: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    """By name, functions that draw a picture into a file."""


@dataclass
class Progress:
    """Everything a resumed training must know besides weights and optimizer."""

    update: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that were used already."""
    seconds: float = 0.0
    """Wall time of the training, summed over its parts."""
    skipped: int = 0
    skipped_in_a_row: int = 0
    validations: list[tuple[int, float]] = field(default_factory=list)
    """(update, score) of every validation."""

    @property
    def validated(self) -> bool:
        """Whether this update has been validated."""
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
        """Updates of the k best validations, best first; of two equal ones the earlier is better."""
        return [update for update, _ in sorted(self.validations, key=lambda v: -v[1])[:k]]

    def candidates(self, last: int, best: int) -> dict[str, list[int]]:
        """What may become the finished model: by name, updates whose checkpoints are averaged; the best one alone first.

        Args:
            last: the most checkpoints from the end to average; those of the first half of the training are left out.
            best: the most of the best checkpoints to average.
        """
        means = [
            ("best", self.best(best)),
            ("last", [update for update in self.last(last) if 2 * update > self.update]),
        ]
        if set(means[0][1]) == set(means[1][1]):  # the same mean twice
            means.pop()
        named = {f"mean of the {len(some)} {which}": some for which, some in means if len(some) > 1}
        return {"best checkpoint": self.best(1), **named}


class Store:
    """checkpoints/UPDATE/ with model.safetensors, state.json and, in the newest, optimizer.safetensors.

    With LoRA, model.safetensors holds merged weights, and lora.safetensors in the newest their parts; with an average of
    the weights, that is ema.safetensors in the newest.

    A checkpoint appears whole or not at all. Each save removes the checkpoints that are neither the newest, nor among
    the last, nor among the best.
    """

    def __init__(self, directory: Path, *, keep_last: int, keep_best: int) -> None:
        self.directory, self.keep_last, self.keep_best = directory / "checkpoints", keep_last, keep_best

    def newest(self) -> Path | None:
        """The newest checkpoint one can resume from."""
        found = sorted(self.directory.glob("[0-9]*/optimizer.safetensors"))
        return found[-1].parent if found else None

    def newest_good(self, progress: Progress) -> Path | None:
        """The newest checkpoint with a finite validation."""
        scores = dict(progress.validations)
        found = [path for path in self.directory.glob("[0-9]*") if math.isfinite(scores.get(int(path.name), math.nan))]
        return max(found, default=None)

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, ema: Mapping[str, Tensor] = EMPTY
    ) -> None:
        """Write the checkpoint of this update, then remove those that are not to be kept."""

        def fill(path: Path) -> None:
            save_file(_plain(merged(model)), path / "model.safetensors")
            if parts := {name: part for name, part in weights_of(model).items() if is_part(name)}:
                save_file(_plain(parts), path / "lora.safetensors")
            if ema:
                save_file(_plain(ema), path / "ema.safetensors")
            save_file(_flat_state(optimizer), path / "optimizer.safetensors")
            (path / "state.json").write_text(json.dumps(to_dict(progress)) + "\n")

        try:
            write_directory(self.directory / f"{progress.update:08d}", fill)
        except SafetensorError as error:  # it hides the number of the error, such as a full disk's
            raise OSError(f"{self.directory / f'{progress.update:08d}'} cannot be written: {error}") from error
        kept = {progress.update, *progress.last(self.keep_last), *progress.best(self.keep_best)}
        for path in self.directory.glob("[0-9]*"):
            if int(path.name) not in kept:
                shutil.rmtree(path)
            elif int(path.name) != progress.update:
                for name in ("optimizer.safetensors", "lora.safetensors", "ema.safetensors"):
                    (path / name).unlink(missing_ok=True)

    def resume(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, ema: Mapping[str, Tensor] = EMPTY
    ) -> Progress | None:
        """Load the newest checkpoint into model, optimizer and average; None where there is none."""
        path = self.newest()
        if path is None:
            return None
        weights = read_weights(path / "model.safetensors")
        if (path / "lora.safetensors").is_file():
            weights |= read_weights(path / "lora.safetensors")
            for name in {whole(part) for part in weights if is_part(part)}:
                del weights[name]
        set_weights(model, weights, str(path / "model.safetensors"))
        if ema:
            copy_weights(dict(ema), read_weights(path / "ema.safetensors"), str(path / "ema.safetensors"))
        state: dict[int, dict[str, Tensor]] = {}
        progress = from_dict(Progress, read_json(path / "state.json"), str(path / "state.json"))
        moments = path / "optimizer.safetensors"
        for name, tensor in read_weights(moments).items():
            index, _, key = name.partition(".")
            if not index.isdecimal() or int(index) >= sum(len(group["params"]) for group in optimizer.param_groups):
                raise ValueError(f"{moments} must hold the optimizer's state of this model, but it has {name!r:.60}")
            state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return progress


def _plain(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}


def _flat_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = optimizer.state_dict()["state"]
    return _plain({f"{i}.{key}": tensor for i, state in states.items() for key, tensor in state.items()})
