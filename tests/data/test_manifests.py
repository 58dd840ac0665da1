"""What a recipe reads: three lists of recordings, no speaker of the test anywhere else, and what they are as a hash."""

from dataclasses import replace
from pathlib import Path

import pytest

from transduce.data.manifest import Manifests, Recording, write_manifest
from transduce.data.speech_batches import recordings_fingerprint


@pytest.fixture
def folder(tmp_path) -> Path:
    """Five speakers A to E with four recordings each in train, F in test, A and G in valid."""
    for name, speakers in (("train", "ABCDE" * 4), ("test", "FFF"), ("valid", "AG")):
        recordings = [
            Recording(f"{name}{i}", tmp_path / f"{i}.wav", 1.0, speaker, f"text {i}", {"german": f"Text {i}"})
            for i, speaker in enumerate(speakers)
        ]
        write_manifest(tmp_path / f"{name}.tsv", recordings)
    return tmp_path


def speakers(recordings: list[Recording]) -> str:
    return "".join(sorted({r.speaker for r in recordings}))


def test_training_validation_and_test_manifests_are_read(folder):
    train, valid, test = Manifests(data=folder, valid=Path("valid.tsv"), target_column="german").read(1)
    assert (len(train), len(valid), len(test)) == (20, 2, 3)
    assert train[3].text == "Text 3" and train[3].columns == {"text": "text 3"}
    assert Manifests(train=folder / "train.tsv", valid=folder / "valid.tsv", test=None).read(1)[2] == []


@pytest.mark.parametrize("hold_out", ["speakers", "recordings"])
def test_validation_is_held_out_of_training(folder, hold_out):
    corpus = Manifests(data=folder, hold_out=hold_out, share=0.2)
    everything = {f"train{i}" for i in range(20)}
    seen = []
    for seed in range(5):
        train, valid, _ = corpus.read(seed)
        assert corpus.read(seed)[:2] == (train, valid)
        assert len(valid) == 4 and {r.id for r in train} | {r.id for r in valid} == everything and len(train) == 16
        assert (len(speakers(train)), len(speakers(valid))) == (4, 1) or hold_out == "recordings"
        seen.append(tuple(r.id for r in valid))
    assert len(set(seen)) > 1


@pytest.mark.parametrize(("hold_out", "share"), [("speakers", 0.4), ("recordings", 0.5)])
def test_recordings_without_text_or_sound_are_not_held_out(folder, hold_out, share):
    """Words written for them would be errors; they stay in training, which leaves them out and counts them."""
    rows = [f"nowhere.wav\t\t{name}\tno sound" for name in "ABC"]
    rows += [f"{i}.wav\t1.0\t{name}\t{text}" for i, name in enumerate("ABCDE" * 2) for text in [f"text {i}" * (i % 2)]]
    rows = [f"{i}\t{row}" for i, row in enumerate(rows)]
    (folder / "some.tsv").write_text("\n".join(["id\taudio\tseconds\tspeaker\ttext", *rows, ""]))
    for seed in range(5):
        train, valid, _ = Manifests(data=folder, train=Path("some.tsv"), hold_out=hold_out, share=share).read(seed)
        assert len(valid) == 2 and all(r.text and r.seconds for r in valid), seed
        assert sorted(r.id for r in train + valid) == sorted(map(str, range(13)))


@pytest.mark.parametrize("valid", [None, Path("valid.tsv")])
def test_a_left_out_speaker_is_only_in_the_test(folder, valid):
    train, held_out, test = Manifests(data=folder, valid=valid, leave_out="A").read(1)
    assert speakers(test) == "A" and len(test) == 4
    assert "A" not in speakers(train) + speakers(held_out) and held_out


