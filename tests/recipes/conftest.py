"""One training of every recipe, made once; and recipes that prepare everything and train nothing."""

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from recipes import language_model, masked_language_model, speech_to_text, translation
from tests.recipes import small
from transduce.files import save_weights
from transduce.train.trainer import Trainer

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def parallel_text(once: Once) -> Path:
    """A folder with small files of parallel text."""
    return once("recipes-parallel-text", small.parallel_text)


@pytest.fixture(scope="session")
def recordings(once: Once) -> Path:
    """A folder with a few recordings of tones and their manifests."""
    return once("recipes-recordings", small.recordings)


@pytest.fixture(scope="session")
def running_text(once: Once) -> Path:
    """A folder with a small text."""
    return once("recipes-running-text", small.running_text)


@dataclass(frozen=True)
class Finished:
    """What a recipe left behind and printed, and the experiment."""

    x: Any
    scores: dict[str, float]
    printed: str

    @property
    def run(self) -> Path:
        """The run directory, which is read only."""
        return self.x.run


def dot(*parts: Any) -> None:
    """Draw a picture that takes no time."""
    matplotlib.image.imsave(parts[-1], np.zeros((1, 1, 3)))


def without_pictures(patch: pytest.MonkeyPatch) -> None:
    """Draw dots instead: real ones take longer than a small training."""
    patch.setattr("transduce.train.log.learning_curve", dot)
    patch.setattr("transduce.tasks.seq2seq.attention_map", dot)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings draw nothing but dots."""
    without_pictures(monkeypatch)


def trained(once: Once, recipe: Any, name: str, small_one: Callable[..., Any], data: Path) -> Finished:
    """This recipe, trained once for all test processes: two updates, validation, report; speech alone with pictures."""

    def make(folder: Path) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.MonkeyPatch.context() as patch:
            if name != "speech":
                without_pictures(patch)
            scores = recipe.run(small_one(folder / "run", data))
        (folder / "scores.json").write_text(json.dumps(scores))
        (folder / "printed.txt").write_text(printed.getvalue())

    folder = once(f"recipes-{name}", make)
    scores = json.loads((folder / "scores.json").read_text())
    return Finished(small_one(folder / "run", data), scores, (folder / "printed.txt").read_text())


@pytest.fixture(scope="session")
def translation_run(once: Once, parallel_text: Path) -> Finished:
    """A finished run of the translation recipe."""
    return trained(once, translation, "translation", small.translator, parallel_text)


@pytest.fixture(scope="session")
def speech_run(once: Once, recordings: Path) -> Finished:
    """A finished run of the speech recipe."""
    return trained(once, speech_to_text, "speech", small.transcriber, recordings)


@pytest.fixture(scope="session")
def language_run(once: Once, running_text: Path) -> Finished:
    """A finished run of the language model's recipe."""
    return trained(once, language_model, "language", small.generator, running_text)


@pytest.fixture(scope="session")
def masked_run(once: Once, running_text: Path) -> Finished:
    """A finished run of the masked language model's recipe."""
    return trained(once, masked_language_model, "masked", small.fill_mask, running_text)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Any], Any], Any], Trainer]]:
    """`untrained(run, x)` runs a recipe without updates; the finished model is the initial one. It gives the trainer.

    Everything before the training is the recipe's own: data, tokenizers, model, objective, validation, and the run
    directory with the resolved configuration. So is what comes after it, but for the page of a run without scores.
    """
    trainers: list[Trainer] = []

    def no_update(trainer: Trainer) -> None:
        trainers.append(trainer)

    def finish(directory: Path, trainer: Trainer) -> None:
        save_weights(directory / "model.safetensors", trainer.model)

    monkeypatch.setattr("transduce.experiment.run.Trainer.run", no_update)
    monkeypatch.setattr("transduce.experiment.run.finish", finish)
    monkeypatch.setattr("transduce.experiment.run.draw_finished", lambda directory, trainer, example: None)
    monkeypatch.setattr("transduce.experiment.run.write_reports", lambda directory: None)

    def prepared(run: Callable[[Any], Any], x: Any) -> Trainer:
        run(x)
        return trainers.pop()

    yield prepared
    assert not trainers
