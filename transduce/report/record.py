"""The record of a training that a run directory keeps: learning curve, samples, scores; as far as it has them."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.files import read_json_lines, regular
from transduce.plot import KINDS, MOST_POINTS, NAMES, Points, curves, spread
from transduce.run import METRICS, SAMPLES

LOOKS = 12
"""Validations whose samples are told, in equal steps."""


@dataclass(frozen=True)
class Curve:
    """What a metric was in the course of a training."""

    name: str
    label: str
    training: Points
    validation: Points


@dataclass(frozen=True)
class Sample:
    """A held-out example, and what the model made of it by and by."""

    source: str
    reference: str
    outputs: list[tuple[int, str]]
    """Pairs of update and text."""


@dataclass(frozen=True)
class HeldOut:
    """A score on held-out data."""

    data: str
    """What the data is: test, or validation."""
    search: str
    """How the outputs were searched, such as beam5; "" where nothing was."""
    measure: str
    value: float
    low: float | None = None
    """Where an interval that holds the value begins, if it is known."""
    high: float | None = None
    signature: str = ""


@dataclass(frozen=True)
class Record:
    """All of it."""

    curves: list[Curve]
    samples: list[Sample]
    scores: list[HeldOut]


def record(directory: Path) -> Record:
    """The record in this run directory; what is not there, or not as a recipe writes it, is left out."""
    return Record(_curves(directory / METRICS), samples(directory / SAMPLES, LOOKS), _scores(directory))


def _curves(path: Path) -> list[Curve]:
    with suppress(OSError, KeyError):  # of lines that somebody else wrote
        return [
            Curve(name, NAMES.get(name, name), *(spread(parts.get(label, []), MOST_POINTS) for label in KINDS))
            for name, parts in curves(read_json_lines(path)).items()
        ]
    return []


def _number(value: Any) -> float | None:
    """A number that JSON has and browsers read; None of all else."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def samples(folder: Path, most: int) -> list[Sample]:
    """The examples of a run's folder of samples, as they came out at so many validations at most."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    paths = [path for path in folder.glob("*.tsv") if path.stem.isdecimal() and path.is_file()]
    for path in spread(sorted(paths, key=lambda path: int(path.stem)), most):
        for line in path.read_text("utf-8", errors="replace").split("\n"):
            if len(parts := line.split("\t")) == 3:
                found.setdefault((parts[0], parts[1]), []).append((int(path.stem), parts[2]))
    return [Sample(*pair, outputs) for pair, outputs in found.items()]


def _scores(directory: Path) -> list[HeldOut]:
    found: list[HeldOut] = []
    for name in ("test", "validation"):
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            plain = json.loads(regular(directory / f"{name}.json").read_text("utf-8"))
            if isinstance(plain, dict):
                plain = [{"search": "", "measure": key, "value": value, "score": ""} for key, value in plain.items()]
            for each in plain:
                search, measure, signature = (str(each[key]) for key in ("search", "measure", "score"))
                value, low, high = (_number(each.get(key)) for key in ("value", "low", "high"))
                if value is not None:
                    found.append(HeldOut(name, search, measure, value, low, high, signature))
    return found
