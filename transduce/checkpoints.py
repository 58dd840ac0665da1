"""The checkpoints of a run directory: their weights, their scores, and their mean."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from transduce.errors import InputError
from transduce.files import check_undamaged, numbered, read_json, read_weights

WEIGHTS, CHECKPOINTS, STATE = "model.safetensors", "checkpoints", "state.json"


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return numbered(directory / CHECKPOINTS)


def checkpoint_weights(directory: Path, updates: Sequence[int]) -> list[Path]:
    """The weight files of these updates' checkpoints."""
    return [directory / CHECKPOINTS / f"{update:08d}" / WEIGHTS for update in updates]


def validated_checkpoints(directory: Path) -> list[tuple[Path, float]]:
    """The validated checkpoints of a run with their scores (higher is better), oldest first.

    Raises:
        InputError: the newest checkpoint does not list the scores of the validations.
    """
    paths = checkpoints(directory)
    if not paths:
        return []
    path = paths[-1] / STATE
    state = read_json(path)
    try:
        scores = {int(update): float(score) for update, score in state["validations"]}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} must list validations as pairs of update and score, but it does not"
        ) from error
    return [(path, scores[int(path.name)]) for path in paths if int(path.name) in scores]


def weights_path(directory: Path) -> Path:
    """The weights to decode with: the finished model, or the newest checkpoint while there is none.

    Raises:
        InputError: there are none.
    """
    for path in (directory, *reversed(checkpoints(directory))):
        if (path / WEIGHTS).is_file():
            return path / WEIGHTS
    raise InputError(
        f"a run needs weights, but {directory} has neither {WEIGHTS} nor a checkpoint; train it "
        "first"
    )


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several weight files, summed in float64.

    Source: Vaswani et al. (2017), section 6.1, "checkpoint averaging".
    """
    if not paths:
        raise InputError("an average needs at least one checkpoint, but there is none")
    for path in paths:
        check_undamaged(path)
    first = read_weights(paths[0])
    total = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        weights = read_weights(path)
        if weights.keys() != total.keys():
            raise InputError(
                f"checkpoints to average must have the same names, but {paths[0]} and {path} differ"
            )
        total = {name: total[name] + tensor.double() for name, tensor in weights.items()}
    return {name: (tensor / len(paths)).to(first[name].dtype) for name, tensor in total.items()}
