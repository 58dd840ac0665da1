"""Manifests: what is read is what stands there, and an error names file and line."""

import csv
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from transduce.cli.recordings import sounds_of
from transduce.data.manifest import Manifests, Recording, read_manifest, split, write_manifest
from transduce.data.sound_lists import each_row

GOOD = "id\taudio\tseconds\tspeaker\ttext\tgerman\na\tx/a.wav\t1.5\tAnn\tgood day\tguten Tag\nb\t/y/b.npy\t2\tBob\t\t\n"


@pytest.fixture
def manifest(tmp_path):
    """Writes a manifest and returns its path."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "m.tsv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def refusal(manifest):
    """What is said of a manifest that is refused, without the folder's name."""

    def read(content: str | bytes, target_column: str = "text") -> str:
        path = manifest(content)
        with pytest.raises(ValueError) as error:
            read_manifest(path, target_column)
        return str(error.value).replace(f"{path.parent}/", "")

    return read


def test_read_manifest_fields_and_columns(manifest):
    path = manifest(GOOD)
    assert read_manifest(path) == [
        Recording("a", path.parent / "x/a.wav", 1.5, "Ann", "good day", {"german": "guten Tag"}),
        Recording("b", Path("/y/b.npy"), 2.0, "Bob", "", {"german": ""}),  # blank text stays
    ]
    assert [r.text for r in read_manifest(str(path), "german")] == ["guten Tag", ""]
    assert read_manifest(path, "german")[0].columns == {"text": "good day"}


@pytest.mark.parametrize("column", ["id", "audio", "seconds", "speaker"])
def test_a_column_that_says_something_of_the_recording_may_be_the_target_too(manifest, column):
    """Such as who speaks."""
    path = manifest(GOOD)
    with path.open(newline="") as file:
        cells = [row[column] for row in csv.DictReader(file, delimiter="\t")]
    got = read_manifest(path, column)
    texts = {"columns": {"text": "good day", "german": "guten Tag"}}
    assert [r.text.replace(f"{path.parent}/", "") for r in got] == cells
    assert replace(got[0], text="good day") == replace(read_manifest(path)[0], **texts)


def test_texts_without_sound_come_in_the_order_of_their_names(tmp_path):
    for name in "gcaehdbf":
        (tmp_path / f"{name}.txt").write_text("yes")
    assert "".join(row["id"] for _, row in each_row(tmp_path)) == "abcdefgh"


def test_linked_folders_are_read_once_and_hidden_files_are_not(tmp_path):
    """macOS writes a hidden ._2.wav beside 2.wav on the disks of others."""
    for path in (tmp_path / "far" / "ann" / "1.wav", tmp_path / "talks" / "bob" / "2.wav"):
        path.parent.mkdir(parents=True)
        soundfile.write(path, np.zeros(800), 8000)
        path.with_suffix(".txt").write_text("good day\n")
    (tmp_path / "talks" / "bob" / "._2.wav").write_bytes(b"\0\5\x16\7")
    (tmp_path / "talks" / "ann").symlink_to(tmp_path / "far" / "ann")
    (tmp_path / "talks" / "bob" / "circle").symlink_to(tmp_path / "talks")
    got = [(r.id, r.speaker, r.text) for r in read_manifest(tmp_path / "talks")]
    assert got == [("ann/1", "ann", "good day"), ("bob/2", "bob", "good day")]
    assert [*sounds_of([tmp_path / "talks"])] == [tmp_path / "talks/ann/1.wav", tmp_path / "talks/bob/2.wav"]


@pytest.mark.parametrize(
    ("content", "text"),
    [("0 46797 She had your suit.\n", "She had your suit."), ("0 1 2 3\n", "0 1 2 3"), ("0 4679 5\n", "0 4679 5")],
)
def test_the_numbers_of_samples_before_texts_of_timit_are_left_out(tmp_path, content, text):
    soundfile.write(tmp_path / "SA1.WAV", np.zeros(800), 16000, format="NIST")
    (tmp_path / "SA1.TXT").write_text(content)
    assert [(r.seconds, r.text) for r in read_manifest(tmp_path)] == [(0.05, text)]


