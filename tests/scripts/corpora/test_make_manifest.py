"""The manifests that scripts/corpora/get_data.py makes of a Kaldi directory and of a folder of x.wav and x.txt."""

import os
import shutil

import numpy as np
import pytest
import soundfile

from scripts.corpora import get_data
from tests.scripts.corpora.layouts import noise, put, sound
from transduce.data.speech.manifest import read_manifest


@pytest.fixture
def make(capsys):
    """The command; returns its exit code, what it printed and what it said on stderr."""

    def run(*arguments):
        code = get_data.main([str(each) for each in arguments])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.removesuffix("\n")

    return run


def cells(path, *others):
    return [(r.id, r.audio, r.seconds, r.speaker, r.text, *map(r.columns.get, others)) for r in read_manifest(path)]


def test_a_folder_of_sounds_and_texts(tmp_path, make, monkeypatch):
    home = tmp_path / "talks"
    sound(home / "Ann" / "one.wav", n=4000, channels=2)
    (home / "Ann" / "one.TXT").write_bytes("Good  day,\r\nStraße!\r\n".encode())
    sound(home / "Ann" / "one.flac")
    sound(home / "Bob" / "deep" / "two.opus", n=16000, rate=16000, format="OGG", subtype="OPUS")
    put(home / "Bob" / "deep" / "two.txt", "\ufeffyes")
    sound(home / "Bob" / "mute.mp3", rate=16000)
    put(home / "Bob" / "alone.txt", "no sound")
    sound(home / "Bob" / "blank.wav")
    put(home / "Bob" / "blank.txt", " ")
    sound(home / "Bob" / "empty.wav", n=0)
    put(home / "Bob" / "empty.txt", "nothing")
    (home / "Bob" / "latin.txt").write_bytes(b"\xe4")
    sound(home / "Bob" / "latin.wav")
    sound(home / "Bob" / "tab\t.wav")
    put(home / "Bob" / "tab\t.txt", "tab")
    soundfile.write(home / "Bob" / "nan.wav", [0.5] * 800 + [float("nan")], 8000, subtype="FLOAT")
    put(home / "Bob" / "nan.txt", "nan")
    put(home / "Bob" / "torn.txt", "torn")
    (home / "Bob" / "torn.ogg").write_bytes(b"OggS")
    put(home / "Bob" / "picture.png", "no sound at all")
    monkeypatch.chdir(home / "Ann")
    code, out, _ = make("folder", "..", tmp_path / "talks.tsv")
    assert code == 0
    assert sorted(cells(tmp_path / "talks.tsv")) == [
        ("Ann/one", home / "Ann/one.flac", 0.1, "Ann", "Good day, Straße!"),
        ("Bob/deep/two", home / "Bob/deep/two.opus", 1.0, "deep", "yes"),
    ]
    assert sorted(out[:-1]) == [
        "left out 1: a name with a tab or the end of a line: Bob/tab\t",
        "left out 1: a sound of 0 samples: Bob/empty (../Bob/empty.wav)",
        "left out 1: a sound that cannot be read: Bob/torn (../Bob/torn.ogg)",
        "left out 1: a sound with NaN or infinite samples: Bob/nan (../Bob/nan.wav)",
        "left out 1: a text that is not UTF-8: Bob/latin",
        "left out 1: an id that another recording has: Ann/one",
        "left out 1: no sound: Bob/alone.txt",
        "left out 2: no text: Bob/blank, Bob/mute",
    ]
    assert out[-1] == f"{tmp_path / 'talks.tsv'}: 2 recordings, 0.00 hours, 2 speakers"


def test_a_file_name_that_is_not_utf_8_is_left_out(tmp_path, make):
    sound(tmp_path / "Ann" / "good.wav")
    put(tmp_path / "Ann" / "good.txt", "good")
    for suffix in ("txt", "wav"):
        shutil.copy(tmp_path / "Ann" / f"good.{suffix}", os.fsencode(tmp_path / "Ann") + b"/\xe4." + suffix.encode())
    code, out, _ = make("folder", tmp_path, tmp_path / "m.tsv")
    assert code == 0
    assert out[0] == "left out 1: a name that is not UTF-8: Ann/?"


@pytest.fixture
def kaldi(tmp_path):
    """A Kaldi directory with five utterances, three of which lack something."""
    home = tmp_path / "kaldi"
    sound(home / "a.wav", n=4000)
    sound(tmp_path / "elsewhere" / "b c.flac", n=8000)
    put(home / "wav.scp", "a a.wav", f"b {tmp_path}/elsewhere/b c.flac", "c gone.wav", "d a.wav", "e e.raw")
    put(home / "text", "a good day", "b yes", "c lost", "d", "e headerless")
    put(home / "utt2spk", "a Ann", "b Bob", "c Bob", "d Bob", "e Bob")
    put(home / "e.raw", "no header")
    return home


def test_a_kaldi_directory(tmp_path, make, kaldi):
    code, out, _ = make("kaldi", kaldi, tmp_path / "new" / "m.tsv")
    assert code == 0
    assert cells(tmp_path / "new" / "m.tsv") == [
        ("a", kaldi / "a.wav", 0.5, "Ann", "good day"),
        ("b", tmp_path / "elsewhere/b c.flac", 1.0, "Bob", "yes"),
    ]
    assert out == [
        "left out 1: no sound: c (gone.wav)",
        "left out 1: no text: d",
        f"left out 1: a sound that cannot be read: e ({kaldi / 'e.raw'})",
        f"{tmp_path / 'new' / 'm.tsv'}: 2 recordings, 0.00 hours, 2 speakers",
    ]


