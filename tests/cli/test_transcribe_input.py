"""What transduce transcribe reads: files of any name, manifests, sound and names from standard input, a microphone."""

import io
import json
import os
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from tests.cli.tones import CPU, any_sound, lines_of, tone_run, transcribe
from tests.runs import RATE, record, sound
from transduce.cli.main import main


@pytest.fixture(scope="session")
def run(once) -> Path:
    return once("tone_run", tone_run)


@pytest.fixture(scope="session")
def folder(once) -> Path:
    return once("any_sound", any_sound)


def test_file_names_from_standard_input(run, folder, monkeypatch, capsys):
    raw = "".join(f"{folder / name}{end}" for name, end in (("8000.wav", "\r\n"), ("8bit.wav", "\n"), ("cut.wav", "")))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw.encode())))
    assert transcribe(run, [folder / "stereo.flac", Path("-")]) == 0
    assert lines_of(capsys.readouterr().out) == ["black", "red blue", "green red", "red blue"]


def test_a_blank_file_name_gives_a_blank_line(run, folder, monkeypatch, capsys):
    raw = f"{folder / '8bit.wav'}\n\r\n{folder / '8bit.wav'}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw.encode())))
    with pytest.raises(SystemExit) as end:
        transcribe(run, [Path("-")])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (1, "green red\n\ngreen red\n")
    assert "transduce: . cannot be read as sound: it is a directory" in err


def test_a_file_name_that_is_not_utf8_is_printed(run, tmp_path, monkeypatch, capsys):
    name = bytes(tmp_path) + b"/caf\xe9.wav"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(name + b"\n")))
    with pytest.raises(SystemExit):
        transcribe(run, [Path("-")], "--format", "json")
    out, err = capsys.readouterr()
    assert json.loads(out)["audio"] == f"{tmp_path}/caf\ufffd.wav"
    assert json.loads(out)["error"] in err and "caf\ufffd.wav cannot be read: No such file" in err


def test_too_long_file_names_fail_alone(run, folder, tmp_path, monkeypatch, capsys):
    """From a manifest and as an argument: more than 255 bytes, more than a path may have."""
    sound = bytes(folder / "8bit.wav")
    names = [sound, b"a" * 300 + b".wav", b"d/" * 3000 + b"x.wav", sound]
    (tmp_path / "all.tsv").write_bytes(b"id\taudio\n" + b"".join(b"%d\t%s\r\n" % each for each in enumerate(names)))
    with pytest.raises(SystemExit) as end:
        transcribe(run, [tmp_path / "all.tsv", "a" * 300 + ".wav"], "--output", str(tmp_path / "out"))
    assert end.value.code == 1
    assert (tmp_path / "out").read_text().split("\n") == ["green red", "", "", "green red", "", ""]
    err = capsys.readouterr().err
    assert err.count(" cannot be read: ") == 3 and "3 of 5 files could not be transcribed" in err


