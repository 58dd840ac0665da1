"""The progress of a training, and its checkpoints."""

import math
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduce.config import from_dict, to_dict
from transduce.errors import InputError
from transduce.files import (
    MANIFEST,
    damaged,
    numbered,
    read_json,
    read_weights,
    remove_directory,
    save_tensors,
    set_weights,
    weights_of,
    write_directory,
    write_json,
)
from transduce.train.optim import adapted, is_part, merged

NEEDED = ("model.safetensors", "optimizer.safetensors", "state.json")
"""The files that a checkpoint without a manifest (version 0.1) must have to resume from it."""


@dataclass(frozen=True)
class Validation:
    """The result of one validation."""

    metrics: dict[str, float]
    score: float = math.nan
    """Higher is better; it decides which checkpoints are best."""
    samples: list[tuple[str, str, str]] = field(default_factory=list)
    """(source, reference, output) of a few held-out examples, the same ones in every validation."""
    by: str = "score"
    """The name of the metric that is the score."""


@dataclass
class Progress:
    """The state of a training besides weights and optimizer."""

    update: int = 0
    epoch: int = 0
    batch: int = 0
    """Number of this epoch's batches that are done."""
    seconds: float = 0.0
    """Wall time of the training, summed over its parts."""
    rate: float | None = None
    """Learning rate of the last update; unknown in checkpoints of older versions."""
    skipped: int = 0
    skipped_in_a_row: int = 0
    loss_scale: tuple[float, int] | None = None
    """In fp16: the loss scale, and the number of good updates since it changed."""
    validations: list[tuple[int, float]] = field(default_factory=list)
    """(update, score) of every validation."""
    losses: list[float] = field(default_factory=list)
    """Validation losses in nats; the first ones are missing in runs begun by older versions."""
    by: str = "score"
    """The name of the metric that is the score; "score" in checkpoints of older versions."""

    @property
    def validated(self) -> bool:
        """Whether this update has been validated."""
        return self.last(1) == [self.update]

    def _with_losses(self) -> Iterator[tuple[tuple[int, float], float]]:
        """Return each validation and its loss."""
        missing = len(self.validations) - len(self.losses)
        return zip(self.validations, [*[math.inf] * missing, *self.losses], strict=True)

    def _keys(self) -> list[tuple[float, float]]:
        """Return a sort key per validation: the highest score, then the lowest loss, is first."""
        return [(-score, loss) for (_, score), loss in self._with_losses()]

    def among(self, updates: Collection[int]) -> "Progress":
        """Return the same progress with the validations of these updates only."""
        rows = [row for row in self._with_losses() if row[0][0] in updates]
        return replace(self, validations=[row[0] for row in rows], losses=[row[1] for row in rows])

    @property
    def validations_since_best(self) -> int:
        """Number of validations after the first of the best ones."""
        keys = self._keys()
        return len(keys) - 1 - keys.index(min(keys)) if keys else 0

    def best_validation(self) -> Validation:
        """Return the score and the loss of the best validation."""
        key, loss = min(self._keys())
        return Validation({"loss": loss}, -key, by=self.by)

    def last(self, k: int) -> list[int]:
        """Return the updates of the last k validations."""
        return [update for update, _ in self.validations[-k:]]

    def best(self, k: int) -> list[int]:
        """Return the updates of the k best validations, best first; of equal ones the latest."""
        keys = self._keys()
        ranked = sorted(range(len(keys)), key=lambda i: (keys[i], -i))
        return [self.validations[i][0] for i in ranked[:k]]


