"""`transduce data manifest`: of a Kaldi directory, of a folder of x.wav and x.txt, and of the tables of other tools."""

import json
import math
import re

import numpy as np
import pytest
import soundfile

from tests.layouts import noise, put, sound
from transduce.cli.main import main
from transduce.data.manifest import read_manifest


@pytest.fixture
def make(capsys):
    """The command; returns its exit code, what it printed and what it said on stderr."""

    def run(*arguments):
        code = main(["data", "manifest", *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.removesuffix("\n")

    return run


def cells(path, *others):
    return [(r.id, r.audio, r.seconds, r.speaker, r.text, *map(r.columns.get, others)) for r in read_manifest(path)]


def test_a_folder_of_audio_and_text_files(tmp_path, make, monkeypatch):
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
    put(home / "Bob" / "torn.txt", "torn")
    (home / "Bob" / "torn.ogg").write_bytes(b"OggS")
    put(home / "Bob" / "picture.png", "no sound at all")
    monkeypatch.chdir(home / "Ann")
    code, out, _ = make("..", tmp_path / "talks.tsv")
    assert code == 0
    assert sorted(cells(tmp_path / "talks.tsv")) == [
        ("Ann/one", home / "Ann/one.flac", 0.1, "Ann", "Good day, Straße!"),
        ("Bob/deep/two", home / "Bob/deep/two.opus", 1.0, "deep", "yes"),
    ]
    assert sorted(out[:-1]) == [
        "left out 1: an id that another recording has: Ann/one",
        "left out 1: no sound: Bob/alone",
        "left out 2: a sound that is empty or cannot be read: Bob/empty, Bob/torn",
        "left out 2: no text: Bob/blank, Bob/mute",
    ]
    assert out[-1] == f"{tmp_path / 'talks.tsv'}: 2 recordings, 0:00:01 in all, 2 speakers"


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
    code, out, _ = make(kaldi, tmp_path / "new" / "m.tsv")
    assert code == 0
    assert cells(tmp_path / "new" / "m.tsv") == [
        ("a", kaldi / "a.wav", 0.5, "Ann", "good day"),
        ("b", tmp_path / "elsewhere/b c.flac", 1.0, "Bob", "yes"),
    ]
    assert out == [
        "left out 1: no sound: c",
        "left out 1: no text: d",
        "left out 1: a sound that is empty or cannot be read: e",
        f"{tmp_path / 'new' / 'm.tsv'}: 2 recordings, 0:00:02 in all, 2 speakers",
    ]


def test_a_command_in_a_kaldi_directory_is_refused(tmp_path, make, kaldi):
    put(kaldi / "wav.scp", "a a.wav", "b sph2pipe -f wav b.sph |")
    assert make(kaldi, tmp_path / "m.tsv") == (
        2,
        [],
        f"transduce: wav.scp must name files, but in {kaldi} it has a command: 'sph2pipe -f wav b.sph |'; run the "
        "commands, write their sound to files, and name those",
    )


@pytest.fixture
def segments(kaldi):
    """Pieces, one good in each of two sounds, and others that are not."""
    rows = [
        "p a 0.1 0.3",
        "q\tb\t0.5\t-1",
        "r b 0.9 0.9",
        "s b 1.5 2",
        "t b x 2",
        "u z 0 1",
        "v/../w a 0 1",
        "n a nan 1",
        "x b 0.5 0.3",
        "y b 0.2 20",
    ]
    put(kaldi / "segments", *rows)
    put(kaldi / "text", *(f"{row.split()[0]} said" for row in rows))
    put(kaldi / "utt2spk", *(f"{row.split()[0]} Ann" for row in rows))
    return kaldi


def test_segments_are_cut_sample_for_sample(tmp_path, make, segments):
    code, out, _ = make(segments, tmp_path / "m.tsv", "--audio-out", tmp_path / "pieces")
    assert code == 0
    assert [row[:3] for row in cells(tmp_path / "m.tsv")] == [
        ("p", tmp_path / "pieces/p.flac", 0.2),
        ("q", tmp_path / "pieces/q.flac", 0.5),
        ("v/../w", tmp_path / "pieces/w.flac", 0.5),
    ]
    for name, source, start, stop in (("p", 4000, 800, 2400), ("q", 8000, 4000, 8000), ("w", 4000, 0, 4000)):
        samples, rate = soundfile.read(tmp_path / "pieces" / f"{name}.flac", dtype="int16")
        assert rate == 8000
        np.testing.assert_array_equal(samples, noise(source)[start:stop, 0])
    assert out[:-1] == [
        "left out 6: a segment that is not START END in seconds, inside its sound, or that FLAC cannot store: "
        "r, s, t, n, x, ...",
        "left out 1: no sound: u",
    ]
    assert make(segments, tmp_path / "m.tsv")[1][0].startswith(
        "left out 9: a segment that must be cut; name a folder for segments: --audio-out DIR: p, q, r, s, t, ..."
    )
    with pytest.raises(ValueError, match="segments must be cut out of their sound"):
        read_manifest(segments)
    put(segments / "segments", "p b 0.2 0.4", "q b 0.5 -1")
    _, out, _ = make(segments, tmp_path / "m.tsv", "--audio-out", tmp_path / "pieces")
    reason = f"a segment whose file in {tmp_path / 'pieces'} has other sound; name another folder"
    assert f"left out 1: {reason}: p" in out
    np.testing.assert_array_equal(
        soundfile.read(tmp_path / "pieces" / "p.flac", dtype="int16")[0], noise(4000)[800:2400, 0]
    )


def test_duplicate_kaldi_keys_are_refused_and_texts_need_audio(tmp_path, make, kaldi):
    put(kaldi / "text", "a good day", "b yes", "z nobody said this")
    assert "left out 1: no sound: z" in make(kaldi, tmp_path / "m.tsv")[1]
    put(kaldi / "text", "a good day", "b yes", "a bad day")
    assert make(kaldi, tmp_path / "m.tsv")[2] == (
        f"transduce: a key must be unique, but {kaldi / 'text'} has 'a' again; remove one of its lines"
    )


def test_segments_that_flac_cannot_store_are_left_out(tmp_path, make, kaldi):
    """Ten channels and a sample that is no number, which FLAC does not hold."""
    soundfile.write(kaldi / "ten.wav", np.zeros((8000, 10)), 8000)
    soundfile.write(kaldi / "nan.wav", np.full(8000, np.inf), 8000, subtype="FLOAT")
    put(kaldi / "wav.scp", "a a.wav", "t ten.wav", "n nan.wav")
    put(kaldi / "segments", "p a 0.1 0.3", "q t 0.1 0.3", "r n 0.1 0.3")
    put(kaldi / "text", "p good day", "q ten", "r none")
    code, out, _ = make(kaldi, tmp_path / "m.tsv", "--audio-out", tmp_path / "pieces")
    assert code == 0 and [row[0] for row in cells(tmp_path / "m.tsv")] == ["p"]
    assert out[0].startswith("left out 2: a segment that is not START END") and out[0].endswith(": q, r")


def test_offsets_must_be_seconds_and_vectors_keep_their_duration(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((160, 3), dtype=np.float32))
    rows = [{"audio_filepath": "v.npy", "offset": 0, "duration": n, "id": str(n), "text": "a"} for n in (3.2, 0.8)]
    put(tmp_path / "v.jsonl", *map(json.dumps, rows))
    assert [r.seconds for r in read_manifest(tmp_path / "v.jsonl")] == [3.2, 0.8]
    put(tmp_path / "x.JSONL", json.dumps({"audio_filepath": "v.npy", "offset": "x", "duration": 1, "text": "a"}))
    with pytest.raises(ValueError, match=r"an offset must be seconds, but .* has 'x'; correct it"):
        read_manifest(tmp_path / "x.JSONL")


def test_nemo_segments_are_cut(tmp_path, make):
    sound(tmp_path / "long.wav", n=8000)
    spans = [(0.0, 0.25), (0.5, 0.5), (0, 1.0), (0.5, 0.25), (0.75, None)]
    rows = [{"offset": start, "duration": length} for start, length in spans] + [{"offset": 0.25}]
    plain = [{"audio_filepath": "long.wav", "text": str(i), **row} for i, row in enumerate(rows)]
    put(tmp_path / "m.jsonl", *map(json.dumps, plain))
    with pytest.raises(ValueError, match=r"segments must be cut out of their sound, but .*m\.jsonl, line 1, has one"):
        read_manifest(tmp_path / "m.jsonl")
    assert make(tmp_path / "m.jsonl", tmp_path / "out.tsv", "--audio-out", tmp_path / "pieces")[0] == 0
    recordings = read_manifest(tmp_path / "out.tsv")
    assert [(r.text, r.seconds) for r in recordings] == [
        ("0", 0.25), ("1", 0.5), ("2", 1.0), ("3", 0.25), ("4", 0.25), ("5", 0.75)
    ]  # fmt: skip
    places = [(0, 2000), (4000, 8000), (0, 8000), (4000, 6000), (6000, 8000), (2000, 8000)]
    for recording, (start, stop) in zip(recordings, places, strict=True):
        np.testing.assert_array_equal(soundfile.read(recording.audio, dtype="int16")[0], noise(8000)[start:stop, 0])


def test_a_nemo_duration_shorter_than_the_audio_keeps_its_beginning(tmp_path, make):
    sound(tmp_path / "long.wav", n=8000)
    rows = [{"audio_filepath": "long.wav", "duration": n, "text": str(n)} for n in (0.25, 0.95, 0)]
    for row in rows:
        row["id"] = row["text"]
    put(tmp_path / "m.jsonl", *map(json.dumps, rows))
    assert make(tmp_path / "m.jsonl", tmp_path / "out.tsv", "--audio-out", tmp_path / "pieces")[0] == 0
    recordings = read_manifest(tmp_path / "out.tsv")
    assert [r.seconds for r in recordings] == [0.25, 1.0, 1.0]  # a duration may be rounded, or wrong
    np.testing.assert_array_equal(soundfile.read(recordings[0].audio, dtype="int16")[0], noise(8000)[:2000, 0])
    put(tmp_path / "m.jsonl", *map(json.dumps, rows[:2]))
    # a list that training reads itself may be wrong in one line, which stops nothing
    assert [r.seconds for r in read_manifest(tmp_path / "m.jsonl")] == [0.25, 0.95]


def test_inputs_are_not_overwritten(tmp_path, make):
    sound(tmp_path / "a.wav")
    put(tmp_path / "metadata.csv", "file_name,text", "a.wav,good", "b.wav,none")
    for source in (tmp_path, tmp_path / "metadata.csv"):
        code, _, err = make(source, tmp_path / "metadata.csv")
        assert code == 2 and err.startswith("transduce: an output must not replace what is read, but ")
    put(tmp_path / "a.txt", "good")
    code, _, err = make(tmp_path, tmp_path / "a.txt")
    assert code == 2 and "a.txt is there; name a .tsv" in err and (tmp_path / "a.txt").read_text() == "good\n"
    for name in ("new.csv", "new.jsonl", "new.tsv.gz"):  # which would be read otherwise than it is written
        code, _, err = make(tmp_path, tmp_path / name)
        assert code == 2 and f"{name} would be read as one; name a .tsv" in err and not (tmp_path / name).exists()
    assert len((tmp_path / "metadata.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("subtype", "dtype", "want"),
    [
        ("PCM_24", "int32", "PCM_24"),
        ("PCM_32", "int32", "PCM_24"),
        ("PCM_U8", "int16", "PCM_16"),
        ("FLOAT", "float64", "PCM_16"),
    ],
)
def test_segments_keep_the_precision_of_their_audio(tmp_path, make, kaldi, subtype, dtype, want):
    wave = np.sin(np.arange(4000) / 10) * 0.9
    soundfile.write(kaldi / "a.wav", wave, 8000, subtype=subtype)
    put(kaldi / "segments", "p a 0.25 0.5")
    put(kaldi / "text", "p said")
    put(kaldi / "utt2spk", "p Ann")
    assert make(kaldi, tmp_path / "m.tsv", "--audio-out", tmp_path / "pieces")[0] == 0
    flac = tmp_path / "pieces" / "p.flac"
    assert soundfile.info(flac).subtype == want
    step = {"PCM_U8": 2**-7, "FLOAT": 2**-14}.get(subtype, 2**-22)
    np.testing.assert_allclose(soundfile.read(flac)[0], wave[2000:], rtol=0, atol=step)


def test_missing_or_empty_folders_are_refused(tmp_path, make):
    out = tmp_path / "m.tsv"
    assert make(tmp_path, out) == (
        2, [], f"transduce: a manifest needs a recording, but there is none for {out}; --help has the layouts"
    )  # fmt: skip
    nowhere = tmp_path / "nowhere"
    assert make(nowhere, out)[2] == f"transduce: a text must be a file, plain or .gz, but {nowhere} does not exist"


@pytest.fixture
def tables(tmp_path):
    """Two recordings as other tools list them: TSV, CSV, JSON lines, an audio folder; and their sound."""
    rows = [("clips/a.wav", 'good "day", all', 4000), ("clips/b.flac", "yes", 8000)]
    for name, _, n in rows:
        sound(tmp_path / name, n)
    put(tmp_path / "m.tsv", "path\tsentence", *(f"{name}\t{text}" for name, text, _ in rows))
    put(tmp_path / "m.csv", "audio,text", 'clips/a.wav,"good ""day"", all"', "clips/b.flac,yes")
    nemo = [{"audio_filepath": name, "duration": n / 8000, "text": text} for name, text, n in rows]
    put(tmp_path / "m.jsonl", *map(json.dumps, nemo))
    put(
        tmp_path / "hub" / "metadata.csv",
        "file_name,transcription",
        '../clips/a.wav,"good ""day"", all"',
        "../clips/b.flac,yes",
    )
    return tmp_path


@pytest.mark.parametrize("name", ["m.tsv", "m.csv", "m.jsonl", "hub"])
def test_tables_of_other_tools_are_read(tables, make, name):
    want = [('good "day", all', 0.5, {}), ("yes", 1.0, {})]
    recordings = read_manifest(tables / name)
    assert [(r.text, r.seconds, r.columns) for r in recordings] == want
    assert [r.audio.resolve() for r in recordings] == [tables / "clips/a.wav", tables / "clips/b.flac"]
    assert len({r.id for r in recordings}) == len({r.speaker for r in recordings}) == 2
    assert make(tables / name, tables / "out.tsv")[0] == 0
    again = read_manifest(tables / "out.tsv")
    assert [(r.id, r.text, r.seconds, r.speaker) for r in again] == [
        (r.id, r.text, r.seconds, r.speaker) for r in recordings
    ]


def test_malformed_tables_are_refused_with_their_line(tmp_path):
    put(tmp_path / "m.tsv", "audio   text", "a.wav   good day")
    with pytest.raises(ValueError) as error:
        read_manifest(tmp_path / "m.tsv")
    assert str(error.value) == (
        f"columns must have tabs between them, but the first line of {tmp_path / 'm.tsv'} has spaces: 'audio   text'; "
        "write tabs, or commas in a file that ends in .csv"
    )
    put(tmp_path / "m.csv", "audio;text", "a.wav;good day")
    with pytest.raises(
        ValueError, match=re.escape("m.csv, line 2, has 'audio;text'; name the columns of a table in its")
    ):
        read_manifest(tmp_path / "m.csv")
    put(tmp_path / "m.csv", "audio\ttext")
    with pytest.raises(
        ValueError, match=r"columns must have commas between them, but the first line of .* has no commas"
    ):
        read_manifest(tmp_path / "m.csv")
    put(tmp_path / "m.csv", "audio,text", f'a.wav,"{"a" * 17_000_000}')
    with pytest.raises(ValueError, match=r"m\.csv must be CSV, but the row from line 2 on is not: field larger than"):
        read_manifest(tmp_path / "m.csv")
    for row, reason in (('"b', "unexpected end of data"), ('"b"c"', "',' expected after '\"'")):
        put(tmp_path / "m.csv", "audio,text", 'a.wav,"two', 'lines"', f"b.wav,{row}", "c.wav,day")
        with pytest.raises(ValueError) as error:
            read_manifest(tmp_path / "m.csv")
        assert str(error.value) == (
            f"{tmp_path / 'm.csv'} must be CSV, but the row from line 4 on is not: {reason}; look for quotes that do not "
            "end, and write a quote inside of quotes twice"
        )
    put(tmp_path / "m.csv", "audio,text", 'a.wav,"two', 'lines"', "b.wav,good day, all")
    with pytest.raises(ValueError, match=r"m\.csv, line 4, has 3 cells for 2 columns"):
        read_manifest(tmp_path / "m.csv")
    put(tmp_path / "m.csv", "audio,text", "a.wav,good day, all")
    with pytest.raises(ValueError, match=r"has 3 cells for 2 columns .*; put quotes around texts with commas"):
        read_manifest(tmp_path / "m.csv")
    put(tmp_path / "m.jsonl", '{"audio": "a.wav", "text": "a"}', "[1]")
    with pytest.raises(ValueError, match=r"a JSON object, but .*m\.jsonl, line 2, is not"):
        read_manifest(tmp_path / "m.jsonl")


def test_null_cells_and_cells_of_several_lines(tmp_path):
    put(tmp_path / "m.jsonl", '{"audio": "a.npy", "text": null, "duration": null, "speaker": null}', "")
    put(
        tmp_path / "nan.jsonl",
        json.dumps({"audio": "a.npy", "text": math.nan, "duration": math.nan, "speaker": math.nan}),
    )
    put(tmp_path / "m.csv", "audio,text", 'a.npy,"two', 'lines"', "", 'b.npy,"a, b"', "")
    for name in ("m.jsonl", "nan.jsonl"):
        assert [(r.text, r.speaker) for r in read_manifest(tmp_path / name)] == [("", "a.npy")]
    assert [r.text for r in read_manifest(tmp_path / "m.csv")] == ["two lines", "a, b"]


def test_common_voice_audio_is_read_from_clips(tmp_path, make):
    rows = ["Ann\tcv_1.mp3\tyes\t2\t", "Bob\tcv_2.mp3\tno\t0\tBenchmark"]
    put(tmp_path / "train.tsv", "client_id\tpath\tsentence\tup_votes\tsegment", *rows)
    sound(tmp_path / "clips" / "cv_1.mp3", n=16000, rate=16000)
    code, out, _ = make(tmp_path / "train.tsv", tmp_path / "m.tsv")
    assert code == 0 and out[0] == "left out 1: no sound: cv_2.mp3"
    assert [row[:2] + row[3:] for row in cells(tmp_path / "m.tsv", "up_votes", "segment")] == [
        ("cv_1.mp3", tmp_path / "clips" / "cv_1.mp3", "Ann", "yes", "2", "")
    ]


def test_a_table_without_a_text_column_is_an_error(tmp_path, make):
    sound(tmp_path / "a.wav")
    put(tmp_path / "m.tsv", "audio\twords", "a.wav\tyes")
    code, out, _ = make(tmp_path / "m.tsv", tmp_path / "out.tsv")
    assert code == 2 and out == ["left out 1: no column text, but audio, words, id: a.wav"]
