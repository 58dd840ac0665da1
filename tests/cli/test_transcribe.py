"""transduce transcribe as a user meets it: names and streams in, texts out, bad sound refused alone."""

import io
import json
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F

from tests.runs import FEATURES, RATE, SPEECH, TONES, random_run, random_speech_run, record, sentences, sound
from transduce.cli.main import main
from transduce.data.speech import microphone as microphone_module
from transduce.data.speech.features import FeatureExtractor
from transduce.data.text.sentencepiece_bpe import PAD, SentencePieceTokenizer
from transduce.experiment.run import with_frames
from transduce.files import save_weights
from transduce.model.transformer import Transformer
from transduce.run import Run, save_run
from transduce.tasks.load import load


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """It knows the tones by CTC alone.

    The layers pass on what flows in, position by position; the head was shown which of them are loud, and the words.
    """
    feature_extractor = FeatureExtractor(replace(FEATURES, normalize="none"))
    texts = [*TONES, *sentences(24, seed=7)]
    tokenizer = SentencePieceTokenizer.train(texts, vocab_size=290)
    config = with_frames(replace(SPEECH, positions="rotary"), FEATURES.n_features, tokenizer.vocab_size)
    torch.manual_seed(1)
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.encoder.layers.parameters():
            parameter.zero_()
    states, targets = [], []
    for seed, (text, ids) in enumerate(zip(texts, tokenizer.encode(texts), strict=True)):
        waveform = torch.from_numpy(sound(text, seed=seed)).float()
        middles = waveform[60:].unfold(0, 160, 160)  # of every position's 0.035 s
        with torch.no_grad():
            states.append(model.encode(feature_extractor(waveform)[None]).states[0, : len(middles)])
        loud = (middles[: len(states[-1])].square().mean(dim=1) > 0.025).long()
        nth = (loud.diff(prepend=torch.zeros(1).long()) > 0).cumsum(0)
        assert len(ids) == nth[-1]
        targets.append(torch.tensor([PAD, *ids])[nth * loud])
    optimizer = torch.optim.Adam(model.ctc.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model.ctc(torch.cat(states)), torch.cat(targets)).backward()
        optimizer.step()
    directory = tmp_path_factory.mktemp("cli") / "run"
    save_run(directory, Run(config, {"decoding": {"ctc_weight": 1.0}}, None, tokenizer, feature_extractor))
    save_weights(directory / "model.safetensors", model)
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Whatever people call a recording."""
    folder = tmp_path_factory.mktemp("sound")
    for rate in (8000, 44100, 48000, 96000):
        soundfile.write(folder / f"{rate}.wav", sound("red blue", rate=rate), rate)
    soundfile.write(folder / "8bit.wav", sound("green red"), RATE, subtype="PCM_U8")
    soundfile.write(folder / "stereo.flac", np.stack([sound("black"), sound("black")], axis=1), RATE)
    (folder / "cut.wav").write_bytes((folder / "8000.wav").read_bytes()[:-2000])
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("this is no sound\n" * 40)
    soundfile.write(folder / "no_samples.wav", np.zeros(0), RATE)
    broken = sound("red")
    broken[700] = np.nan
    soundfile.write(folder / "nan.wav", broken, RATE, subtype="FLOAT")
    soundfile.write(folder / "short.wav", sound("red")[:150], RATE)
    (folder / "header.flac").write_bytes((folder / "stereo.flac").read_bytes()[:60])
    return folder


GOOD = {
    "8000.wav": "red blue",
    "44100.wav": "red blue",
    "48000.wav": "red blue",
    "96000.wav": "red blue",
    "8bit.wav": "green red",
    "stereo.flac": "black",
    "cut.wav": "red blue",
}
BAD = ["none.wav", "empty.wav", "text.wav", "no_samples.wav", "nan.wav", "short.wav", "header.flac"]
TALK = sentences(90, seed=5)
CPU = ["--device", "cpu"]


def transcribe(run: Path, paths: list[Path], *options: str) -> int:
    return main(["transcribe", str(run), *map(str, paths), *CPU, "--greedy", *options])


def lines_of(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def test_good_sound_of_every_kind_gives_what_was_said(run, folder, capsys):
    assert transcribe(run, [folder / name for name in GOOD]) == 0
    assert lines_of(capsys.readouterr().out) == list(GOOD.values())


def test_bad_sound_is_refused_alone_and_the_exit_code_is_1(run, folder, capsys):
    paths = [folder / name for pair in zip(GOOD, BAD, strict=True) for name in pair]
    with pytest.raises(SystemExit) as stop:
        transcribe(run, paths)
    assert stop.value.code == 1
    printed = capsys.readouterr()
    lines = lines_of(printed.out)
    assert lines[::2] == list(GOOD.values()) and lines[1::2] == [""] * len(BAD)
    errors = [line for line in printed.err.split("\n") if line.startswith("transduce: ")]
    told = errors[: len(BAD)]
    assert errors[len(BAD) :] == ["transduce: 7 of 14 files could not be transcribed"]
    for name, line in zip(BAD, told, strict=True):
        assert line.startswith(f"transduce: {folder / name} cannot be ")
    assert told[0].endswith("No such file or directory; check the path")
    assert told[1].endswith("the file is empty; fetch it again or leave it out")
    assert "it is damaged or of an unknown format" in told[2]
    assert told[3].endswith("it has no samples; record it again or leave it out")
    assert told[4].endswith("it has NaN or infinite samples; convert it again or leave it out")
    assert told[5].endswith("but it has 150; leave it out or add silence")


def test_bad_sound_has_its_place_in_json_and_none_in_a_table(run, folder, tmp_path, capsys):
    paths = [folder / "none.wav", folder / "8000.wav", folder / "text.wav"]
    for kind in ("json", "tsv"):
        with pytest.raises(SystemExit) as stop:
            transcribe(run, paths, "--format", kind, "--output", str(tmp_path / kind))
        assert stop.value.code == 1
    found = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    assert [each["audio"] for each in found] == [str(path) for path in paths]
    assert [each["text"] for each in found] == ["", "red blue", ""]
    assert [len(each["segments"]) for each in found] == [0, 1, 0]
    assert found[0]["error"] == f"{paths[0]} cannot be read: No such file or directory; check the path"
    assert "error" not in found[1]
    header, row = [line.split("\t") for line in (tmp_path / "tsv").read_text().removesuffix("\n").split("\n")]
    assert header == ["audio", "start", "stop", "score", "text"]
    assert row[:3] == [str(paths[1]), "0.000", f"{len(sound('red blue')) / RATE:.3f}"] and row[4].strip() == "red blue"
    assert capsys.readouterr().out == ""


@pytest.fixture(scope="module")
def long(folder) -> Path:
    """TALK with pauses in which there is a little noise."""
    path, rng = folder / "long.wav", np.random.default_rng(1)
    parts = [(sound(text, seed=seed), 0.003 * rng.standard_normal(RATE // 4)) for seed, text in enumerate(TALK)]
    soundfile.write(path, np.concatenate([part for pair in parts for part in pair]), RATE)
    return path


def covers(spans: list[tuple[float, float]], path: Path) -> None:
    """One piece after the other, of at most 15 s, over more than a minute; only the middles of pauses are left out."""
    seconds = soundfile.info(path).duration
    assert (
        len(spans) >= 5 and seconds > 60 and 0 <= spans[0][0] < 0.1 and seconds - 0.4 < spans[-1][1] <= seconds + 6e-4
    )
    assert all(0 <= start - stop < 0.3 for (_, stop), (start, _) in pairwise(spans))
    assert all(0 < stop - start <= 15.001 for start, stop in spans)


def test_a_long_file_comes_in_pieces_whatever_the_format(run, long, tmp_path):
    for kind in ("text", "tsv", "json", "srt"):
        assert transcribe(run, [long], "--format", kind, "--max-seconds", "15", "--output", str(tmp_path / kind)) == 0
    (found,) = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    covers([(p["start"], p["stop"]) for p in found["segments"]], long)
    texts = [p["text"] for p in found["segments"]]
    assert found["text"] == " ".join(TALK)
    assert (tmp_path / "text").read_text() == " ".join(text.strip() for text in texts) + "\n" == found["text"] + "\n"

    rows = [line.split("\t") for line in (tmp_path / "tsv").read_text().removesuffix("\n").split("\n")[1:]]
    covers([(float(start), float(stop)) for _, start, stop, _, _ in rows], long)
    assert [row[4] for row in rows] == [text.replace("\t", " ") for text in texts]

    blocks = [block.split("\n") for block in (tmp_path / "srt").read_text().removesuffix("\n\n").split("\n\n")]
    assert [block[0] for block in blocks] == [str(i + 1) for i in range(len(blocks))]
    assert all(len(block) == 3 for block in blocks)
    assert [block[2] for block in blocks] == [text.strip() for text in texts]
    moments = [re.fullmatch(r"00:(\d\d):(\d\d),(\d{3}) --> 00:(\d\d):(\d\d),(\d{3})", b[1]).groups() for b in blocks]
    numbers = [list(map(int, m)) for m in moments]
    covers([(60 * a + b + c / 1000, 60 * d + e + f / 1000) for a, b, c, d, e, f in numbers], long)


def spoken(samples: np.ndarray) -> list[tuple[float, float]]:
    """When the tones in a sound begin and end, in seconds."""
    loud = np.convolve(np.abs(samples) > 0.05, np.ones(40), mode="same") > 0  # 5 ms, as a tone passes through 0
    edges = np.flatnonzero(np.diff(loud.astype(int), prepend=0, append=0)) / RATE
    return list(zip(edges[::2] + 0.0025, edges[1::2] - 0.0025, strict=True))


def test_words_have_the_times_of_the_tones_that_they_are(run, tmp_path):
    """In a recording of many segments, and in every format that has times; frames are 10 ms apart, windows 25 ms long."""
    samples = np.concatenate([sound(text, seed=seed) for seed, text in enumerate(TALK[:12])])
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    for kind in ("json", "srt", "vtt"):
        asked = ["--format", kind, "--word-times", "--max-seconds", "3", "--output", str(tmp_path / kind)]
        assert transcribe(run, [tmp_path / "a.wav"], *asked) == 0
    (found,) = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    words = [word for segment in found["segments"] for word in segment["words"]]
    assert [word["word"] for word in words] == " ".join(TALK[:12]).split() and len(found["segments"]) > 2
    times, said = [(word["start"], word["stop"]) for word in words], spoken(samples)
    assert np.abs(np.subtract(times, said)).max() < 0.03
    assert all(word["confidence"] > 0.8 for word in words)

    cues = [block.split("\n") for block in (tmp_path / "srt").read_text().removesuffix("\n\n").split("\n\n")]
    assert [cue[2] for cue in cues] == [word["word"] for word in words]
    assert np.allclose([tuple(map(seconds, cue[1].split(" --> "))) for cue in cues], times, atol=0.0011)
    head, *cues = (tmp_path / "vtt").read_text().removesuffix("\n\n").split("\n\n")
    lit = [pair for cue in cues for pair in re.findall(r"<([^>]*)>(\w+)", cue)]
    assert head == "WEBVTT" and len(cues) == len(found["segments"])
    assert [word for _, word in lit] == [word["word"] for word in words]
    assert np.allclose([seconds(moment) for moment, _ in lit], [word["start"] for word in words], atol=0.0011)


def test_a_stream_is_the_transcript_piece_by_piece_in_time(run, long, folder, tmp_path, capsys):
    """Each segment is printed before the next ones are searched; bad sound is named, and the exit code is 1."""
    soundfile.write(tmp_path / "a.wav", soundfile.read(long)[0][: 16 * RATE], RATE)
    options = ["--max-seconds", "3", "--stream"]
    for kind in ("srt", "tsv"):
        assert transcribe(run, [tmp_path / "a.wav"], "--format", kind, *options[:2]) == 0
        want = capsys.readouterr().out
        assert transcribe(run, [tmp_path / "a.wav"], "--format", kind, *options) == 0
        assert capsys.readouterr().out == want and want.count("\n") > 5
    with pytest.raises(SystemExit) as stop:
        transcribe(run, [folder / "none.wav", tmp_path / "a.wav"], "--format", "json", *options)
    out, err = capsys.readouterr()
    assert stop.value.code == 1 and "none.wav cannot be read" in err and "1 of 2 files could not be" in err
    pieces = [json.loads(line) for line in out.splitlines()]
    assert [piece["start"] for piece in pieces] == sorted(piece["start"] for piece in pieces)
    transcriber = load(run)
    (sound_read,) = transcriber.read([tmp_path / "a.wav"], replace(transcriber.decoding, max_seconds=3.0))
    searched, stream = [], transcriber.stream
    transcriber.stream = lambda sounds, *rest, **more: searched.append(sounds) or stream(sounds, *rest, **more)
    first = next(transcriber.in_order(sound_read, beam_size=1))
    assert len(searched) == 1 < len(sound_read.segments) / 4
    assert first.outputs[0].text == pieces[0]["text"]
    assert transcribe(run, [long], "--stream", "--output", str(tmp_path / "out")) == 2
    assert capsys.readouterr().err.endswith("so leave out --output, --workers and --part with --stream\n")


def seconds(moment: str) -> float:
    """Of hours:minutes:seconds with a comma or a point."""
    hours, minutes, rest = moment.replace(",", ".").split(":")
    return round(3600 * int(hours) + 60 * int(minutes) + float(rest), 3)


def test_details_need_a_format_that_has_them(run, folder, capsys):
    for options, told in {
        ("--word-times",): "times of words need --format json, srt or vtt, but it is text; add one of them",
        ("--token-scores", "--format", "srt"): "scores of tokens need --format json, but it is srt; add --format json",
        ("--n-best", "2"): "several outputs need --format json, but it is text; leave out --n-best, or add it",
    }.items():
        assert transcribe(run, [folder / "8000.wav"], *options) == 2
        assert capsys.readouterr().err == f"transduce: {told}\n"


def test_json_has_every_output_with_its_tokens(run, folder, capsys):
    """The n best, the best of which is the text; a token's log-probability is that of attention."""
    options = ["--format", "json", "--n-best", "3", "--token-scores", *CPU]
    assert main(["transcribe", str(run), str(folder / "8000.wav"), *options]) == 0
    (segment,) = json.loads(capsys.readouterr().out)["segments"]
    outputs = segment.pop("outputs")
    assert len(outputs) == 3 and outputs[0].items() <= segment.items() and outputs[0]["text"] == "red blue"
    assert [output["score"] for output in outputs] == sorted((output["score"] for output in outputs), reverse=True)
    transcriber = load(run)
    for output in outputs:
        (want,) = transcriber.score([folder / "8000.wav"], [output["text"]])
        assert [token["token"] for token in output["tokens"]] == want.tokens
        assert [token["log_prob"] for token in output["tokens"]] == pytest.approx(want.log_probs.tolist(), abs=1e-3)