@pytest.fixture
def stdin(monkeypatch):
    def give(raw: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return give


@pytest.mark.parametrize(("kind", "subtype"), [
    ("WAV", "PCM_16"), ("RF64", "PCM_16"), ("W64", "PCM_16"), ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("CAF", "PCM_16"),
    ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
])  # fmt: skip
def test_audio_from_standard_input(run, stdin, capsys, kind, subtype):
    """Of every format that libsndfile writes; another file may stand beside it."""
    file = io.BytesIO()
    soundfile.write(file, sound("red blue"), RATE, format=kind, subtype=subtype)
    stdin(file.getvalue())
    assert transcribe(run, [Path("-")], "--format", "json") == 0
    got = json.loads(capsys.readouterr().out)
    assert (got["audio"], got["text"]) == ("standard input", "red blue")


def test_wav_of_unknown_length_is_read_to_its_end(run, stdin, capsys):
    """As ffmpeg -f wav - writes it: the header promises 4 GB."""
    file = io.BytesIO()
    soundfile.write(file, sound("green red"), RATE, format="WAV", subtype="PCM_16")
    raw = bytearray(file.getvalue())
    raw[4:8] = raw[40:44] = b"\xff" * 4
    stdin(bytes(raw))
    assert transcribe(run, [Path("-")]) == 0
    assert capsys.readouterr() == ("green red\n", "")


@pytest.mark.parametrize("raw", [
    np.random.default_rng(1).bytes(4096), b"\x93NUMPY\x01\x00v\x00{'descr'", b"\x7fELF" + bytes(900), b"PK\x03\x04\n" * 99,
], ids=["noise", "npy", "elf", "zip"])  # fmt: skip
def test_binary_input_gives_one_error(run, stdin, capsys, raw):
    stdin(raw)
    with pytest.raises(SystemExit) as stop:
        transcribe(run, [Path("-")])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (1, "\n")
    assert err.startswith("transduce: standard input cannot be read as sound") and len(err.splitlines()) == 2


def test_undecodable_audio_gives_one_error(run, stdin, capsys):
    stdin(b"\x00\x00\x00\x20ftypM4A \x00\x00\x00\x00" + bytes(2000))
    with pytest.raises(SystemExit) as stop:
        transcribe(run, [Path("-")])
    assert stop.value.code == 1
    message, count = capsys.readouterr().err.splitlines()
    assert message.startswith("transduce: standard input cannot be read as sound") and "1 of 1 files" in count


def test_file_names_that_begin_like_audio_are_file_names(run, folder, tmp_path, stdin, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ID3.wav").write_bytes((folder / "8000.wav").read_bytes())
    stdin(b"ID3.wav\n")
    assert transcribe(run, [Path("-")]) == 0
    assert capsys.readouterr().out == "red blue\n"


def test_a_manifest_is_expanded_to_its_recordings(run, tmp_path, capsys, monkeypatch):
    """Paths are relative to it, wherever one stands; no other column is needed, and texts are not read."""
    texts = ["red", "blue green"]
    recordings = record(tmp_path / "a", texts)
    (tmp_path / "b.tsv").write_text("audio\ttext\n" + "".join(f"a/{r.audio.name}\twrong\n" for r in recordings[::-1]))
    (tmp_path / "nemo.json").write_text(json.dumps({"audio_filepath": f"a/{recordings[1].audio.name}"}) + "\n")
    monkeypatch.chdir(tmp_path / "a")
    lists = [Path("a.tsv"), recordings[0].audio, Path("../b.tsv"), Path("../nemo.json")]
    assert transcribe(run, lists, "--format", "json") == 0
    got = [json.loads(line) for line in lines_of(capsys.readouterr().out)]
    assert [each["text"] for each in got] == [*texts, "red", *texts[::-1], texts[1]]
    assert got[0]["audio"] == recordings[0].audio.name and got[3]["audio"] == f"../a/{recordings[1].audio.name}"
    (tmp_path / "c.tsv").write_text("id\tsound\na\tb.wav\n")
    (tmp_path / "d.tsv").write_text("id\taudio\na\t\n")
    assert transcribe(run, [tmp_path / "c.tsv"]) == 2
    assert transcribe(run, [tmp_path / "d.tsv"]) == 2
    assert capsys.readouterr().err == (
        "transduce: a list of recordings must have a column audio (or audio_filepath, file_name, path), but "
        f"{tmp_path / 'c.tsv'}, line 2, has 'id, sound'; name the columns of a table in its first line, with tabs between "
        "them, or commas where its name ends in .csv\n"
        f"transduce: audio must name a file, but {tmp_path / 'd.tsv'}, line 2, names none; name one in the column audio, or leave out the line\n"
    )


@pytest.mark.parametrize(
    ("name", "first", "line"), [("metadata.csv", "file_name,text\n", "{},wrong\n"), ("wav.scp", "", "id-{0} {0}\n")]
)
def test_a_folder_with_a_list_is_read_in_the_order_of_the_list(run, tmp_path, capsys, name, first, line):
    """As training reads it, so that scores compare each text with its own reference; files are in another order."""
    recordings = record(tmp_path, ["red", "blue green", "red blue"])
    (tmp_path / name).write_text(first + "".join(line.format(r.audio.name) for r in (recordings[2], recordings[0])))
    assert transcribe(run, [tmp_path]) == 0
    assert lines_of(capsys.readouterr().out) == ["red blue", "red"]


class Microphone:
    """What is used of sounddevice: a stream calls back with blocks of (samples, channels) while it is open."""

    PortAudioError = type("PortAudioError", (Exception,), {})

    def __init__(self, waveform: np.ndarray | None, rate: int) -> None:
        self.waveform, self.rate = waveform, rate

    def query_devices(self, *, kind: str) -> dict[str, object]:
        assert kind == "input"
        if self.waveform is None:
            raise self.PortAudioError("Error querying device -1")
        return {"name": "stand-in", "default_samplerate": float(self.rate)}

    @contextmanager
    def InputStream(self, *, samplerate, channels, dtype, callback):
        assert (samplerate, channels, dtype) == (self.rate, 1, "float32")
        block = np.empty((500, 1), np.float32)  # used again and again
        for start in range(0, len(self.waveform), len(block)):
            part = self.waveform[start : start + len(block)]
            block[: len(part), 0] = part
            callback(block[: len(part)], len(part), None, None)
        yield


@pytest.fixture
def microphone(monkeypatch):
    def plug(waveform: np.ndarray | None, rate: int = RATE) -> None:
        monkeypatch.setitem(sys.modules, "sounddevice", Microphone(waveform, rate))
        monkeypatch.setattr("transduce.errors.find_spec", lambda name: name == "sounddevice")

    return plug


@pytest.mark.parametrize("rate", [8000, 44100])
def test_a_microphone_is_recorded_until_enter(run, stdin, microphone, capsys, rate):
    microphone(sound("red blue", rate=rate), rate)
    stdin(b"\n")
    assert main(["transcribe", str(run), "--microphone", "--format", "srt", *CPU]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n")[2] == "red blue" and err == "recording; Enter ends it\n"


def test_ctrl_c_ends_a_recording_and_not_the_program(run, microphone, monkeypatch, capsys):
    def interrupted(_: object) -> str:
        raise KeyboardInterrupt

    microphone(sound("green"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(readline=partial(interrupted, None)))
    assert main(["transcribe", str(run), "--microphone", *CPU]) == 0
    assert capsys.readouterr().out == "green\n"


def test_a_missing_microphone_is_reported(run, folder, stdin, microphone, monkeypatch, capsys):
    arguments = ["transcribe", str(run), "--microphone", *CPU]

    def refusal(*more: str) -> str:
        assert main([*arguments, *more]) == 2
        return capsys.readouterr().err

    with monkeypatch.context() as without:
        without.setattr("transduce.errors.find_spec", lambda _: None)
        assert refusal() == (
            "transduce: a microphone needs the library sounddevice, but it is not installed; in a clone of "
            "transduce: pip install '.[microphone]'\n"
        )
    assert "--microphone alone" in refusal(str(folder / "8000.wav"))
    microphone(None)
    assert refusal() == (
        "transduce: recording needs a microphone, but Error querying device -1; plug one in, or name a sound file\n"
    )
    microphone(np.zeros(0))
    stdin(b"\n")
    assert "nothing was recorded" in refusal()


NAMES = (b"caf\xe9.wav", b"two\nlines\tand a tab.wav")


def test_any_file_name_works_in_every_format(run, folder, tmp_path, capsys):
    """A line stays a line; JSON alone can spell a line break."""
    paths = [Path(os.fsdecode(bytes(tmp_path) + b"/" + name)) for name in NAMES]
    for path in paths:
        path.write_bytes((folder / "8000.wav").read_bytes())
    shown = [str(folder / "8000.wav"), *(f"{tmp_path}/{name.decode(errors='replace')}" for name in NAMES)]
    got = {}
    for kind in ("text", "tsv", "json"):
        assert transcribe(run, [folder / "8000.wav", *paths], "--format", kind) == 0
        got[kind] = capsys.readouterr().out.splitlines()
    assert got["text"] == ["red blue"] * 3
    _, *rows = [row.split("\t") for row in got["tsv"]]
    assert [row[0] for row in rows] == [name.replace("\n", " ").replace("\t", " ") for name in shown]
    assert rows[0][1:] == rows[1][1:] == rows[2][1:] and rows[0][-1].strip() == "red blue"
    objects = [json.loads(line) for line in got["json"]]
    assert objects == [{**objects[0], "audio": name} for name in shown]
    for path in (folder / "8000.wav", *paths):
        assert transcribe(run, [path], "--format", "srt") == 0
        got[path] = capsys.readouterr().out
    assert got[paths[0]] == got[paths[1]] == got[folder / "8000.wav"]


@pytest.mark.parametrize("name", [b"caf\xe9.wav", b"two\nlines.wav"], ids=["not UTF-8", "two lines"])
def test_a_bad_file_of_any_name_is_reported_in_one_line(run, tmp_path, capsys, name):
    path = Path(os.fsdecode(bytes(tmp_path) + b"/" + name))
    path.write_bytes(b"no sound" * 100)
    with pytest.raises(SystemExit) as stopped:
        transcribe(run, [path])
    assert stopped.value.code == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"transduce: {tmp_path}/{name.decode(errors='replace')} cannot be read".replace("\n", " "))
    assert second == "transduce: 1 of 1 files could not be transcribed"
