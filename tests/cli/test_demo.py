"""transduce demo: what it trains, and what it prints for a sentence and a recording."""

import io
import sys

import pytest

from tests.runs import random_run, random_speech_run
from transduce.cli.demo import _two_rows
from transduce.cli.main import main
from transduce.recipes import speech_to_text, translation
from transduce.tasks.outputs import WordAlignment


def test_aligned_words_are_printed_above_each_other():
    alignment = WordAlignment(["Open", "the", "old", "letter"], ["Öffne", "den", "Brief"], [(0, 0), (1, 1), (3, 2)])
    above, below = _two_rows(alignment)
    assert above.split() == ["Öffne", "den", "Brief"]
    assert below.split() == ["Open", "the", "letter"]
    assert [above.index(word) for word in above.split()] == [below.index(word) for word in below.split()]


@pytest.mark.long
def test_demo_runs_are_trained_only_once(tmp_path, monkeypatch, capsys):
    trained = {}

    def instead(make):
        """A run with random weights in place of a training."""

        def run(setting):
            trained[setting.run.name] = setting.training
            assert getattr(setting, "transcripts", True)
            make(setting.run)
            (setting.run / "test.json").write_text("[]")

        return run

    monkeypatch.setattr(translation, "run", instead(random_run))
    monkeypatch.setattr(speech_to_text, "run", instead(random_speech_run))
    for training in (True, False):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Open the letter.\n"), "utf-8"))
        assert main(["demo", str(tmp_path), "--speech"]) == 0
        out = capsys.readouterr().out
        assert out.count("== training") == 2 * training
        assert [line.split()[1] for line in out.splitlines() if ".opus: " in line] == [
            f"000{i}.opus:" for i in range(3)
        ]
    assert (trained["translation"].max_updates, trained["translation"].max_minutes) == (300, None)
    assert (trained["speech"].max_updates, trained["speech"].max_minutes) == (800, None)
