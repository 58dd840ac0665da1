"""A run is resumed only with the configuration and the text it began with, wherever their files are."""

import itertools
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from recipes import translation
from transduce.config import differences, to_dict
from transduce.experiment.command import choose
from transduce.experiment.config import TranslationExperiment
from transduce.run import load_run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """190 sentences and the same with every word backwards."""
    folder = tmp_path_factory.mktemp("corpus")
    words = ("red green old tiny", "cat dog bird horse", "mat roof tree table", "now then again")
    lines = ["the {} {} sat on the {} {}".format(*some) for some in itertools.product(*(w.split() for w in words))]
    random.Random(1).shuffle(lines)
    for split, part in (("train", lines[:186]), ("valid", lines[186:190])):
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in part))
        backwards = [" ".join(word[::-1] for word in line.split()) for line in part]
        (folder / f"{split}.xx").write_text("".join(f"{line}\n" for line in backwards))
    return folder


def arguments(corpus: Path, run: Path, *more: str) -> list[str]:
    files = [
        f"--{split}-{side}={corpus / split}.{end}"
        for split in ("train", "valid")
        for side, end in (("source", "en"), ("target", "xx"))
    ]
    small = "--model.d-model 16 --model.d-ff 32 --model.n-heads 2 --model.dropout 0.25 --vocab-size 310 --device cpu"
    short = "--training.max-updates 2 --training.validate-every 1 --tokens-per-batch 400"
    return ["files", f"--run={run}", *files, *small.split(), *short.split(), *more]


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> Path:
    """A finished run."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        translation.run(chosen(patch, corpus, run))
    return run


def chosen(monkeypatch, corpus: Path, run: Path, *more: str) -> TranslationExperiment:
    """The configuration that a command line describes."""
    return choose(translation.SETTINGS, arguments(corpus, run, *more), default="commands")


def test_resume_with_another_configuration_names_the_difference(monkeypatch, corpus, whole):
    x = chosen(monkeypatch, corpus, whole, "--training.optim.peak-rate=0.25", "--model.dropout=0.5")
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    rate = translation.SETTINGS["files"][1].training.optim.peak_rate
    with pytest.raises(ValueError) as caught:
        translation.run(x)
    assert str(caught.value) == (
        f"a run must be resumed with the configuration that it began with, but in {whole} this differs: "
        f"model.dropout: 0.25 -> 0.5; training.optim.peak_rate: {rate} -> 0.25. "
        f"Name another directory with --run, and --start-from {whole} to start from its weights"
    )
    assert before == {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}


def test_resume_with_another_text_is_refused(monkeypatch, corpus, whole, tmp_path):
    other = shutil.copytree(corpus, tmp_path / "other")
    lines = (other / "train.en").read_text()
    (other / "train.en").write_text(lines.replace("cat", "tac", 1))
    with pytest.raises(ValueError) as caught:
        translation.run(chosen(monkeypatch, other, whole))
    assert "this differs: data: " in str(caught.value)


def test_resume_with_moved_files_is_the_same_experiment(monkeypatch, corpus, whole, tmp_path):
    """With run and corpus copied elsewhere, the text in one TSV and another name of the device, nothing is left to train."""
    moved = shutil.copytree(whole, tmp_path / "moved")
    (moved / "model.safetensors").unlink()
    sides = [(corpus / f"train.{end}").read_text().splitlines() for end in ("en", "xx")]
    (tmp_path / "train.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in zip(*sides, strict=True)))
    x = chosen(monkeypatch, corpus, moved, "--device=cpu:0")
    files = replace(x.corpus, train_source=None, train_target=None, train_tsv=tmp_path / "train.tsv")
    assert translation.run(replace(x, corpus=files)) == {}
    assert (moved / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_run_goes_on_with_other_limits_of_its_length(monkeypatch, corpus, whole):
    limits = ("--training.max-updates=9", "--training.max-minutes=5", "--training.patience=30")
    training = to_dict(chosen(monkeypatch, corpus, whole, *limits).training)
    run = load_run(whole)
    before = run.experiment["training"]
    assert all(training[name] != before[name] for name in ("max_updates", "max_minutes", "patience"))
    changed = replace(run, experiment=run.experiment | {"training": training})
    assert differences(run.resume_key(), changed.resume_key()) == []
