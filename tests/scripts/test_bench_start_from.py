"""scripts/bench_start_from.py runs, and its first run never hears the new words."""

import os
import re
import subprocess
import sys

import pytest

from scripts import bench_start_from
from transduce.data.speech.manifest import read_manifest


def test_the_new_words_are_in_every_sentence_or_in_none(tmp_path):
    bench_start_from.split(tmp_path, 200, None)
    texts = {path.stem: [r.text.split() for r in read_manifest(path)] for path in tmp_path.glob("*.tsv")}
    assert len(texts) == 6 and len(texts["train"]) == 200
    for name, lines in texts.items():
        assert lines
        for line in lines:
            assert any(word in line for word in bench_start_from.WORDS) is not name.startswith("first_")
    whole = [len(read_manifest(bench_start_from.SOUND / f"{name}.tsv")) for name in ("valid", "test")]
    assert [len(texts[n]) + len(texts[f"first_{n}"]) for n in ("valid", "test")] == whole


@pytest.mark.long
def test_it_gives_time_and_score_of_four_runs(tmp_path):
    words = [sys.executable, bench_start_from.__file__, str(tmp_path), "--tiny"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    row = r"(first|started|started, LoRA|scratch) +(\d) updates +[\d.]+ min   WER greedy [\d.]+, beam2 [\d.]+, .*"
    rows = [re.fullmatch(row, line).groups() for line in done.stdout.splitlines()]
    assert rows == [("first", "4"), ("started", "2"), ("started, LoRA", "2"), ("scratch", "3")]
    assert "starts from" in done.stderr and "trained: " in done.stderr