def test_what_ffmpeg_decodes_is_measured_like_other_sound(tmp_path, monkeypatch):
    """Telephones record M4A; without FFmpeg its length is unknown, and training says what is needed."""
    for name, seconds in (("a.m4a", 1.25), ("b.MP4", 0.5)):
        soundfile.write(tmp_path / name, np.zeros(round(8000 * seconds)), 8000, format="W64")
        (tmp_path / name).with_suffix(".txt").write_text("yes")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert [r.seconds for r in read_manifest(tmp_path)] == [0, 0]

    def ffmpeg(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        source = command[command.index("-i") + 1].removeprefix("file:")
        shutil.copy(source, command[-1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("subprocess.run", ffmpeg)
    assert [(r.id, r.seconds, r.text) for r in read_manifest(tmp_path)] == [("a", 1.25, "yes"), ("b", 0.5, "yes")]


def test_any_column_order_and_unusual_characters_in_cells(manifest):
    odd = ' "quoted\u2028 \x0cText '
    path = manifest(f"text\tspeaker\tseconds\taudio\tid\n{odd}\tAnn\t1e-3\ta.wav\ta\n")
    assert read_manifest(path) == [Recording("a", path.parent / "a.wav", 0.001, "Ann", odd)]


def test_windows_line_ends_and_byte_order_marks_are_removed(manifest):
    path = manifest(("\ufeff" + GOOD).replace("\n", "\r\n"))
    recordings = read_manifest(path)
    assert recordings[0].columns == {"german": "guten Tag"} and recordings[1].columns == {"german": ""}


def test_only_audio_and_text_columns_are_required(manifest):
    path = manifest("text\taudio\ngood day\tx/a.wav\nyes\t/y/b.npy\n")
    soundfile.write((path.parent / "x").mkdir() or path.parent / "x/a.wav", np.zeros(1600), 8000)
    one, other = read_manifest(path)
    assert one == Recording("x/a.wav", path.parent / "x/a.wav", 0.2, "x/a.wav", "good day")
    assert other == Recording("/y/b.npy", Path("/y/b.npy"), 0.0, "/y/b.npy", "yes")  # which features will tell of


def test_a_missing_column_is_refused_with_the_existing_ones(refusal):
    assert refusal("id\taudio\tspeaker\twords\na\tb\tc\td\n") == (
        "a manifest must have the columns audio and text, but m.tsv, line 2, has id, audio, speaker, words; add text, or "
        "name another target column"
    )
    assert "has id, audio, seconds, speaker, text, german; add french, or" in refusal(GOOD, "french")
    assert "m.tsv is empty" in refusal("")
    assert "m.tsv has id, audio, seconds, speaker, text, text" in refusal("id\taudio\tseconds\tspeaker\ttext\ttext\n")


def test_a_wrong_number_of_cells_is_refused_with_its_line(refusal):
    assert refusal(f"{GOOD}c\tc.wav\t1\tAnn\ttext\n") == (
        "a line must have a cell for every column, but m.tsv, line 4, has 5 cells for 6 columns "
        "(id, audio, seconds, speaker, text, german); tabs separate cells"
    )
    for line, n in (("c\tc.wav\t1\tAnn\ttext\tText\tmore", 7), (" ", 1)):
        assert f"m.tsv, line 4, has {n} cells for 6 columns" in refusal(f"{GOOD}{line}\n")


def test_seconds_must_be_positive(refusal):
    for cell in ("two", "0", "-1.5", "nan", "inf", "1,5"):
        assert refusal(GOOD.replace("\t2\t", f"\t{cell}\t")).startswith(
            f"seconds must be a positive number, but m.tsv, line 3, has {cell!r}"
        )


def test_duplicate_ids_and_blank_audio_are_refused(refusal):
    assert refusal(f"{GOOD}a\tc.wav\t1\tAnn\ttext\tText\n") == (
        "an id must be unique, but m.tsv, line 4, has id='a' again; rename one of them"
    )
    assert refusal(f"{GOOD}c\t\t1\tAnn\ttext\tText\n").startswith("audio must name a file, but m.tsv, line 4, ")


def test_invalid_utf_8_is_refused_with_its_line(refusal):
    assert "m.tsv, line 2, byte 28 is 0xe4" in refusal(GOOD.encode().replace(b"guten Tag", b"\xe4"))


def test_written_manifests_are_read_back(tmp_path, monkeypatch):
    recordings = [
        Recording("a", tmp_path / "deep/a.wav", 1.25, "Ann", "good day", {"age": "6", "german": "guten Tag"}),
        Recording("b", tmp_path.parent / "b.wav", 3600.1234, "Bob", "", {"age": "", "german": ""}),
        Recording("c", tmp_path / "c.npy", 0.0001, "Bob", "Straße", {"age": "7", "german": "x"}),
    ]
    path = tmp_path / "m.tsv"
    write_manifest(path, recordings)
    with path.open(newline="") as file:  # the csv module as the witness
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [row["audio"] for row in rows] == ["deep/a.wav", str(tmp_path.parent / "b.wav"), "c.npy"]
    assert [row["seconds"] for row in rows] == ["1.25", "3600.123", "0.0001"]
    assert read_manifest(path) == [recordings[0], replace(recordings[1], seconds=3600.123), recordings[2]]
    monkeypatch.chdir(tmp_path)
    write_manifest("m.tsv", [replace(r, columns={}) for r in read_manifest("m.tsv")], "german")
    assert [r.text for r in read_manifest("m.tsv", "german")] == ["good day", "", "Straße"]
    assert read_manifest("m.tsv", "german")[0].audio == Path("deep/a.wav")


def test_manifest_paths_survive_moving_the_folder(tmp_path):
    """The manifest in one folder of it, the sound in another."""
    for name, outside in (("here", tmp_path / "b.wav"), ("there", tmp_path / "here2" / "b.wav")):
        home = tmp_path / name
        (home / "train").mkdir(parents=True)
        (home / "WAVE").mkdir()
        (home / "WAVE" / "a.wav").touch()
        sounds = [Recording(id, path, 1.0, "A", "x") for id, path in (("a", home / "WAVE/a.wav"), ("b", outside))]
        write_manifest(home / "train" / "m.tsv", sounds, root=home)
        (moved := home.rename(tmp_path / f"{name} moved"))
        inside, absolute = (r.audio for r in read_manifest(moved / "train" / "m.tsv"))
        assert inside.resolve() == moved / "WAVE" / "a.wav" and inside.is_file() and absolute == outside


def test_dots_behind_a_symbolic_link_lead_where_the_system_leads(tmp_path):
    """store/lists is reached as lists: lists/../audio is store/audio, not audio."""
    for name in ("store/lists", "store/audio", "audio"):
        (tmp_path / name).mkdir(parents=True)
    for folder in ("audio", "store/audio"):
        (tmp_path / folder / "a.wav").write_bytes(folder.encode())
    (tmp_path / "lists").symlink_to("store/lists")
    (tmp_path / "store/lists/wav.scp").write_text("a ../audio/a.wav\n")
    (tmp_path / "store/lists/text").write_text("a good day\n")
    (row,) = (row for _, row in each_row(tmp_path / "lists"))
    write_manifest(tmp_path / "m.tsv", [Recording("a", Path(row["audio"]), 1.0, "Ann", "good day")])
    (recording,) = read_manifest(tmp_path / "m.tsv")
    assert [Path(row["audio"]).read_bytes(), recording.audio.read_bytes()] == [b"store/audio"] * 2


ONE = Recording("a", Path("a.wav"), 1.0, "Ann", "good day", {"age": "6"})


@pytest.mark.parametrize(
    ("recordings", "said"),
    [
        (
            [replace(ONE, text="good\nday")],
            "a cell must be UTF-8 without a tab or the end of a line, but 'a' has 'good\\nday'",
        ),
        (
            [replace(ONE, audio=Path(os.fsdecode(b"/\xe9.wav")))],
            "a cell must be UTF-8 without a tab or the end of a line, but 'a' has '/\\udce9.wav'; change it, or rename",
        ),
    ],
)
def test_cells_that_tsv_cannot_hold_are_not_written(tmp_path, recordings, said):
    with pytest.raises(ValueError) as error:
        write_manifest(tmp_path / "m.tsv", recordings)
    assert said in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def spoken():
    """60 recordings of 12 speakers, in no order."""
    return [Recording(f"r{i}", Path("a.wav"), 1.0, f"s{i * 7 % 12}", "x") for i in range(60)]


@pytest.mark.parametrize(("share", "n"), [(0.01, 1), (0.25, 3), (0.5, 6), (0.99, 11)])
def test_whole_speakers_are_held_out(spoken, share, n):
    rest, held_out = split(spoken, "speakers", share, 1)
    there, here = {r.speaker for r in rest}, {r.speaker for r in held_out}
    assert not there & here and len(here) == n and len(there) == 12 - n
    assert sorted([*rest, *held_out], key=spoken.index) == spoken
    assert rest == sorted(rest, key=spoken.index) and held_out == sorted(held_out, key=spoken.index)


def test_held_out_speakers_depend_on_the_seed_and_not_the_order(spoken):
    def speakers(recordings, seed):
        return frozenset(r.speaker for r in split(recordings, "speakers", 0.25, seed)[1])

    assert speakers(spoken, 1) == speakers(spoken[::-1], 1)
    assert len({speakers(spoken, seed) for seed in range(20)}) > 10
    assert frozenset.union(*(speakers(spoken, seed) for seed in range(40))) == {r.speaker for r in spoken}


@pytest.mark.parametrize(("share", "n"), [(0.001, 1), (0.1, 6), (0.2, 12), (0.5, 30), (0.999, 59)])
def test_single_recordings_are_held_out(spoken, share, n):
    rest, held_out = split(spoken, "recordings", share, 1)
    assert len(held_out) == n and len(rest) == 60 - n
    assert sorted([*rest, *held_out], key=spoken.index) == spoken
    assert rest == sorted(rest, key=spoken.index) and held_out == sorted(held_out, key=spoken.index)
    assert len({r.speaker for r in max(rest, held_out, key=len)}) == 12  # and no speaker is taken whole


def test_held_out_recordings_depend_on_the_seed(spoken):
    got = [frozenset(r.id for r in split(spoken, "recordings", 0.25, seed)[1]) for seed in range(40)]
    assert got[3] == frozenset(r.id for r in split(spoken, "recordings", 0.25, 3)[1])
    assert len(set(got)) == 40 and frozenset.union(*got) == {r.id for r in spoken}


def test_invalid_splits_are_refused(spoken):
    one_speaker = [r for r in spoken if r.speaker == "s3"]
    with pytest.raises(ValueError) as error:
        split(one_speaker, "speakers", 0.1, 0)
    assert str(error.value) == (
        "holding out speakers takes at least two, but there are 1; name a manifest for validation, or hold out recordings "
        "(hold_out=recordings)"
    )
    with pytest.raises(ValueError, match=r"recordings .* there are 1; .* see leave_out"):
        split(one_speaker[:1], "recordings", 0.1, 0)
    assert [len(part) for part in split(one_speaker[:2], "recordings", 0.9, 0)] == [1, 1]
    for what in ("speakers", "recordings"):
        for share in (0.0, 1.0, -0.5):
            with pytest.raises(ValueError, match=re.escape(f"share={share}")):
                Manifests(hold_out=what, share=share)
