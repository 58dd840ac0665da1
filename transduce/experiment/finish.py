"""The end of a training: the best of several candidates becomes the finished model."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from transduce.checkpoints import average, checkpoint_weights
from transduce.files import copy_weights, set_weights, weights_of, write_file
from transduce.run import SAMPLES, WEIGHTS, serialize
from transduce.tasks.load import load
from transduce.train.adapt import merge, merged
from transduce.train.parallel import gathered, parts_like
from transduce.train.state import Progress, Validation
from transduce.train.trainer import Trainer


class Candidate(NamedTuple):
    """Weights that may become the finished model."""

    updates: list[int]
    weights: Callable[[], dict[str, Tensor]]


def mean_candidates(progress: Progress, *, last: int, best: int) -> dict[str, list[int]]:
    """Return, by name, the updates of checkpoints whose mean may become the finished model.

    Args:
        last: number of checkpoints to average from the end, without those of the first half of the
            training.
        best: number of the best checkpoints to average.
    """
    means = {
        "best": progress.best(best),
        "last": [update for update in progress.last(last) if 2 * update > progress.update],
    }
    if set(means["best"]) == set(means["last"]):
        del means["last"]
    return {
        f"mean of the {len(updates)} {name}": updates
        for name, updates in means.items()
        if len(updates) > 1
    }


def finish(
    directory: Path, trainer: Trainer, draw: Callable[[Any, Path], None] | None = None
) -> None:
    """Make the best candidate the finished model, print which it is, and draw its attention.

    Candidates are the best checkpoint, means of checkpoints, and the moving average. All are
    validated, so the finished model is never worse on the validation data than any checkpoint.
    """
    progress, config = trainer.progress, trainer.config
    averaged: dict[str, Tensor] = {}
    if trainer.ema:
        weights: dict[str, Tensor] = {n: trainer.model.get_parameter(n) for n in trainer.ema}
        copy_weights(weights, trainer.ema, "the moving average")
        averaged = {name: w.clone() for name, w in gathered(merged(trainer.model)).items()}
    merge(trainer.model)
    trainer.world.broadcast(None)  # by now the first process has written the checkpoints
    means = mean_candidates(progress, last=config.keep_last, best=config.keep_best)
    candidates = {
        name: Candidate(updates, partial(average, checkpoint_weights(directory, updates)))
        for name, updates in {"best checkpoint": progress.best(1), **means}.items()
    }
    if averaged:
        candidates["moving average"] = Candidate([progress.update], lambda: averaged)
    results = {"best checkpoint": progress.best_validation()}
    for name, candidate in candidates.items():
        if name not in results:
            weights = parts_like(weights_of(trainer.model), candidate.weights())
            set_weights(trainer.model, weights, name)
            results[name] = trainer.validation()
    chosen = min(results, key=lambda name: _rank(results[name]))
    if trainer.world.first:
        write_file(directory / WEIGHTS, serialize(candidates[chosen].weights()))
        if draw is not None:
            name = f"{progress.update:08d}.attention.png"
            draw(load(directory, trainer.device), directory / SAMPLES / name)
    updates = ", ".join(map(str, sorted(candidates[chosen].updates)))
    scores = ", ".join(f"{name} {abs(result.score):.3f}" for name, result in results.items())
    *_, last = results.values()
    print(f"finished model: {chosen} (update {updates}); {last.by}: {scores}")


def _rank(result: Validation) -> tuple[float, float]:
    return -result.score, result.metrics.get("loss", math.inf)
