"""scripts/corpora/speak.py with espeak-ng itself where it is installed, and with a tone in its place elsewhere."""

import shutil

import numpy as np
import pytest
import soundfile

from scripts.corpora import speak
from transduce.data.manifest import Recording, read_manifest, write_manifest

TEXTS = ["ONE  TWO", "THREE", "", "...", "FOUR FIVE"]
NAMES = ["m1", "f2", "klatt"]


@pytest.fixture
def spoken(monkeypatch, tmp_path):
    """The spoken sentences, each a tone of its own; and a file of the text."""
    said = []

    def tone(text, voice, speed, pitch):
        said.append((text, voice, speed, pitch))
        return 0.5 * np.sin(np.arange(1600 * len(text)) * pitch / 100)

    monkeypatch.setattr(speak, "speak", tone)
    monkeypatch.setattr(speak, "variants", lambda: NAMES)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    return said


def test_every_sentence_has_several_voices(spoken, tmp_path, capsys):
    out = tmp_path / "out"
    how = [str(tmp_path / "text.txt"), str(out), "--each", "3", "--voices", "en-us", "en-gb", "--seed", "5"]
    assert speak.main(how) == 0
    recordings = read_manifest(out / "train.tsv")
    assert [r.text for r in recordings] == ["ONE TWO", "THREE", "FOUR FIVE"] * 3
    assert sorted(text for text, *_ in spoken) == sorted(["one two", "three", "four five"] * 3)
    for r in recordings:
        accent, name = r.speaker.split("+")
        assert accent in ("en-us", "en-gb") and name in NAMES
        info = soundfile.info(r.audio)
        assert (info.samplerate, info.frames / 16000) == (16000, pytest.approx(r.seconds, abs=1e-3))
        assert info.frames == 1600 * len(r.text)
    speeds, pitches = ({each[i] for each in spoken} for i in (2, 3))
    assert min(speeds) >= 105 and max(speeds) <= 180 and min(pitches) >= 25 and max(pitches) <= 90
    assert len(pitches) > 3 and "9 spoken" in capsys.readouterr().out

    before, n = (out / "train.tsv").read_text(), len(spoken)
    recordings[4].audio.unlink()
    assert speak.main(how) == 0
    assert len(spoken) == n + 1 and (out / "train.tsv").read_text() == before, "only missing files are made again"
    assert speak.main([*how[:-1], "6"]) == 0
    others = {r.audio for r in read_manifest(out / "train.tsv")} - {r.audio for r in recordings}
    assert others and len(spoken) == n + 1 + len(others), "another voice has another file"


def test_existing_recordings_are_added(spoken, tmp_path):
    people = [Recording("a", tmp_path / "far" / "a.wav", 1.0, "ann", "HELLO", {"age": "7"})]
    write_manifest(tmp_path / "people.tsv", people)
    how = ["--each", "1", "--beside", str(tmp_path / "people.tsv")]
    assert speak.main([str(tmp_path / "people.tsv"), str(tmp_path / "out"), *how]) == 0
    first, second = read_manifest(tmp_path / "out" / "train.tsv")
    assert (first.id, first.audio.resolve(), first.speaker) == ("a", people[0].audio.resolve(), "ann")
    assert second.text == "HELLO" and second.speaker != "ann"


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        (
            "\n \n",
            [],
            "text to speak must have a line with a letter or a digit, but {path} has none; name another file",
        ),
        ("hello\n", ["--each", "0"], "--each must be at least 1, but is 0"),
    ],
    ids=["no text", "never"],
)
def test_blank_text_and_zero_repetitions_are_refused(spoken, tmp_path, capsys, text, more, message):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    assert speak.main([str(path), str(tmp_path / "out"), *more]) == 2
    assert capsys.readouterr().err == f"transduce: {message.format(path=path)}\n"
    assert not spoken


def test_missing_espeak_is_an_error(monkeypatch, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("hello\n")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert speak.main([str(tmp_path / "text.txt"), str(tmp_path / "out")]) == 2
    assert "espeak-ng must be installed, but is not; try: apt install espeak-ng" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("espeak-ng"), reason="needs espeak-ng")
def test_espeak_speaks(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("hello world, how are you\n")
    assert "m3" in speak.variants() and not any("robo" in name.lower() for name in speak.variants())
    assert speak.main([str(tmp_path / "text.txt"), str(tmp_path / "out"), "--each", "3"]) == 0
    sounds = [soundfile.read(r.audio)[0] for r in read_manifest(tmp_path / "out" / "train.tsv")]
    assert len(sounds) == 3 and all(0.5 < len(sound) / 16000 < 5 and np.abs(sound).max() > 0.3 for sound in sounds)
    capsys.readouterr()
    assert speak.main([str(tmp_path / "text.txt"), str(tmp_path / "out"), "--voices", "xx-nowhere"]) == 2
    assert "transduce: espeak-ng must speak as xx-nowhere+" in capsys.readouterr().err
