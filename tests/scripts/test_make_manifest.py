"""scripts/make_manifest.py on small corpora in the layouts that it reads."""

import os
import shutil
import sys

import numpy as np
import pytest
import soundfile

from scripts import make_manifest
from transduce.data.manifest import read_manifest


@pytest.fixture
def make(monkeypatch, capsys):
    """The command; returns its exit code, what it printed and what it said on stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["make_manifest.py", *map(str, arguments)])
        code = make_manifest.main()
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.removesuffix("\n")

    return run


def noise(n, seed=0, channels=1):
    return np.random.default_rng(seed).integers(-30000, 30000, (n, channels), dtype=np.int16)


def sound(path, n=800, rate=8000, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, noise(n, channels=how.pop("channels", 1)), rate, **how)


def put(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def cells(path, *others):
    return [(r.id, r.audio, r.seconds, r.speaker, r.text, *map(r.columns.get, others)) for r in read_manifest(path)]


def test_digits_are_split_as_their_authors_split_them(tmp_path, make):
    home = tmp_path / "fsdd"
    for name in ("0_jackson_0", "7_jackson_4", "7_jackson_5", "9_yweweler_49"):
        sound(home / "recordings" / f"{name}.wav", n=1000)
    sound(home / "recordings" / "noise.wav")
    (home / "recordings" / "3_jackson_1.wav").write_bytes(b"RIFF and no more")
    code, out, _ = make("fsdd", home)
    assert code == 0
    audio = home / "recordings"
    assert cells(home / "test.tsv") == [
        ("0_jackson_0", audio / "0_jackson_0.wav", 0.125, "jackson", "zero"),
        ("7_jackson_4", audio / "7_jackson_4.wav", 0.125, "jackson", "seven"),
    ]
    assert [row[0] for row in cells(home / "train.tsv")] == ["7_jackson_5", "9_yweweler_49"]
    assert (home / "test.tsv").read_text().splitlines()[1] == (
        "0_jackson_0\trecordings/0_jackson_0.wav\t0.125\tjackson\tzero"
    )
    assert out == [
        "left out 1: a sound that cannot be read: 3_jackson_1",
        "left out 1: a name that is not DIGIT_SPEAKER_INDEX: noise",
        f"{home / 'train.tsv'}: 2 recordings, 0.00 hours, 2 speakers",
        f"{home / 'test.tsv'}: 2 recordings, 0.00 hours, 1 speakers",
    ]


def test_learners_have_age_and_gender(tmp_path, make):
    home = tmp_path / "speechocean762"
    for split, speaker in (("train", "0001"), ("test", "0003")):
        sound(home / "WAVE" / f"SPEAKER{speaker}" / f"{speaker}0011.WAV", n=16000, rate=16000)
        put(home / split / "wav.scp", f"{speaker}0011\tWAVE/SPEAKER{speaker}/{speaker}0011.WAV")
        put(home / split / "text", f"{speaker}0011\tWE CALL  IT BEAR")
        put(home / split / "utt2spk", f"{speaker}0011\t{speaker}")
        put(home / split / "spk2age", f"{speaker}\t6")
        put(home / split / "spk2gender", *([f"{speaker}\tm"] if split == "train" else []))
    assert make("speechocean762", home)[0] == 0
    wav = home / "WAVE/SPEAKER0001/00010011.WAV"
    assert cells(home / "train.tsv", "age", "gender") == [("00010011", wav, 1.0, "0001", "WE CALL IT BEAR", "6", "m")]
    assert cells(home / "test.tsv", "age", "gender")[0][-2:] == ("6", "")


def test_a_folder_of_sounds_and_texts(tmp_path, make, monkeypatch):
    home = tmp_path / "talks"
    sound(home / "Ann" / "one.wav", n=4000, channels=2)
    put(home / "Ann" / "one.txt", "Good  day,", "Straße!")
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
        "left out 1: a sound of 0 samples: Bob/empty",
        "left out 1: a sound that cannot be read: Bob/torn",
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
    """A Kaldi directory with four utterances, two of which lack something."""
    home = tmp_path / "kaldi"
    sound(home / "a.wav", n=4000)
    sound(tmp_path / "elsewhere" / "b c.flac", n=8000)
    put(home / "wav.scp", "a a.wav", f"b {tmp_path}/elsewhere/b c.flac", "c gone.wav", "d a.wav")
    put(home / "text", "a good day", "b yes", "c lost", "d")
    put(home / "utt2spk", "a Ann", "b Bob", "c Bob", "d Bob")
    return home


def test_a_kaldi_directory(tmp_path, make, kaldi):
    code, out, _ = make("kaldi", kaldi, tmp_path / "m.tsv")
    assert code == 0
    assert cells(tmp_path / "m.tsv") == [
        ("a", kaldi / "a.wav", 0.5, "Ann", "good day"),
        ("b", tmp_path / "elsewhere/b c.flac", 1.0, "Bob", "yes"),
    ]
    assert out == [
        "left out 1: no sound: c",
        "left out 1: no text: d",
        f"{tmp_path / 'm.tsv'}: 2 recordings, 0.00 hours, 2 speakers",
    ]


def test_a_command_in_a_kaldi_directory_is_refused_by_line(tmp_path, make, kaldi):
    put(kaldi / "wav.scp", "a a.wav", "b sph2pipe -f wav b.sph |")
    assert make("kaldi", kaldi, tmp_path / "m.tsv") == (
        2,
        [],
        f"error: wav.scp must name files, but {kaldi / 'wav.scp'}, line 2, has a command: "
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
        f"error: {segments} has segments, whose pieces must be cut, but no folder is named for them; "
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


def test_nothing_found_is_an_error(tmp_path, make):
    assert make("folder", tmp_path, tmp_path / "m.tsv") == (
        2,
        [],
        f"error: a manifest needs a recording, but none was found for {tmp_path / 'm.tsv'}; see --help for the layouts",
    )
    code, _, said = make("kaldi", tmp_path, tmp_path / "m.tsv")
    assert code == 2 and "wav.scp" in said


@pytest.mark.data
def test_the_layout_of_the_digits_is_the_one_of_the_real_recordings(tmp_path, make):
    """Real digits under their own names; the manifests that lie there are the witness."""
    root = os.environ.get("TRANSDUCE_DATA")
    if not root:
        pytest.skip("needs fsdd inside the folder that TRANSDUCE_DATA names")
    theirs = read_manifest(f"{root}/fsdd/test.tsv")[:20] + read_manifest(f"{root}/fsdd/train.tsv")[:20]
    (tmp_path / "recordings").mkdir()
    for r in theirs:
        samples, rate = soundfile.read(r.audio, dtype="int16")
        soundfile.write(tmp_path / "recordings" / f"{r.id}.wav", samples, rate)
    assert make("fsdd", tmp_path)[0] == 0
    ours = {r.id: r for split in ("test", "train") for r in read_manifest(tmp_path / f"{split}.tsv")}
    assert [(ours[r.id].text, ours[r.id].speaker) for r in theirs] == [(r.text, r.speaker) for r in theirs]
    assert [ours[r.id].seconds for r in theirs] == pytest.approx([r.seconds for r in theirs], abs=1e-3)
    assert {r.id for r in theirs[:20]} == {r.id for r in read_manifest(tmp_path / "test.tsv")}