class Store:
    """The checkpoints of a run, in checkpoints/UPDATE/.

    Each has model.safetensors, state.json and manifest.json. The newest one and the validated one
    before it, which is kept in case the newest is damaged, also have optimizer.safetensors and,
    with LoRA, lora.safetensors; model.safetensors then has the merged weights.

    A checkpoint is written completely or not at all. Each save removes those that are neither these
    two nor among the last or the best. With several processes, only one has writes=True.
    """

    def __init__(
        self, directory: Path, *, keep_last: int, keep_best: int, writes: bool = True
    ) -> None:
        self.directory = directory / "checkpoints"
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.writes = writes

    def path(self, update: int) -> Path:
        """Return the directory of an update's checkpoint."""
        return self.directory / f"{update:08d}"

    def newest(self) -> Path | None:
        """Return the newest undamaged checkpoint, or None if there are no checkpoints.

        Messages on stderr name newer ones that are damaged.

        Raises:
            InputError: all of them are damaged; or there are none, but a finished model.
        """
        messages: list[str] = []
        for path in reversed(numbered(self.directory)):
            file = damaged(path, () if (path / MANIFEST).is_file() else NEEDED)
            if file is None:
                for message in messages if self.writes else ():
                    print(f"{message}: going on from the one before, {path.name}", file=sys.stderr)
                return path
            messages.append(
                f"checkpoint {path} is damaged: {file} is missing or not as it was written"
            )
        if messages:
            raise InputError(
                "a training resumes from an undamaged checkpoint with its optimizer, but there is "
                f"none: {messages[0]}; move {self.directory} away to begin again, or --start-from "
                f"{self.directory.parent} to go on from its weights"
            )
        run = self.directory.parent
        if (run / "model.safetensors").exists():  # a training from the beginning would replace it
            raise InputError(
                f"a finished training resumes from its checkpoints, but {self.directory} has none; "
                f"put them back, or --start-from {run} --run NEW to go on from its weights"
            )
        return None

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Write the checkpoint of this update, and remove those that are no longer needed.

        If weights are sharded, all processes must call it, to send their parts to the one that
        writes.
        """
        moments = {
            f"{i}.{key}": tensor
            for i, state in optimizer.state_dict()["state"].items()
            for key, tensor in state.items()
        }
        parts = {name: part for name, part in weights_of(model).items() if is_part(name)}
        files = {"model": merged(model), "lora": parts, "optimizer": moments}

        def fill(path: Path) -> None:
            for name, tensors in files.items():
                if tensors or f"{name}.safetensors" in NEEDED:
                    save_tensors(path / f"{name}.safetensors", gathered(tensors))
            write_json(path / "state.json", to_dict(progress))

        if self.writes:
            write_directory(self.path(progress.update), fill)
            self._clean(progress, numbered(self.directory))
        else:
            for tensors in files.values():
                gathered(tensors, keep=False)

    def _clean(self, progress: Progress, checkpoints: list[Path]) -> None:
        """Remove files that are no longer needed, and those of a save that was killed."""
        before = [update for update in progress.last(2) if update < progress.update][-1:]
        resumable = {progress.update, *before}
        needed = {*resumable, *progress.last(self.keep_last), *progress.best(self.keep_best)}
        for path in checkpoints:
            if int(path.name) not in needed:
                remove_directory(path)
            elif int(path.name) not in resumable:
                for name in ("optimizer", "lora"):
                    (path / f"{name}.safetensors").unlink(missing_ok=True)
        for path in self.directory.glob(".*"):
            if re.fullmatch(r"\.[0-9]{8,}\.(tmp|old)", path.name):
                shutil.rmtree(path, ignore_errors=True)

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
        """Load the newest checkpoint into model and optimizer; None: there is none."""
        path = self.newest()
        if path is None:
            return None
        weights = read_weights(path / "model.safetensors")
        if (path / "lora.safetensors").is_file():
            weights |= read_weights(path / "lora.safetensors")
            for name in adapted(model):
                del weights[f"{name}.weight"]
        set_weights(model, parts_like(weights_of(model), weights), str(path / "model.safetensors"))
        _set_moments(optimizer, path / "optimizer.safetensors")
        progress = from_dict(Progress, read_json(path / "state.json"), str(path / "state.json"))
        if self.writes:  # a newer one that is damaged stays until the next save
            older = [p for p in numbered(self.directory) if int(p.name) <= progress.update]
            self._clean(progress, older)
        return progress


def _set_moments(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Load the state of an optimizer; entry "3.step" belongs to its parameter number 3."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in read_weights(path).items():
        index, _, key = name.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise InputError(
                f"{path} must hold the optimizer's state of this model, but it has {name!r:.60}"
            )
        part = parts_like({key: parameters[int(index)]}, {key: tensor})
        state.setdefault(int(index), {}).update(part)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this process has: all of it, unless it is sharded."""
    return tensor.to_local() if _is_sharded(tensor) else tensor


def gathered(tensors: Mapping[str, Any], *, keep: bool = True) -> dict[str, Tensor]:
    """Gather sharded tensors on the CPU, one by one; all processes must call it.

    Args:
        keep: whether this process gets the result; the others get nothing.
    """
    result = {}
    for name, tensor in tensors.items():
        full = tensor.detach().full_tensor().cpu() if _is_sharded(tensor) else tensor
        if keep:
            result[name] = full
    return result


def parts_like(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shard the tensors whose targets, of the same name and shape, are sharded."""
    result = dict(tensors)
    for name, target in targets.items():
        if _is_sharded(target) and name in result and result[name].shape == target.shape:
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(target, DTensor)
            result[name] = distribute_tensor(
                result[name], target.device_mesh, target.placements, src_data_rank=None
            )
    return result


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor; its class takes a second to import