def test_a_command_in_a_kaldi_directory_is_refused_by_line(tmp_path, make, kaldi):
    put(kaldi / "wav.scp", "a a.wav", "b sph2pipe -f wav b.sph |")
    assert make("kaldi", kaldi, tmp_path / "m.tsv") == (
        2,
        [],
        f"transduce: wav.scp must name files, but {kaldi / 'wav.scp'}, line 2, has a command: "
        "'b sph2pipe -f wav b.sph |'; run the commands, write their sound to files, and name those",
    )


@pytest.fixture
def segments(kaldi):
    """Pieces, one good in each of two sounds, and others that are not."""
    rows = ["p a 0.1 0.3", "q b 0.5 -1", "r b 0.9 0.9", "s b 1.5 2", "t b x 2", "u z 0 1", "v/w a 0 1", "n a nan 1"]
    put(kaldi / "segments", *rows)
    put(kaldi / "text", *(f"{row.split()[0]} said" for row in rows))
    put(kaldi / "utt2spk", *(f"{row.split()[0]} Ann" for row in rows))
    return kaldi


def test_pieces_are_cut_sample_for_sample(tmp_path, make, segments):
    code, out, _ = make("kaldi", segments, tmp_path / "m.tsv", "--audio-out", tmp_path / "pieces")
    assert code == 0
    assert [row[:3] for row in cells(tmp_path / "m.tsv")] == [
        ("p", tmp_path / "pieces/p.flac", 0.2),
        ("q", tmp_path / "pieces/q.flac", 0.5),
    ]
    for name, source, start, stop in (("p", 4000, 800, 2400), ("q", 8000, 4000, 8000)):
        samples, rate = soundfile.read(tmp_path / "pieces" / f"{name}.flac", dtype="int16")
        assert rate == 8000
        np.testing.assert_array_equal(samples, noise(source)[start:stop, 0])
    assert out[:-1] == [
        "left out 2: a piece that lies outside its sound: r, s",
        "left out 2: a line of segments that is not ID SOUND START END: t, n",
        "left out 1: no sound: u",
        "left out 1: an id that cannot name a file: v/w",
    ]


def test_pieces_need_a_folder(tmp_path, make, segments):
    assert make("kaldi", segments, tmp_path / "m.tsv") == (
        2,
        [],
        f"transduce: {segments} has segments, whose pieces must be cut, but no folder is named for them; "
        "use --audio-out DIR",
    )


@pytest.mark.parametrize(
    ("subtype", "dtype", "want"),
    [
        ("PCM_24", "int32", "PCM_24"),
        ("PCM_32", "int32", "PCM_24"),
        ("PCM_U8", "int16", "PCM_16"),
        ("FLOAT", "float64", "PCM_16"),
    ],
)
def test_a_piece_keeps_what_its_sound_holds(tmp_path, make, kaldi, subtype, dtype, want):
    wave = np.sin(np.arange(4000) / 10) * 0.9
    soundfile.write(kaldi / "a.wav", wave, 8000, subtype=subtype)
    put(kaldi / "segments", "p a 0.25 0.5")
    put(kaldi / "text", "p said")
    put(kaldi / "utt2spk", "p Ann")
    assert make("kaldi", kaldi, tmp_path / "m.tsv", "--audio-out", tmp_path / "pieces")[0] == 0
    flac = tmp_path / "pieces" / "p.flac"
    assert soundfile.info(flac).subtype == want
    step = {"PCM_U8": 2**-7, "FLOAT": 2**-14}.get(subtype, 2**-22)
    np.testing.assert_allclose(soundfile.read(flac)[0], wave[2000:], rtol=0, atol=step)


def test_a_piece_with_nan_is_left_out(tmp_path, make, kaldi):
    soundfile.write(kaldi / "a.wav", [0.5] * 4000 + [float("nan")] * 4000, 8000, subtype="DOUBLE")
    put(kaldi / "segments", "p a 0 0.5", "q a 0.5 1")
    put(kaldi / "text", "p said", "q said")
    put(kaldi / "utt2spk", "p Ann", "q Ann")
    _, out, _ = make("kaldi", kaldi, tmp_path / "m.tsv", "--audio-out", tmp_path / "pieces")
    assert out[0] == f"left out 1: a sound with NaN or infinite samples: q ({kaldi / 'a.wav'})"
    assert [path.name for path in (tmp_path / "pieces").iterdir()] == ["p.flac"]


def test_wrong_folders_are_told(tmp_path, make):
    out = tmp_path / "m.tsv"
    assert make("folder", tmp_path, out) == (
        2,
        [],
        f"transduce: a manifest needs a recording, but none was found for {out}; what was left out is told above, and "
        "--help tells the layouts",
    )
    put(tmp_path / "text", "a good day")
    for wrong, told in (("nowhere", "does not exist"), ("text", "is a file")):
        for layout in ("folder", "kaldi"):
            assert make(layout, tmp_path / wrong, out) == (
                2,
                [],
                f"transduce: recordings are looked for in a folder, but {tmp_path / wrong} {told}; name another",
            )
    assert make("kaldi", tmp_path, out)[2] == (
        f"transduce: {tmp_path} must hold wav.scp, text, utt2spk, but it lacks wav.scp, utt2spk; name another folder, or "
        "add what is missing"
    )
    sound(tmp_path / "a" / "b.wav")
    put(tmp_path / "a" / "b.txt", "b")
    assert make("folder", tmp_path / "a", tmp_path)[2] == (
        f"transduce: a manifest is a file, but {tmp_path} is a folder; name {tmp_path / 'train.tsv'}, for example"
    )
