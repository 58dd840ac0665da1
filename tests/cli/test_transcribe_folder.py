"""transduce transcribe --output-dir: a file for each recording, in one format or several; and what FFmpeg decodes."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import soundfile

from tests.cli.tones import tone_run, transcribe
from tests.runs import RATE, sound
from transduce.cli.transcribe import Transcription

TEXTS = {"a.wav": "red blue", "day/a.flac": "green red black", "day/b.v2.wav": "black"}
ALL = ("--format", "text", "--format", "tsv", "--format", "json", "--format", "srt", "--format", "vtt")


@pytest.fixture(scope="session")
def run(once) -> Path:
    return once("tone_run", tone_run)


@pytest.fixture
def recordings(tmp_path) -> Path:
    for name, text in TEXTS.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, sound(text), RATE)
    (tmp_path / "in" / "notes.txt").write_text("no sound")
    return tmp_path / "in"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")


def cues(text: str, point: str) -> list[tuple[float, float, str]]:
    """Cues as a player reads them: a line with an arrow has the times, the lines to the next blank one are the text."""
    got, moment = [], rf"(\d\d):([0-5]\d):([0-5]\d)\{point}(\d{{3}})"
    lines = iter(text.split("\n"))
    for line in lines:
        if match := re.fullmatch(f"{moment} --> {moment}", line):
            h, m, s, ms, *end = map(int, match.groups())
            times = [3600 * h + 60 * m + s + ms / 1000, 3600 * end[0] + 60 * end[1] + end[2] + end[3] / 1000]
            got.append((*times, "\n".join(iter(lambda: next(lines), ""))))
    return got


def test_an_output_does_not_overwrite_a_recording(run, recordings, capsys):
    path = recordings / "day" / "a.flac"
    content = path.read_bytes()
    assert transcribe(run, [recordings], "--output", str(path)) == 2
    assert str(path) in capsys.readouterr().err and path.read_bytes() == content


def test_each_recording_gets_a_file_in_each_format(run, recordings, tmp_path, capsys):
    out = tmp_path / "out"
    assert transcribe(run, [recordings], *ALL, "--output-dir", str(out)) == 0
    stems = ["a", "day/a", "day/b.v2"]
    assert files(out) == sorted(f"{stem}.{kind}" for stem in stems for kind in ("json", "srt", "tsv", "txt", "vtt"))
    for (name, text), stem in zip(TEXTS.items(), stems, strict=True):
        seconds = round(soundfile.info(recordings / name).duration, 3)
        read = {path.suffix: path.read_text() for path in (out / stem).parent.glob(f"{(out / stem).name}.*")}
        assert read[".txt"] == f"{text}\n"
        (plain,) = map(json.loads, read[".json"].splitlines())
        assert plain["audio"] == str(recordings / name) and plain["text"] == text
        assert [(each["start"], each["end"]) for each in plain["segments"]] == [(0.0, seconds)]
        header, row = (line.split("\t") for line in read[".tsv"].splitlines())
        assert dict(zip(header, row, strict=True)).items() >= {"start": "0.000", "end": f"{seconds:.3f}"}.items()
        assert read[".srt"].startswith("1\n") and read[".vtt"].startswith("WEBVTT\n\n")
        ((start, end, shown),) = cues(read[".srt"], ",")
        assert (start, shown) == (0.0, text) and end == pytest.approx(seconds, abs=0.0011)
        assert cues(read[".vtt"], ".") == [(start, end, text)]
    assert capsys.readouterr().out == ""


def test_another_recording_of_the_same_name_is_refused(run, recordings, tmp_path, capsys):
    out, other = tmp_path / "out", tmp_path / "other"
    assert transcribe(run, [recordings / "a.wav"], "--output-dir", str(out)) == 0
    other.mkdir()
    shutil.copy(recordings / "day" / "b.v2.wav", other / "a.wav")
    capsys.readouterr()
    assert transcribe(run, [other], "--output-dir", str(out)) == 2
    assert capsys.readouterr().err == (
        f"transduce: recordings must have different names, but {recordings / 'a.wav'} and {other / 'a.wav'} would both "
        f"become {out / 'a.txt'}; name another --output-dir for one of them\n"
    )
    assert (out / "a.txt").read_text() == f"{TEXTS['a.wav']}\n"


def test_missing_or_moved_audio_does_not_reserve_a_name(run, recordings, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        transcribe(run, [tmp_path / "mistyped" / "a.wav"], "--output-dir", str(out))
    assert end.value.code == 1
    assert transcribe(run, [recordings / "a.wav"], "--output-dir", str(out)) == 0
    moved = recordings.rename(tmp_path / "moved")
    assert transcribe(run, [moved / "a.wav"], "--output-dir", str(out)) == 0
    assert (out / "a.txt").read_text() == f"{TEXTS['a.wav']}\n"


def test_a_rerun_transcribes_missing_and_changed_recordings(run, recordings, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    done = []
    write = Transcription._write

    def watched(job: Transcription, transcript) -> None:
        done.append(transcript.path.name)
        write(job, transcript)

    monkeypatch.setattr(Transcription, "_write", watched)

    def again(*options: str) -> list[str]:
        done.clear()
        assert transcribe(run, [recordings], "--output-dir", str(out), *options) == 0
        return sorted(done)

    assert again() == ["a.flac", "a.wav", "b.v2.wav"]
    with monkeypatch.context() as without_model:
        without_model.setattr(Transcription, "load", None)
        assert again() == []
    assert capsys.readouterr().err.splitlines()[-1] == f"transduce: 3 of 3 are done, in {out}"
    (out / "day" / "a.txt").unlink()
    assert again() == ["a.flac"]
    os.utime(recordings / "a.wav", (2**31, 2**31))  # as a copy without its date
    assert again() == []
    assert again("--format", "text", "--format", "srt") == ["a.flac", "a.wav", "b.v2.wav"]
    assert again("--format", "srt") == []
    shutil.copy(recordings / "day" / "a.flac", recordings / "a.wav")
    os.utime(recordings / "a.wav", (0, 0))  # an older take in its place
    assert again() == ["a.wav"]
    assert (out / "a.txt").read_text() == (out / "day" / "a.txt").read_text() and not (out / "a.srt").exists()
    assert again() == []
    assert transcribe(run, [recordings], "--output-dir", str(out), "--max-seconds", "3") == 2
    assert "settings.max_seconds: absent -> 3.0; name another --output-dir" in capsys.readouterr().err


def test_bad_audio_has_no_output_and_is_tried_again(run, recordings, tmp_path, capsys):
    (recordings / "bad.wav").write_text("no sound\n" * 40)
    for _ in range(2):
        with pytest.raises(SystemExit) as stop:
            transcribe(run, [recordings], "--output-dir", str(tmp_path / "out"))
        assert stop.value.code == 1 and f"{recordings / 'bad.wav'} cannot be read" in capsys.readouterr().err
    assert files(tmp_path / "out") == ["a.txt", "day/a.txt", "day/b.v2.txt"]


def test_a_recording_that_is_listed_twice_has_one_file(run, recordings, tmp_path, capsys):
    table = tmp_path / "list.tsv"
    table.write_text("audio\ttext\nin/a.wav\tone\nin/day/b.v2.wav\ttwo\nin/a.wav\tthree\n")
    assert transcribe(run, [table, recordings / "a.wav"], "--output-dir", str(tmp_path / "out")) == 0
    assert files(tmp_path / "out") == ["a.txt", "b.v2.txt"]
    assert (tmp_path / "out" / "a.txt").read_text() == f"{TEXTS['a.wav']}\n"
    assert capsys.readouterr().err == ""


def test_two_recordings_of_one_name_are_refused(run, recordings, tmp_path, capsys):
    pair = [recordings / "a.wav", recordings / "day" / "a.flac"]
    assert transcribe(run, pair, "--output-dir", str(tmp_path / "out")) == 2
    assert capsys.readouterr().err == (
        f"transduce: recordings must have different names, but {pair[0]} and {pair[1]} would both become "
        f"{tmp_path / 'out' / 'a.txt'}; name another --output-dir for one of them\n"
    )
    assert not (tmp_path / "out").exists()


def test_conflicting_options_are_refused(run, recordings, tmp_path, capsys):
    out = ("--output-dir", str(tmp_path / "out"))
    for paths, options, reason in (
        ([recordings], ("--output-dir", str(recordings)), f"{recordings} has other files"),
        ([recordings], (*out, "--stream"), "leave out --stream"),
        ([recordings], (*out, "--output", "x"), "--output and --part"),
        ([recordings], ("--format", "srt", "--format", "json"), "several formats need --output-dir"),
        ([tmp_path / "empty"], out, f"{tmp_path / 'empty'} has none"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert transcribe(run, paths, *options) == 2
        assert reason in capsys.readouterr().err
    assert files(recordings) == ["a.wav", "day/a.flac", "day/b.v2.wav", "notes.txt"]


def test_a_folder_without_output_dir_prints_a_line_each(run, recordings, capsys):
    assert transcribe(run, [recordings]) == 0
    assert capsys.readouterr().out.splitlines() == list(TEXTS.values())


@pytest.mark.process
def test_workers_write_the_same_files(run, recordings, tmp_path):
    for name, options in (("one", ()), ("two", ("--workers", "2"))):
        assert transcribe(run, [recordings], "--format", "json", "--output-dir", str(tmp_path / name), *options) == 0
    one, two = (
        {name: (tmp_path / each / name).read_text() for name in files(tmp_path / each)} for each in ("one", "two")
    )
    assert one == two and len(one) == 3


def test_missing_ffmpeg_is_reported_with_advice(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.m4a").write_bytes(b"\x00\x00\x00\x20ftypM4A " + bytes(99))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit):
        transcribe(run, [tmp_path / "a.m4a"])
    assert (
        "a.m4a cannot be read as sound: .m4a needs FFmpeg, which is not installed; install it"
        in capsys.readouterr().err
    )


FAKE = """#!/bin/sh
# copies its input, which is W64, to its output
while [ $# -gt 1 ]; do [ "$1" = -i ] && input="${2#file:}"; shift; done
[ "$(head -c 4 "$input")" = riff ] || { echo "$input: no sound in it" >&2; exit 1; }
cp "$input" "$1"
"""


@pytest.mark.process
def test_ffmpeg_output_is_read_and_its_errors_are_shown(run, tmp_path, monkeypatch, capsys):
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    soundfile.write(tmp_path / "a.w64", sound("red blue"), RATE)
    (tmp_path / "a.w64").rename(tmp_path / "a: b.MP4")
    (tmp_path / "bad.webm").write_bytes(bytes(99))
    with pytest.raises(SystemExit):
        transcribe(run, [tmp_path / "a: b.MP4", tmp_path / "bad.webm"])
    out, err = capsys.readouterr()
    assert out == "red blue\n\n"
    assert f"bad.webm cannot be read as sound: FFmpeg says {tmp_path}/bad.webm: no sound in it; convert it" in err
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(SystemExit):
        transcribe(run, [tmp_path / "bad.webm"])
    assert "bad.webm cannot be read as sound: FFmpeg says nothing (status -9); convert it" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs FFmpeg")
@pytest.mark.parametrize("name", ["a.m4a", "a.mp4", "a.webm", "a.mkv"])
def test_formats_decoded_by_the_real_ffmpeg(run, tmp_path, capsys, name):
    soundfile.write(tmp_path / "a.wav", sound("red blue", rate=48000), 48000)
    command = ["ffmpeg", "-nostdin", "-v", "error", "-i", tmp_path / "a.wav", "-b:a", "128k", tmp_path / name]
    subprocess.run(command, check=True)
    assert transcribe(run, [tmp_path / name]) == 0
    assert capsys.readouterr() == ("red blue\n", "")
