"""COMET with a stand-in of unbabel-comet: what is asked of it, and what becomes of its judgements."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import transduce as td
from tests.runs import LITTLE, random_run
from transduce.cli.main import main
from transduce.data.parallel_text import ParallelText
from transduce.experiment import validation
from transduce.score import measures as module
from transduce.score.measures import comet

MISSING = (
    "COMET needs the library comet, but it is not installed; in a clone of transduce: pip install '.[comet]' in an "
    "environment of its own, without constraints.txt, as it wants numpy below 2"
)
SOURCES, REFERENCES = ["a b", "c", "d e f", "g"], ["x y", "z", "u v w", "q"]


class Judge:
    """A line is worth the share of the reference that its letters make up; every call is kept."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[dict[str, str]], dict]] = []

    def download_model(self, name: str) -> str:
        return f"/cache/{name}"

    def load_from_checkpoint(self, path: str) -> "Judge":
        assert path == "/cache/Unbabel/wmt22-comet-da"
        return self

    def predict(self, data, **how) -> SimpleNamespace:
        self.calls.append((data, how))
        self.dtype = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype  # as a model in Lightning computes
        scores = [len(set(row["mt"]) & set(row["ref"])) / len(set(row["ref"])) for row in data]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def judge(monkeypatch) -> Judge:
    got = Judge()
    monkeypatch.setitem(sys.modules, "comet", got)
    monkeypatch.setattr("transduce.errors.find_spec", lambda name: name == "comet")
    monkeypatch.setattr(module, "version", lambda name: {"unbabel-comet": "2.2.7"}[name])
    module._model.cache_clear()
    yield got
    module._model.cache_clear()


def test_the_score_is_the_mean_judgement_times_100(judge):
    score = comet.with_sources(SOURCES)(["x y", "", "u", "q"], REFERENCES, resamples=0)
    assert score.value == pytest.approx(100 * (1 + 0 + 1 / 4 + 1) / 4)  # the space is a letter here
    assert (score.n, score.low, score.name) == (4, None, "COMET")
    assert score.signature == "model:Unbabel/wmt22-comet-da|scale:100|version:2.2.7"
    ((data, how),) = judge.calls
    assert data[2] == {"src": "d e f", "mt": "u", "ref": "u v w"} and how["progress_bar"] is False


def test_comet_computes_in_float32_under_autocast(judge, monkeypatch):
    monkeypatch.setattr("transduce.device.default_device", lambda: "cpu")
    with torch.autocast("cpu", torch.bfloat16):
        comet.with_sources(SOURCES)(REFERENCES, REFERENCES, resamples=0)
    assert judge.dtype == torch.float32


def test_interval_equals_the_quantiles_of_all_draws(judge):
    """All 4^4 draws of four lines, instead of a thousand random ones."""
    score = comet.with_sources(SOURCES)(["x y", "", "u", "q"], REFERENCES, resamples=4000)
    judged = np.array([100.0, 0.0, 25.0, 100.0])
    every = [judged[list(np.unravel_index(i, (4, 4, 4, 4)))].mean() for i in range(256)]
    assert (score.low, score.high) == pytest.approx(np.quantile(every, (0.025, 0.975)), abs=7)
    assert score.signature.startswith("bs:4000|seed:12345|")


def test_two_systems_are_compared_on_the_same_draws(judge):
    measure, right = comet.with_sources(SOURCES * 10), REFERENCES * 10
    got = measure.compare(right, [""] * 40, right, resamples=200)
    assert got.difference == 100 and got.p_value == pytest.approx(1 / 201)
    assert measure.compare(right, right, right, resamples=200).p_value == 1.0


def test_missing_sources_and_library_are_errors(judge, monkeypatch):
    with pytest.raises(ValueError, match="the sources are sound"):
        comet.with_sources(None)
    with pytest.raises(ValueError, match="sources has none"):
        comet(["a"], ["b"])
    monkeypatch.setattr("transduce.errors.find_spec", lambda name: None)
    with pytest.raises(ValueError) as error:
        validation._scoring(["bleu"], "comet", REFERENCES, SOURCES, None)
    assert str(error.value) == MISSING


def test_validation_by_comet(judge, tmp_path, monkeypatch):
    """With the held-out sources."""
    monkeypatch.setattr(validation, "held_out_loss", lambda model, batches: 2.0)
    monkeypatch.setattr(td.Translator, "__call__", lambda self, lines, how: ["x y", "", "u", "q"])
    translator = td.load_translator(random_run(tmp_path / "run", model=LITTLE))
    text = ParallelText(SOURCES, REFERENCES)
    got = validation.translation_validator(translator, text, [], by="comet")(translator.model)
    assert got.by == "comet" and got.score == got.metrics["comet"] == pytest.approx(56.25)
    assert [row["src"] for row in judge.calls[0][0]] == SOURCES


def test_score_comet_reads_three_files(judge, tmp_path, capsys, monkeypatch):
    for name, lines in (("src", SOURCES), ("hyp", ["x y", "", "u", "q"]), ("ref", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    arguments = ["score", "comet", "hyp", "ref", "--source", "src", "--resamples", "0"]
    assert main(arguments) == 0
    want = "COMET 56.25 model:Unbabel/wmt22-comet-da|scale:100|version:2.2.7\nover 4 lines\n"
    assert capsys.readouterr().out == want
    monkeypatch.setattr("transduce.errors.find_spec", lambda name: None)
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"transduce: {MISSING}\n"
