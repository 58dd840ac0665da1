"""The record of a training in its run directory: learning curves, samples, scores; as far as it has
them."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.errors import InputError
from transduce.files import read_json_lines, regular
from transduce.plot import KINDS, MOST_POINTS, NAMES, Points, curves, spread
from transduce.run import METRICS, SAMPLES

N_VALIDATIONS = 12
"""Validations whose samples are in a record, evenly spaced."""


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


@dataclass(frozen=True)
class HeldOut:
    """A score on held-out data."""

    data: str
    """The data: test, or validation."""
    search: str
    """How the outputs were searched, such as beam5; "" where nothing was."""
    measure: str
    value: float
    low: float | None = None
    """The lower end of the 95 % interval, if it is known."""
    high: float | None = None
    signature: str = ""


@dataclass(frozen=True)
class Record:
    """All of it."""

    curves: list[Curve]
    samples: list[Sample]
    scores: list[HeldOut]


def record(directory: Path) -> Record:
    """The record in this run directory, without what is missing, or not as a recipe writes it."""
    by_metric: list[Curve] = []
    scores: list[HeldOut] = []
    with suppress(OSError, KeyError):
        by_metric = [
            Curve(
                name, NAMES.get(name, name), *(spread(lines.get(k, []), MOST_POINTS) for k in KINDS)
            )
            for name, lines in curves(read_json_lines(directory / METRICS)).items()
        ]
    for path in score_files(directory):
        with suppress(OSError, InputError):
            scores += read_scores(path)
    return Record(by_metric, read_samples(directory / SAMPLES, N_VALIDATIONS), scores)


def read_samples(folder: Path, n_validations: int) -> list[Sample]:
    """The examples of a folder of samples, with the outputs of at most this many validations."""
    samples: dict[tuple[str, str], list[tuple[int, str]]] = {}
    paths = [path for path in folder.glob("*.tsv") if path.stem.isdecimal() and path.is_file()]
    for path in spread(sorted(paths, key=lambda path: int(path.stem)), n_validations):
        for line in path.read_text("utf-8", errors="replace").split("\n"):
            if len(cells := line.split("\t")) == 3:
                source, reference, output = cells
                samples.setdefault((source, reference), []).append((int(path.stem), output))
    return [Sample(*pair, outputs) for pair, outputs in samples.items()]


def score_files(directory: Path) -> list[Path]:
    """The files of a run with scores on held-out data."""
    return [
        path for path in (directory / "test.json", directory / "validation.json") if path.exists()
    ]


def read_scores(path: Path) -> list[HeldOut]:
    """The scores in a file that a recipe wrote, without values that are not finite.

    Raises:
        InputError: it is not as a recipe writes it.
    """
    try:
        plain = json.loads(regular(path).read_bytes())
        if isinstance(plain, dict):
            plain = [
                {"search": "", "measure": name, "value": plain[name], "score": ""} for name in plain
            ]
        scores = []
        for each in plain:
            if abs(each["value"]) < LARGEST:
                search, measure, signature = (
                    str(each[key]) for key in ("search", "measure", "score")
                )
                low, high = (_finite(each.get(key)) for key in ("low", "high"))
                scores.append(
                    HeldOut(path.stem, search, measure, float(each["value"]), low, high, signature)
                )
        return scores
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{path} is not as a recipe writes it ({error!r:.80}); the recipe again makes it anew"
        ) from error


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None