def test_subtitles_belong_to_one_file(run, folder, capsys):
    assert transcribe(run, [folder / "8000.wav"] * 2, "--format", "srt") == 2
    assert capsys.readouterr().err == (
        "transduce: subtitles belong to one file, but 2 were named; run it once for each\n"
    )


def test_names_come_from_standard_input(run, folder, monkeypatch, capsys):
    raw = "".join(f"{folder / name}{end}" for name, end in (("8000.wav", "\r\n"), ("8bit.wav", "\n"), ("cut.wav", "")))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw.encode())))
    assert transcribe(run, [folder / "stereo.flac", Path("-")]) == 0
    assert lines_of(capsys.readouterr().out) == ["black", "red blue", "green red", "red blue"]


def test_a_name_that_is_no_text_is_still_named(run, tmp_path, monkeypatch, capsys):
    name = bytes(tmp_path) + b"/caf\xe9.wav"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(name + b"\n")))
    with pytest.raises(SystemExit):
        transcribe(run, [Path("-")], "--format", "json")
    out, err = capsys.readouterr()
    assert json.loads(out)["audio"] == f"{tmp_path}/caf\ufffd.wav"
    assert json.loads(out)["error"] in err and "caf\ufffd.wav cannot be read: No such file" in err


@pytest.fixture
def stdin(monkeypatch):
    def give(raw: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return give


@pytest.mark.parametrize(("kind", "subtype"), [
    ("WAV", "PCM_16"), ("RF64", "PCM_16"), ("W64", "PCM_16"), ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("CAF", "PCM_16"),
    ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
])  # fmt: skip
def test_sound_itself_comes_from_standard_input(run, stdin, capsys, kind, subtype):
    """Of every format that libsndfile writes; another file may stand beside it."""
    file = io.BytesIO()
    soundfile.write(file, sound("red blue"), RATE, format=kind, subtype=subtype)
    stdin(file.getvalue())
    assert transcribe(run, [Path("-")], "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["audio"], found["text"]) == ("standard input", "red blue")


def test_a_stream_whose_length_was_unknown_is_read_to_its_end(run, stdin, capsys):
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
def test_binary_noise_gives_one_line(run, stdin, capsys, raw):
    stdin(raw)
    assert transcribe(run, [Path("-")]) == 2
    assert capsys.readouterr() == ("", (
        "transduce: standard input must be a sound file, or names of files, one a line, but it is binary and begins "
        f"with {' '.join(f'{byte:02x}' for byte in raw[:4])}; convert the sound to WAV, or name its file\n"
    ))  # fmt: skip


def test_sound_that_cannot_be_decoded_gives_one_line(run, stdin, capsys):
    stdin(b"\x00\x00\x00\x20ftypM4A \x00\x00\x00\x00" + bytes(2000))
    with pytest.raises(SystemExit) as stop:
        transcribe(run, [Path("-")])
    assert stop.value.code == 1
    told, count = capsys.readouterr().err.splitlines()
    assert told.startswith("transduce: standard input cannot be read as sound: it is damaged or of an unknown format (")
    assert told.endswith("); convert it to WAV or leave it out") and count.endswith(
        "1 of 1 files could not be transcribed"
    )


def test_names_that_look_like_sound_are_names(run, folder, tmp_path, stdin, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ID3.wav").write_bytes((folder / "8000.wav").read_bytes())
    stdin(b"ID3.wav\n")
    assert transcribe(run, [Path("-")]) == 0
    assert capsys.readouterr().out == "red blue\n"


def test_a_manifest_stands_for_the_sound_that_it_names(run, tmp_path, capsys, monkeypatch):
    """Paths are relative to it, wherever one stands; no other column is needed, and texts are not read."""
    texts = ["red", "blue green"]
    recordings = record(tmp_path / "a", texts)
    (tmp_path / "b.tsv").write_text("audio\ttext\n" + "".join(f"a/{r.audio.name}\twrong\n" for r in recordings[::-1]))
    monkeypatch.chdir(tmp_path / "a")
    assert transcribe(run, [Path("a.tsv"), recordings[0].audio, Path("../b.tsv")], "--format", "json") == 0
    found = [json.loads(line) for line in lines_of(capsys.readouterr().out)]
    assert [each["text"] for each in found] == [*texts, "red", *texts[::-1]]
    assert found[0]["audio"] == recordings[0].audio.name and found[3]["audio"] == f"../a/{recordings[1].audio.name}"
    (tmp_path / "c.tsv").write_text("id\tpath\na\tb.wav\n")
    (tmp_path / "d.tsv").write_text("id\taudio\na\t\n")
    assert transcribe(run, [tmp_path / "c.tsv"]) == 2
    assert transcribe(run, [tmp_path / "d.tsv"]) == 2
    assert capsys.readouterr().err == (
        f"transduce: a manifest's first line must name the column audio, but {tmp_path / 'c.tsv'} has id, path; add it, "
        "or name the sound files themselves\n"
        f"transduce: audio must name a file, but {tmp_path / 'd.tsv'}, line 2, names none; name one, or leave out the line\n"
    )


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
        monkeypatch.setattr(microphone_module, "find_spec", lambda name: name == "sounddevice")

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


def test_no_microphone_is_told(run, folder, stdin, microphone, monkeypatch, capsys):
    arguments = ["transcribe", str(run), "--microphone", *CPU]
    monkeypatch.setattr(microphone_module, "find_spec", lambda _: None)
    assert main(arguments) == 2
    assert main([*arguments, str(folder / "8000.wav")]) == 2
    microphone(None)
    assert main(arguments) == 2
    microphone(np.zeros(0))
    stdin(b"\n")
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        "transduce: a microphone needs the library sounddevice, but it is not installed; pip install "
        "'transduce[microphone]'\n"
        "transduce: name the files to transcribe, - for standard input (sound, or names of files), or --microphone alone\n"
        "transduce: a microphone must be there, but Error querying device -1; plug one in, or name a sound file\n"
        "recording; Enter ends it\n"
        "transduce: a microphone must give sound, but nothing came; look at the system's sound settings\n"
    )


@pytest.mark.parametrize("format", ["text", "tsv", "json", "srt"])
@pytest.mark.parametrize("name", [b"caf\xe9.wav", b"two\nlines\tand a tab.wav"], ids=["not UTF-8", "two lines"])
def test_any_name_of_a_file_works_in_every_format(run, folder, tmp_path, capsys, name, format):
    """A line stays a line; JSON alone can spell a line break."""
    path = Path(os.fsdecode(bytes(tmp_path) + b"/" + name))
    path.write_bytes((folder / "8000.wav").read_bytes())
    assert transcribe(run, [path], "--format", format) == 0
    plain = transcribe(run, [folder / "8000.wav"], "--format", format)
    out = capsys.readouterr().out
    assert plain == 0
    shown = f"{tmp_path}/" + name.decode(errors="replace")
    if format == "json":
        found, other = map(json.loads, out.splitlines())
        assert found == {**other, "audio": shown}
    elif format == "tsv":
        half = out.splitlines()
        assert half[: len(half) // 2] == [
            line.replace(str(folder / "8000.wav"), shown.replace("\n", " ").replace("\t", " "))
            for line in half[len(half) // 2 :]
        ]
    else:
        assert out[: len(out) // 2] == out[len(out) // 2 :] and "red blue" in out


@pytest.mark.parametrize("name", [b"caf\xe9.wav", b"two\nlines.wav"], ids=["not UTF-8", "two lines"])
def test_a_bad_file_of_any_name_is_named_in_one_line(run, tmp_path, capsys, name):
    path = Path(os.fsdecode(bytes(tmp_path) + b"/" + name))
    path.write_bytes(b"no sound" * 100)
    with pytest.raises(SystemExit) as stopped:
        transcribe(run, [path])
    assert stopped.value.code == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"transduce: {tmp_path}/{name.decode(errors='replace')} cannot be read".replace("\n", " "))
    assert second == "transduce: 1 of 1 files could not be transcribed"


def test_no_file_and_no_run_are_refused(run, folder, tmp_path, capsys):
    text = random_run(tmp_path / "text")
    assert main(["transcribe", str(run)]) == 2
    assert transcribe(tmp_path / "nowhere", [folder / "8000.wav"]) == 2
    assert transcribe(text, [folder / "8000.wav"], "--output", str(tmp_path / "out")) == 2
    assert not (tmp_path / "out").exists()
    assert main(["translate", str(run)]) == 2
    assert capsys.readouterr().err.split("\n") == [
        "transduce: name the files to transcribe, - for standard input (sound, or names of files), or --microphone alone",
        f"transduce: a run directory holds config.json, but {tmp_path / 'nowhere'} does not exist; "
        "a recipe makes one (--run DIRECTORY)",
        f"transduce: transcribing takes a run of speech to text, but {text} translates; use transduce translate",
        f"transduce: translating takes a run of text to text, but {run} transcribes; use transduce transcribe",
        "",
    ]


def test_impossible_settings_are_told(folder, tmp_path, capsys):
    random, path = random_speech_run(tmp_path / "random"), folder / "8000.wav"
    assert transcribe(random, [path], "--ctc-weight", "1.5") == 2
    assert transcribe(random, [path], "--max-seconds", "0.5") == 2
    assert transcribe(random, [path], "--device", "abacus") == 2
    lines = capsys.readouterr().err.split("\n")
    assert lines[0] == "transduce: ctc_weight must lie in [0, 1], but ctc_weight=1.5"
    assert lines[1] == "transduce: max_seconds must be at least 1.0, but max_seconds=0.5"
    assert "abacus" in lines[2] and lines[-2].endswith("; try --device cpu")


def test_help_works(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["transcribe", "--help-all"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "the exit code is 1" in " ".join(out.split()) and "--format {text,tsv,json,srt,vtt}" in out
