"""How transduce transcribe searches, and how much at a time."""

import json
from pathlib import Path

import numpy as np
import pytest

import transduce as td
from tests.runs import random_speech_run, record, sentences
from tests.tasks.test_search import SHORT, search_directly
from transduce.cli.common import Columns, Machine
from transduce.cli.main import main
from transduce.cli.transcribe import Transcription, TranscriptionOutput
from transduce.data.features import VectorConfig, VectorReader

PLAIN = {"output": TranscriptionOutput(), "columns": Columns()}
CPU = ["--device", "cpu"]


def with_decoding(run: Path, **fields) -> Path:
    """The run, with these fields of Decoding as its own."""
    config = json.loads((run / "config.json").read_text())
    config["experiment"]["decoding"] = fields
    (run / "config.json").write_text(json.dumps(config))
    return run


@pytest.fixture(scope="module")
def random(tmp_path_factory) -> Path:
    """It knows nothing, so every way to search finds something else."""
    fields = {name: getattr(SHORT, name) for name in ("length_ratio", "length_extra", "no_repeat_ngram")}
    return with_decoding(random_speech_run(tmp_path_factory.mktemp("cli") / "random"), **fields)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> list[Path]:
    return [r.audio for r in record(tmp_path_factory.mktemp("sound"), sentences(5))]


def lines_of(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def test_options_reach_the_search(random, recordings, capsys):
    loaded, got = td.load(random), []
    for options, way in (
        ([], {}),
        (["--greedy"], {"beam_size": 1}),
        (["--beam-size", "3"], {"beam_size": 3}),
        (["--alpha", "2"], {"alpha": 2.0}),
        (["--ctc-weight", "0.6"], {"ctc_weight": 0.6}),
    ):
        assert main(["transcribe", str(random), *map(str, recordings), *CPU, "--format", "tsv", *options]) == 0
        rows = [line.split("\t") for line in lines_of(capsys.readouterr().out)[1:]]
        texts, scores = zip(*(search_directly(loaded, path, **way) for path in recordings), strict=True)
        assert [row[4].strip() for row in rows] == list(texts), options
        assert [float(row[3]) for row in rows] == pytest.approx(scores, abs=2e-4), options
        assert scores not in [pytest.approx(others, abs=0.01) for others in got], f"{options} change nothing"
        got.append(scores)


def test_batch_tokens_limits_the_search_batch(random, recordings, monkeypatch, capsys):
    sizes, search = [], td.Transcriber._search
    monkeypatch.setattr(
        td.Transcriber, "_search", lambda *parts, **settings: sizes.append(len(parts[1])) or search(*parts, **settings)
    )
    for options in ([], ["--batch-tokens", "1"]):
        assert main(["transcribe", str(random), *map(str, recordings), *CPU, *options]) == 0
    assert sizes == [5, *[1] * 5]
    lines = lines_of(capsys.readouterr().out)
    assert lines[:5] == lines[5:]


def test_audio_is_read_ten_minutes_at_a_time_and_segments_advance_progress(tmp_path, monkeypatch):
    """Vectors of ten seconds each: when a file is read, the ten minutes before it are transcribed."""
    feature_extractor = VectorReader(VectorConfig(n_features=5, hop=10.0))
    run = with_decoding(
        random_speech_run(tmp_path / "run", feature_extractor), length_ratio=0.0, length_extra=3, max_seconds=350.0
    )
    paths, rng = [], np.random.default_rng(1)
    for i, seconds in enumerate((400, 300, 10, 700, 10)):
        paths.append(tmp_path / f"{i}.npy")
        np.save(paths[-1], rng.normal(size=(seconds // 10, 5)))
    steps, read, stream = [], VectorReader.__call__, td.Transcriber.stream

    def reading(self, path):
        steps.append(path.stem)
        return read(self, path)

    def transcribing(self, sounds, *args, **kwargs):
        steps.append(len(sounds))
        return stream(self, sounds, *args, **kwargs)

    monkeypatch.setattr(VectorReader, "__call__", reading)
    monkeypatch.setattr(td.Transcriber, "stream", transcribing)
    progress = []
    job = Transcription(run=run, machine=Machine(device="cpu"), settings={}, **PLAIN)
    rows = job.rows(job.load(), 0, paths, lambda *step: progress.append(step))
    assert steps == ["0", "1", 3, "2", "3", 3, "4", 1]  # the first and the fourth have two segments, a stretch each
    assert sum(n for n, _ in progress) == 2 + 1 + 1 + 2 + 1 == len(paths) + sum(more for _, more in progress)
    together = td.load(run)(paths)
    assert lines_of(rows.text) == together and len(set(together)) > 1