def test_replayed_recordings_have_their_share_and_stay_in_training(folder):
    """The three speakers A, B and G of another manifest; leave_out takes A from there, too."""
    others = [Recording(f"old{name}", folder / "x.wav", 1.0, name, "old") for name in "ABG"]
    write_manifest(folder / "old.tsv", others)
    corpus = Manifests(data=folder, replay=Path("old.tsv"), replay_share=0.25, canary=Path("valid.tsv"), share=0.6)
    train, valid, _ = corpus.read(1)
    assert [(r.id, r.replay) for r in train[-3:]] == [("oldA", 0.25), ("oldB", 0.25), ("oldG", 0.25)]
    assert {r.replay for r in train[:-3] + valid} == {0} and len(train) + len(valid) == 23
    assert [r.speaker for r in corpus.part(corpus.canary)] == ["A", "G"]
    assert speakers(replace(corpus, leave_out="A", share=0.3).read(1)[0][-2:]) == "BG"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"train": Path("nothing.tsv")},
            "a manifest must exist, but {0}/nothing.tsv does not; use --data DIR, or name the manifests "
            "(transduce data manifest makes some)",
        ),
        ({"replay": Path("empty.tsv")}, "a manifest must have recordings, but {0}/empty.tsv has none"),
        ({"leave_out": "Z"}, "leave_out must be a speaker of the manifests, but 'Z' is not: A, B, C, D, E, F"),
        (
            {"train": Path("test.tsv"), "leave_out": "F", "hold_out": "recordings"},
            "training and validation need recordings, but there are 0 and 0; look at test.tsv, recordings and leave_out='F'",
        ),
        (
            {"train": Path("test.tsv"), "valid": Path("valid.tsv"), "leave_out": "F"},
            "there are 0 and 2; look at test.tsv, valid.tsv and leave_out='F'",
        ),
        ({"hold_out": "recordings", "share": 1.0}, "share=1.0"),
        ({"replay_share": 1.0}, "replay_share must lie in (0, 1), but replay_share=1.0"),
    ],
)
def test_invalid_manifest_settings_are_refused(folder, fields, message):
    (folder / "empty.tsv").write_text("id\taudio\ttext\n")
    with pytest.raises(ValueError) as error:
        Manifests(data=folder, **fields).read(1)
    assert message.format(folder) in str(error.value)


def test_training_or_test_without_audio_is_refused(folder):
    (folder / "nowhere.tsv").write_text("audio\ttext\nnowhere.wav\tyes\n")
    for part in ("test", "training"):
        fields = {"test" if part == "test" else "train": Path("nowhere.tsv"), "valid": Path("valid.tsv")}
        with pytest.raises(ValueError, match=f"a {part} needs sound, but none of its 1 recordings can be read"):
            Manifests(data=folder, **fields).read(1)


def test_training_or_test_without_texts_is_refused(folder):
    write_manifest(folder / "blank.tsv", [Recording("a", folder / "a.wav", 1.0, "A", " ")])
    for part in ("test", "training"):
        fields = {"test" if part == "test" else "train": Path("blank.tsv"), "valid": Path("valid.tsv")}
        with pytest.raises(
            ValueError, match=f"a {part} needs texts, but none of its 1 recordings has one; look at blank.tsv"
        ):
            Manifests(data=folder, **fields).read(1)


def test_the_fingerprint_does_not_depend_on_paths():
    one = [Recording("a", Path("x/a.wav"), 1.0, "A", "red"), Recording("b", Path("x/b.wav"), 2.0, "B", "blue")]
    moved = [replace(r, audio=Path("/elsewhere") / r.audio.name, columns={"more": "x"}) for r in one]
    assert recordings_fingerprint(one) == recordings_fingerprint(moved)
    others = [
        [one[0]], one[::-1], [replace(one[0], text="rot"), one[1]], [replace(one[0], seconds=1.5), one[1]],
        [replace(one[0], id="c"), one[1]], [replace(one[0], replay=0.5), one[1]], [replace(one[0], replay=0.25), one[1]],
    ]  # fmt: skip
    assert len({recordings_fingerprint(each) for each in [one, *others]}) == 8
