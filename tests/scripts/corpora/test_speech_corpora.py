"""The speech corpora that have a name: the scripts make them, and the recipe's settings read them with --data."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from recipes.speech_to_text import SETTINGS
from scripts.corpora import make_digits
from tests.layouts import Expected, put_digits, put_learners, sound
from transduce.cli.main import main
from transduce.data.manifest import Recording, read_manifest


@pytest.fixture
def digits(tmp_path) -> tuple[Path, Expected]:
    return tmp_path / "fsdd", put_digits(tmp_path / "fsdd")


@pytest.fixture
def learners(tmp_path) -> tuple[Path, Expected]:
    return tmp_path / "speechocean762", put_learners(tmp_path / "speechocean762")


def read(name: str, folder: Path) -> tuple[list[Recording], list[Recording], list[Recording]]:
    """What the recipe reads with --data: training, validation and test."""
    splits = replace(SETTINGS[name][1].corpus, data=folder).read(1)
    for r in (r for split in splits for r in split):
        info = soundfile.info(r.audio)
        assert r.seconds == pytest.approx(info.frames / info.samplerate, abs=1e-3)
    return splits


def by_id(recordings: list[Recording]) -> Expected:
    return {r.id: (r.text, r.speaker, r.audio.resolve()) for r in recordings}


def test_recipe_reads_fsdd_in_its_official_split(digits):
    home, said = digits
    assert main(["data", "get", "fsdd", str(home)]) == 0
    train, valid, test = map(by_id, read("fsdd", home))
    assert test == {name: of for name, of in said.items() if name.endswith(("_0", "_4"))}
    assert {**train, **valid, **test} == said and len(train) + len(valid) + len(test) == len(said)


def test_recipe_reads_speechocean762(learners):
    home, said = learners
    assert main(["data", "get", "speechocean762", str(home)]) == 0
    train, valid, test = splits = read("speechocean762", home)
    assert [len(split) for split in splits] == [2, 1, 1]
    assert {**by_id(train), **by_id(valid), **by_id(test)} == said and test[0].speaker == "0003"
    columns = {r.speaker: r.columns for split in splits for r in split}
    assert columns["0005"] == {"age": "5", "gender": "m"} and columns["0003"] == {"age": "3", "gender": ""}


def test_the_recipe_reads_connected_digits(digits, tmp_path):
    home, said = digits
    assert main(["data", "get", "fsdd", str(home)]) == 0
    sizes = "--train", "4", "--valid", "2", "--test", "3"
    assert make_digits.main([str(home), str(tmp_path / "joined"), *sizes]) == 0
    splits = read("digits", tmp_path / "joined")
    assert [len(split) for split in splits] == [4, 2, 3]
    for r in (r for split in splits for r in split):
        joined = [said[name] for name in r.columns["recordings"].split()]
        assert r.text == " ".join(word for word, *_ in joined) and {by for _, by, _ in joined} == {r.speaker}


def test_all_corpus_settings_of_the_recipe_are_tested():
    assert SETTINGS.keys() - {"commands", "paper", "commands_german", "manifest", "vectors"} == {
        "fsdd",
        "speechocean762",
        "digits",
    }


def test_broken_and_unrelated_files_are_left_out(digits, capsys):
    home, _ = digits
    sound(home / "recordings" / "noise.wav")
    broken = home / "recordings" / "3_george_1.wav"
    broken.write_bytes(b"RIFF and no more")
    assert main(["data", "get", "fsdd", str(home)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{home / 'recordings'} exists: nothing is downloaded",
        f"{home / 'train.tsv'}: 18 recordings, 0:00:02 in all, 2 speakers",
        "left out 1: a sound that is empty or cannot be read: 3_george_1",
        f"{home / 'test.tsv'}: 12 recordings, 0:00:01 in all, 2 speakers",
    ]
    assert "\n0_george_4\trecordings/0_george_4.wav\t0.104\tgeorge\tzero\n" in (home / "test.tsv").read_text()


@pytest.mark.data
def test_real_fsdd_recordings_give_the_same_manifests(tmp_path):
    """Real digits under their own names; the manifests that lie there are the witness."""
    root = os.environ.get("TRANSDUCE_DATA")
    if not root:
        pytest.skip("needs fsdd inside the folder that TRANSDUCE_DATA names")
    theirs = read_manifest(f"{root}/fsdd/test.tsv")[:20] + read_manifest(f"{root}/fsdd/train.tsv")[:20]
    (tmp_path / "recordings").mkdir()
    for r in theirs:
        samples, rate = soundfile.read(r.audio, dtype="int16")
        soundfile.write(tmp_path / "recordings" / f"{r.id}.wav", samples, rate)
    assert main(["data", "get", "fsdd", str(tmp_path)]) == 0
    ours = {r.id: r for split in ("test", "train") for r in read_manifest(tmp_path / f"{split}.tsv")}
    assert [(ours[r.id].text, ours[r.id].speaker) for r in theirs] == [(r.text, r.speaker) for r in theirs]
    assert [ours[r.id].seconds for r in theirs] == pytest.approx([r.seconds for r in theirs], abs=1e-3)
    assert {r.id for r in theirs[:20]} == {r.id for r in read_manifest(tmp_path / "test.tsv")}
