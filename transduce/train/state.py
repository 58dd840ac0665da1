"""The progress of a training, and the checkpoints that keep it."""

import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from transduce.config import from_dict, to_dict
from transduce.errors import InputError
from transduce.files import (
    MANIFEST,
    copy_weights,
    damaged,
    numbered,
    read_json,
    read_weights,
    remove_directory,
    save_tensors,
    set_weights,
    weights_of,
    write_directory,
)
from transduce.train.adapt import is_part, merged, whole
from transduce.train.shard import gathered, parts_like

NEEDED = ("model.safetensors", "optimizer.safetensors", "state.json")
"""What one goes on from; a checkpoint that was written before there were manifests needs no more."""

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
    loss_scale: tuple[float, int] | None = None
    """In fp16: the factor of the loss, and how many good updates there were since it changed."""
    validations: list[tuple[int, float]] = field(default_factory=list)
    """(update, score) of every validation."""
    losses: list[float] = field(default_factory=list)
    """Of every validation, in nats; checkpoints of former versions have none."""
    by: str = "score"
    """The name of the metric that the scores are; "score" in checkpoints of former versions."""

    @property
    def validated(self) -> bool:
        """Whether this update has been validated."""
        return bool(self.validations) and self.validations[-1][0] == self.update

    def ranked(self) -> list[int]:
        """Places in `validations`, the best first: the highest score; of equal ones the lowest loss, then the latest."""
        return sorted(range(len(self.validations)), key=self._rank)

    def _rank(self, i: int) -> tuple[float, float, int]:
        """What orders validation i among the others."""
        place = i - len(self.validations) + len(self.losses)  # the first ones may have no loss
        return -self.validations[i][1], self.losses[place] if place >= 0 else math.inf, -i

    @property
    def validations_since_best(self) -> int:
        """How many validations came after the best one; one with the same score and the same loss is no better."""
        best = next(iter(self.ranked()), 0)
        same = (i for i in range(best) if self._rank(i)[:2] == self._rank(best)[:2])
        return max(0, len(self.validations) - 1 - next(same, best))

    def last(self, k: int) -> list[int]:
        """Updates of the last k validations."""
        return [update for update, _ in self.validations[-k:]]

    def best(self, k: int) -> list[int]:
        """Updates of the k best validations, best first."""
        return [self.validations[i][0] for i in self.ranked()[:k]]

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
    """checkpoints/UPDATE/ with model.safetensors, state.json, manifest.json and, in two of them, optimizer.safetensors.

    Those two are the newest and the validated one before it, to go on from where the newest is damaged. With LoRA,
    model.safetensors holds merged weights, and lora.safetensors in the same two their parts; with an average of the
    weights, that is ema.safetensors there.

    A checkpoint appears whole or not at all. Each save removes the checkpoints that are neither these, nor among the
    last, nor among the best. With several processes only one `writes`.
    """

    def __init__(self, directory: Path, *, keep_last: int, keep_best: int, writes: bool = True) -> None:
        self.directory, self.keep_last, self.keep_best = directory / "checkpoints", keep_last, keep_best
        self.writes = writes

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole; one that is damaged and newer is named on stderr. None: there are none.

        Raises:
            InputError: there are some, but none is whole.
        """
        damages: list[str] = []
        for path in reversed(numbered(self.directory)):
            if not (wrong := damaged(path, () if (path / MANIFEST).is_file() else NEEDED)):
                for told in damages if self.writes else ():
                    print(f"{told}: going on from the one before, {path.name}", file=sys.stderr)
                return path
            damages.append(f"checkpoint {path} is damaged: {wrong} is missing or not as it was written")
        if damages:
            raise InputError(
                f"a training goes on from a whole checkpoint with its optimizer, but there is none: {damages[0]}; move "
                f"{self.directory} away to begin again, or --start-from {self.directory.parent} to go on from its weights"
            )
        return None

    def newest_good(self, progress: Progress) -> Path | None:
        """The newest checkpoint with a finite validation."""
        scores = dict(progress.validations)
        found = [path for path in numbered(self.directory) if math.isfinite(scores.get(int(path.name), math.nan))]
        return found[-1] if found else None

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, ema: Mapping[str, Tensor] = EMPTY
    ) -> None:
        """Write the checkpoint of this update, then remove those that are not to be kept.

        Where weights are sharded all processes call it, to give the one that writes their parts.
        """
        parts = {name: part for name, part in weights_of(model).items() if is_part(name)}
        files = {"model": merged(model), "lora": parts, "ema": ema, "optimizer": _flat_state(optimizer)}

        def fill(path: Path) -> None:
            for name, tensors in files.items():
                if tensors or f"{name}.safetensors" in NEEDED:
                    save_tensors(path / f"{name}.safetensors", gathered(tensors))
            (path / "state.json").write_text(json.dumps(to_dict(progress)) + "\n")

        if not self.writes:
            for tensors in files.values():
                gathered(tensors, keep=False)
            return
        write_directory(self.directory / f"{progress.update:08d}", fill)
        self._clean(progress, numbered(self.directory))

    def _clean(self, progress: Progress, found: list[Path]) -> None:
        """Remove checkpoints that are not kept, optimizers that nobody goes on from, and what a killed save left."""
        before = [update for update in progress.last(2) if update < progress.update][-1:]
        whole = {progress.update, *before}
        kept = {*whole, *progress.last(self.keep_last), *progress.best(self.keep_best)}
        for path in found:
            if int(path.name) not in kept:
                remove_directory(path)
            elif int(path.name) not in whole:
                for name in ("optimizer.safetensors", "lora.safetensors", "ema.safetensors"):
                    (path / name).unlink(missing_ok=True)
        for path in self.directory.glob(".*"):
            if re.fullmatch(r"\.[0-9]{8,}\.(tmp|old)", path.name):
                shutil.rmtree(path, ignore_errors=True)

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
        set_weights(model, parts_like(weights_of(model), weights), str(path / "model.safetensors"))
        if ema:
            averages = parts_like(ema, read_weights(path / "ema.safetensors"))
            copy_weights(dict(ema), averages, str(path / "ema.safetensors"))
        state: dict[int, dict[str, Tensor]] = {}
        progress = from_dict(Progress, read_json(path / "state.json"), str(path / "state.json"))
        moments = path / "optimizer.safetensors"
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        for name, tensor in read_weights(moments).items():
            index, _, key = name.partition(".")
            if not index.isdecimal() or int(index) >= len(stepped):
                raise InputError(f"{moments} must hold the optimizer's state of this model, but it has {name!r:.60}")
            state.setdefault(int(index), {}).update(parts_like({key: stepped[int(index)]}, {key: tensor}))
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        # a newer one that is damaged stays until the next save
        if self.writes:
            self._clean(progress, [found for found in numbered(self.directory) if int(found.name) <= progress.update])
        return progress


def _flat_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = optimizer.state_dict()["state"]
    return {f"{i}.{key}": tensor for i, state in states.items() for key, tensor in state.items()}
