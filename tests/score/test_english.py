"""Error rates after Whisper's normalization of English."""

import json
import sys
from dataclasses import replace
from importlib.resources import files

import jiwer
import pytest

from transduce.cli.main import main
from transduce.score.wer import wer

SAID = [
    "Mr. Smith's colour TV cost twenty-five dollars, um, and 50 cents!",
    "I'm gonna go; it's the 3rd of May, isn't it?",
    "[laughter] They've realised (sort of) that we won't.",
]
WRITTEN = [
    "mister smith's color tv cost $25 and fifty cents",
    "i am going to go it is the third of may is not it",
    "They have realized that we will not go",
]


@pytest.mark.long
def test_normalization_equals_that_of_transformers(tmp_path, capsys):
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    spelling = json.loads(files("whisper_normalizer").joinpath("normalizers/english.json").read_text())
    theirs = EnglishTextNormalizer(spelling)
    sides = [[theirs(line) for line in lines] for lines in (WRITTEN, SAID)]
    want = 100 * jiwer.wer(sides[1], sides[0])
    for name, lines in (("hyp", WRITTEN), ("ref", SAID)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    assert main(["score", "wer", str(tmp_path / "hyp"), str(tmp_path / "ref"), "--english"]) == 0
    printed = capsys.readouterr().out
    assert 0 < want < 100 * jiwer.wer(SAID, WRITTEN) and printed.startswith(f"WER {want:.2f} ")
    assert "|norm:whisper-en-" in printed


def test_normalize_and_english_exclude_each_other(tmp_path, capsys):
    (tmp_path / "a").write_text("one\n")
    assert main(["score", "wer", *[str(tmp_path / "a")] * 2, "--english", "--normalize"]) == 2
    assert "normalize=True and english=True" in capsys.readouterr().err


def test_missing_library_is_named(monkeypatch):

    monkeypatch.setitem(sys.modules, "whisper_normalizer", None)
    with pytest.raises(ValueError, match=r"pip install '\.\[english\]', or use --normalize$"):
        replace(wer, english=True)(["one"], ["one"])
