"""The record of a training in its run directory: progress, learning curves, samples and scores, as
far as they exist."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from transduce.config import Json, flatten, from_dict
from transduce.errors import InputError
from transduce.files import read_json, regular, write_file
from transduce.plot import NAMES, Points, curves, spread
from transduce.run import CONFIG, ERRORS, SAMPLES, WEIGHTS, checkpoints, read_metrics

N_VALIDATIONS = 12
"""Number of validations whose samples are in a record, evenly spaced."""

SCORES = ("test.json", "validation.json")
"""The files with scores on held-out data."""

BEFORE = "model.before.safetensors"
"""The model before the last one."""

FINISHED = "finished"
"""In a checkpoint, once a model has been made of it and those before: a file without content."""

LARGEST = 1e300
"""Values below this are numbers in JSON and in browsers."""


@dataclass(frozen=True)
class Curve:
    """The values of a metric in the course of a training."""

    name: str
    label: str
    training: Points
    validation: Points


@dataclass(frozen=True)
class Sample:
    """A held-out example, and the model's outputs for it."""

    source: str
    reference: str
    outputs: list[tuple[int, str]]
    """Pairs of update and text."""


@dataclass(frozen=True, kw_only=True)
class HeldOutScore:
    """A score on held-out data: an object in test.json."""

    search: str = ""
    """How the outputs were searched, such as beam5; "" if there was no search."""
    measure: str
    value: float
    low: float | None = None
    """The lower end of the 95 % interval, if it is known."""
    high: float | None = None
    group: str = ""
    """The part of the data, such as a direction; "" for all data."""
    score: str = ""
    """The score in words, with its interval and signature."""


@dataclass(frozen=True)
class Record:
    """The whole record of a training."""

    progress: str
    """The last update, the epoch, the minutes and the speed; "" before the first line."""
    curves: list[Curve]
    samples: list[Sample]
    scores: dict[str, list[HeldOutScore]]
    """Scores by data: test, or validation."""


def record(directory: Path) -> Record:
    """The record in this run directory, without parts that are missing or not in a recipe's
    format."""
    metrics = read_metrics(directory)
    scores = {}
    for path in score_files(directory):
        with suppress(OSError, InputError):
            scores[path.stem] = read_scores(path)
    return Record(
        ", ".join(filter(None, progress(directory, metrics))),
        [
            Curve(name, NAMES.get(name, name), *lines)
            for name, lines in curves(metrics).items()
            if any(lines)
        ],
        read_samples(directory / SAMPLES),
        scores,
    )


def progress(directory: Path, metrics: list[Json]) -> tuple[str, str]:
    """The progress of a training: the update and the epoch; and the minutes and the speed."""
    if not metrics:
        return "", ""
    most = None
    with suppress(OSError, InputError):
        most = flatten(read_json(directory / CONFIG)).get("experiment.training.max_updates")
    last = metrics[-1]
    bound = f" of {most}" if most else ""
    updates = f"update {last.get('update')}{bound}, epoch {last.get('epoch', 0) + 1}"
    speeds = [line["tokens_per_second"] for line in metrics if "tokens_per_second" in line]
    speed = f", {speeds[-1]:,.0f} tokens/s" if speeds else ""
    return updates, f"{last.get('seconds', 0) / 60:.1f} min{speed}"


def read_samples(folder: Path) -> list[Sample]:
    """The examples of a folder of samples, with the outputs of some validations."""
    samples: dict[tuple[str, str], list[tuple[int, str]]] = {}
    paths = [path for path in folder.glob("*.tsv") if path.stem.isdecimal() and path.is_file()]
    for path in spread(sorted(paths, key=lambda path: int(path.stem)), N_VALIDATIONS):
        for line in path.read_text("utf-8", errors="replace").split("\n"):
            if len(cells := line.split("\t")) == 3:
                source, reference, output = cells
                samples.setdefault((source, reference), []).append((int(path.stem), output))
    return [Sample(*pair, outputs) for pair, outputs in samples.items()]


def score_files(directory: Path) -> Iterator[Path]:
    """The files of a run with scores on held-out data."""
    return (directory / name for name in SCORES if (directory / name).exists())


def replace_model(directory: Path, weights: bytes) -> bool:
    """Make these weights the finished model of a run; another one becomes BEFORE, and its scores
    and errors are renamed: test.json becomes test.before.json.

    Returns:
        Whether there was another one.
    """
    path = directory / WEIGHTS
    replaced = path.read_bytes() if path.is_file() else weights
    if replaced != weights:
        former = directory / BEFORE
        scores = [directory / name for name in (*SCORES, ERRORS)]
        before = [each.with_suffix(f".before{each.suffix}") for each in scores]
        if not former.is_file() or former.read_bytes() != replaced:  # else a call was killed here
            for each in before:
                each.unlink(missing_ok=True)  # of an earlier model
            write_file(former, replaced)
        for now, then in zip(scores, before, strict=True):
            if now.exists():
                now.rename(then)
    write_file(path, weights)
    (checkpoints(directory)[-1] / FINISHED).touch()
    return replaced != weights


def is_finished(directory: Path) -> bool:
    """Whether a run has a model that was made after its newest checkpoint. The times of the files
    do not say so, as a copy of the run has other ones."""
    newest = checkpoints(directory)[-1:]
    return (directory / WEIGHTS).is_file() and all((path / FINISHED).exists() for path in newest)


def read_scores(path: Path) -> list[HeldOutScore]:
    """The scores in a file that a recipe wrote, without values that are not finite.

    Raises:
        InputError: it is not in the format that recipes write.
    """
    try:
        plain = json.loads(regular(path).read_bytes())
        if isinstance(plain, dict):
            plain = [{"measure": name, "value": value} for name, value in plain.items()]
        return [
            from_dict(HeldOutScore, row, "an entry") for row in plain if abs(row["value"]) < LARGEST
        ]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{path} is not in the format that recipes write ({error!r:.80}); run the recipe again "
            "to write it"
        ) from error
