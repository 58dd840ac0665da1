"""transduce transcribe as a user meets it: sound in, texts out in every format, bad sound refused alone."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.cli.tones import BAD, CPU, GOOD, any_sound, lines_of, tone_run, transcribe
from tests.runs import LITTLE, RATE, random_run, sentences, sound
from transduce.cli.main import main
from transduce.tasks.load import load

TALK = sentences(72, seed=5)


@pytest.fixture(scope="session")
def run(once) -> Path:
    return once("tone_run", tone_run)


@pytest.fixture(scope="session")
def folder(once) -> Path:
    return once("any_sound", any_sound)


def test_audio_of_every_kind_is_transcribed(run, folder, capsys):
    assert transcribe(run, [folder / name for name in GOOD]) == 0
    assert lines_of(capsys.readouterr().out) == list(GOOD.values())


def test_bad_audio_is_skipped_with_exit_code_1(run, folder, capsys):
    paths = [folder / name for pair in zip(GOOD, BAD, strict=True) for name in pair]
    with pytest.raises(SystemExit) as stop:
        transcribe(run, paths)
    assert stop.value.code == 1
    printed = capsys.readouterr()
    lines = lines_of(printed.out)
    assert lines[::2] == list(GOOD.values()) and lines[1::2] == [""] * len(BAD)
    errors = [line for line in printed.err.split("\n") if line.startswith("transduce: ")]
    messages = errors[: len(BAD)]
    assert errors[len(BAD) :] == ["transduce: 7 of 14 files could not be transcribed"]
    for name, line in zip(BAD, messages, strict=True):
        assert line.startswith(f"transduce: {folder / name} cannot be ")
    reasons = ("No such file", "empty", "damaged", "no samples", "NaN", "150")
    assert all(reason in line for reason, line in zip(reasons, messages, strict=False))


def test_bad_audio_is_an_error_in_json_and_left_out_of_tsv(run, folder, tmp_path, capsys):
    paths = [folder / "none.wav", folder / "8000.wav", folder / "text.wav"]
    for kind in ("json", "tsv"):
        with pytest.raises(SystemExit) as stop:
            transcribe(run, paths, "--format", kind, "--output", str(tmp_path / kind))
        assert stop.value.code == 1
    got = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    assert [each["audio"] for each in got] == [str(path) for path in paths]
    assert [each["text"] for each in got] == ["", "red blue", ""]
    assert [len(each["segments"]) for each in got] == [0, 1, 0]
    assert got[0]["error"] == f"{paths[0]} cannot be read: No such file or directory; check the path"
    assert "error" not in got[1]
    header, row = [line.split("\t") for line in (tmp_path / "tsv").read_text().removesuffix("\n").split("\n")]
    assert header == ["audio", "start", "end", "score", "text"]
    assert row[:3] == [str(paths[1]), "0.000", f"{len(sound('red blue')) / RATE:.3f}"] and row[4].strip() == "red blue"
    assert capsys.readouterr().out == ""


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Path:
    """TALK with pauses in which there is a little noise."""
    path, rng = tmp_path_factory.mktemp("talk") / "long.wav", np.random.default_rng(1)
    parts = [(sound(text, seed=seed), 0.003 * rng.standard_normal(RATE // 4)) for seed, text in enumerate(TALK)]
    soundfile.write(path, np.concatenate([part for pair in parts for part in pair]), RATE)
    return path


def check_coverage(spans: list[tuple[float, float]], path: Path) -> None:
    """One piece after the other, of at most 15 s, over more than a minute; only the middles of pauses are left out."""
    seconds = soundfile.info(path).duration
    assert (
        len(spans) >= 5 and seconds > 60 and 0 <= spans[0][0] < 0.1 and seconds - 0.4 < spans[-1][1] <= seconds + 6e-4
    )
    assert all(0 <= start - stop < 0.3 for (_, stop), (start, _) in pairwise(spans))
    assert all(0 < stop - start <= 15.001 for start, stop in spans)


def test_a_long_file_is_segmented_in_every_format(run, long, tmp_path):
    for kind in ("text", "tsv", "json", "srt"):
        assert transcribe(run, [long], "--format", kind, "--max-seconds", "15", "--output", str(tmp_path / kind)) == 0
    (got,) = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    check_coverage([(p["start"], p["end"]) for p in got["segments"]], long)
    texts = [p["text"] for p in got["segments"]]
    assert got["text"] == " ".join(TALK)
    assert (tmp_path / "text").read_text() == " ".join(text.strip() for text in texts) + "\n" == got["text"] + "\n"

    rows = [line.split("\t") for line in (tmp_path / "tsv").read_text().removesuffix("\n").split("\n")[1:]]
    check_coverage([(float(start), float(stop)) for _, start, stop, _, _ in rows], long)
    assert [row[4] for row in rows] == [text.replace("\t", " ") for text in texts]

    blocks = [block.split("\n") for block in (tmp_path / "srt").read_text().removesuffix("\n\n").split("\n\n")]
    assert [block[0] for block in blocks] == [str(i + 1) for i in range(len(blocks))]
    assert all(len(block) == 3 for block in blocks)
    assert [block[2] for block in blocks] == [text.strip() for text in texts]
    moments = [re.fullmatch(r"00:(\d\d):(\d\d),(\d{3}) --> 00:(\d\d):(\d\d),(\d{3})", b[1]).groups() for b in blocks]
    numbers = [list(map(int, m)) for m in moments]
    check_coverage([(60 * a + b + c / 1000, 60 * d + e + f / 1000) for a, b, c, d, e, f in numbers], long)


def spoken(samples: np.ndarray) -> list[tuple[float, float]]:
    """When the tones in a sound begin and end, in seconds."""
    loud = np.convolve(np.abs(samples) > 0.05, np.ones(40), mode="same") > 0  # 5 ms, as a tone passes through 0
    edges = np.flatnonzero(np.diff(loud.astype(int), prepend=0, append=0)) / RATE
    return list(zip(edges[::2] + 0.0025, edges[1::2] - 0.0025, strict=True))


def test_word_times_are_those_of_the_tones(run, tmp_path):
    """In a recording of many segments, and in every format that has times; frames are 10 ms apart, windows 25 ms long."""
    samples = np.concatenate([sound(text, seed=seed) for seed, text in enumerate(TALK[:12])])
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    for kind in ("json", "srt", "vtt"):
        asked = ["--format", kind, "--word-times", "--max-seconds", "3", "--output", str(tmp_path / kind)]
        assert transcribe(run, [tmp_path / "a.wav"], *asked) == 0
    (got,) = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    words = [word for segment in got["segments"] for word in segment["words"]]
    assert [word["word"] for word in words] == " ".join(TALK[:12]).split() and len(got["segments"]) > 2
    times, said = [(word["start"], word["end"]) for word in words], spoken(samples)
    assert np.abs(np.subtract(times, said)).max() < 0.03
    assert all(word["confidence"] > 0.8 for word in words)

    cues = [block.split("\n") for block in (tmp_path / "srt").read_text().removesuffix("\n\n").split("\n\n")]
    assert [cue[2] for cue in cues] == [word["word"] for word in words]
    assert np.allclose([tuple(map(seconds, cue[1].split(" --> "))) for cue in cues], times, atol=0.0011)
    head, *cues = (tmp_path / "vtt").read_text().removesuffix("\n\n").split("\n\n")
    lit = [pair for cue in cues for pair in re.findall(r"<([^>]*)>(\w+)", cue)]
    assert head == "WEBVTT" and len(cues) == len(got["segments"])
    assert [word for _, word in lit] == [word["word"] for word in words]
    assert np.allclose([seconds(moment) for moment, _ in lit], [word["start"] for word in words], atol=0.0011)


def test_stream_prints_each_segment_before_searching_the_next(run, long, folder, tmp_path, capsys):
    """Each segment is printed before the next ones are searched; bad sound is named, and the exit code is 1."""
    soundfile.write(tmp_path / "a.wav", soundfile.read(long)[0][: 16 * RATE], RATE)
    options = ["--max-seconds", "3", "--stream"]
    assert transcribe(run, [tmp_path / "a.wav"], "--format", "srt", *options[:2]) == 0
    want = capsys.readouterr().out
    assert transcribe(run, [tmp_path / "a.wav"], "--format", "srt", *options) == 0
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
    first = next(transcriber.in_order(sound_read, transcriber.decoding.changed(beam_size=1)))
    assert len(searched) == 1 < len(sound_read.segments) / 4
    assert first.outputs[0].text == pieces[0]["text"]
    assert transcribe(run, [long], "--stream", "--output", str(tmp_path / "out")) == 2
    assert capsys.readouterr().err.endswith("so leave out --output, --workers and --part with --stream\n")


def seconds(moment: str) -> float:
    """Of hours:minutes:seconds with a comma or a point."""
    hours, minutes, rest = moment.replace(",", ".").split(":")
    return round(3600 * int(hours) + 60 * int(minutes) + float(rest), 3)


def test_details_need_a_suitable_format(run, folder, capsys):
    sound = folder / "8000.wav"
    for options in (("--word-times",), ("--token-scores", "--format", "srt"), ("--n-best", "2")):
        assert main(["transcribe", str(run), str(sound), "--device", "cpu", *options]) == 2
        assert "--format json" in capsys.readouterr().err, options
    assert transcribe(run, [folder / "8000.wav"] * 2, "--format", "srt") == 2
    assert capsys.readouterr().err == (
        "transduce: subtitles belong to one file, but 2 were named; add --output-dir DIR for a file of each\n"
    )


def test_json_has_all_n_best_outputs_with_token_scores(run, folder, capsys):
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


def test_missing_files_and_wrong_runs_are_refused(run, folder, tmp_path, capsys):
    text = random_run(tmp_path / "text", model=LITTLE)
    assert main(["transcribe", str(run)]) == 2
    assert "name the files" in capsys.readouterr().err
    assert transcribe(tmp_path / "nowhere", [folder / "8000.wav"]) == 2
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    assert transcribe(text, [folder / "8000.wav"], "--output", str(tmp_path / "out")) == 2
    assert not (tmp_path / "out").exists()
    assert main(["translate", str(run)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"transduce: transcribing takes a run of speech to text, but {text} translates; use transduce translate",
        f"transduce: translating takes a run of text to text, but {run} transcribes; use transduce transcribe",
    ]


def test_invalid_settings_are_refused(run, folder, capsys):
    for flag, value in (("--ctc-weight", "1.5"), ("--max-seconds", "0.5"), ("--device", "abacus")):
        assert transcribe(run, [folder / "8000.wav"], flag, value) == 2
        assert value in capsys.readouterr().err
