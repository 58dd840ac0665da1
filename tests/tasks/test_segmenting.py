"""Long sound in stretches: what comes out is that of the whole file, and no more of it is held than is said."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

import transduce as td
from tests.runs import FEATURES, RATE, sound
from transduce.data import audio
from transduce.data.audio import read_audio
from transduce.data.features import FeatureExtractor
from transduce.data.segments import levels, segments
from transduce.tasks import transcribe
from transduce.tasks.outputs import Transcript
from transduce.tasks.sound import group_by_duration, segment_audio

SHORT = td.SearchConfig(length_ratio=0.0, length_extra=7, max_seconds=2.0, no_repeat_ngram=4)


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Path:
    """14 utterances and a long silence, in two channels, at another rate, louder than full scale."""
    rate = round(1.5 * RATE)
    texts = [np.concatenate([sound("red blue green", seed=i, rate=rate), np.zeros(rate // 2)]) for i in range(14)]
    texts.insert(9, np.zeros(5 * rate))
    path = tmp_path_factory.mktemp("long") / "long.wav"
    wave = 5 * np.concatenate(texts)
    soundfile.write(path, np.stack([wave, 0.5 * wave], axis=1), rate, subtype="FLOAT")
    return path


@pytest.mark.parametrize(
    ("block", "kind", "max_seconds"), [(2**20, Path, 2.0), (9001, str, 1.0), (30_000, io.BytesIO, 1e9)]
)
def test_segments_and_features_equal_those_of_the_whole_waveform(long, monkeypatch, caplog, block, kind, max_seconds):
    """To the bit, however it comes in; 1 s has cuts where it is quietest. An open file can be used again."""
    monkeypatch.setattr(audio, "BLOCK", block)
    waveform, extractor = read_audio(long, RATE), FeatureExtractor(FEATURES)
    spans = segments(levels([waveform], RATE), max_seconds, 0.9)
    given = io.BytesIO(long.read_bytes()) if kind is io.BytesIO else kind(long)
    for _ in range(2):
        config = replace(SHORT, max_seconds=max_seconds, min_seconds=0.9)
        n_frames, pieces = segment_audio(given, "a", extractor, config)
        pieces = list(pieces)
        assert [(start, stop) for start, stop, _ in pieces] == [(a / RATE, b / RATE) for a, b in spans]
        assert [len(frames) for *_, frames in pieces] == n_frames
        for (a, b), (*_, frames) in zip(spans, pieces, strict=True):
            assert torch.equal(frames, extractor(waveform[a:b]))
        assert not caplog.messages
    assert (len(spans) == 1) == (max_seconds == 1e9)


def plain(transcripts: list[Transcript]) -> list[object]:
    """All but the scores, in the last bits of which it is seen what shared the batch."""
    got = ((t.path, t.error, s.start, s.stop, o) for t in transcripts for s in t.segments for o in s.outputs)
    return [(*rest, o.text, o.tokens, [(w.text, w.start, w.stop) for w in o.words]) for *rest, o in got]


def test_reading_in_parts_gives_the_transcript_of_the_whole(transcriber, long, monkeypatch):
    """Also what is drawn, and piece by piece. No search has more than a chunk, and what follows is not yet read."""
    way = replace(SHORT, sample=True, beam_size=2, n_best=2)
    sounds = [long, "none.wav", (sound("red"), RATE), long]
    want = transcriber.transcribe(sounds, way, word_times=True)
    assert len(list(transcriber.read(sounds, way))) == 4
    monkeypatch.setattr("transduce.tasks.sound.STRETCH", 2.0)
    monkeypatch.setattr(transcribe, "CHUNK", 3.0)
    events, stream, read = [], transcriber.stream, transcriber.read
    monkeypatch.setattr(
        transcriber, "read", lambda *rest, **more: (events.append(s.seconds) or s for s in read(*rest, **more))
    )
    monkeypatch.setattr(transcriber, "stream", lambda *rest, **more: events.append("search") or stream(*rest, **more))
    done = []
    got = transcriber.transcribe(sounds, way, word_times=True, progress=lambda *each: done.append(each))
    assert plain(got) == plain(want) and got[1].error and len(got[0].segments) == 14
    assert len(done) == done[-1][1] == 14 + 1 + 14
    held = [0.0]
    for event in events:
        held = [*held, 0.0] if event == "search" else [*held[:-1], held[-1] + event]
    assert len(held) > 5 and max(held) < 3 + 2 + 2  # the chunk, and the stretch and the segment that complete it
    monkeypatch.undo()
    monkeypatch.setattr("transduce.tasks.sound.STRETCH", 2.0)
    pieces = [piece for each in transcriber.read([long], way) for piece in transcriber.in_order(each, way)]
    assert [[o.tokens for o in p.outputs] for p in pieces] == [[o.tokens for o in p.outputs] for p in want[0].segments]


def test_files_that_change_during_reading_fail_alone(transcriber, long, tmp_path, monkeypatch):
    monkeypatch.setattr("transduce.tasks.sound.STRETCH", 2.0)
    monkeypatch.setattr(audio, "BLOCK", 5000)
    changing = tmp_path / "a.flac"
    samples, rate = sound("red blue " * 20), RATE
    for content, message in (
        (
            samples[:9000],
            f"{changing} must stay as it is while it is read, but now it ends after 9000 samples; try again",
        ),
        (None, f"{changing} cannot be read: No such file or directory; check the path"),
    ):
        soundfile.write(changing, samples, rate)
        sounds = transcriber.read([changing, (samples[:9000], rate)], SHORT)
        real, read = audio.audio_blocks, []

        def blocks(*rest, real=real, read=read, content=content, **more):
            if read:
                changing.unlink()
                if content is not None:
                    soundfile.write(changing, content, rate)
            read.append(rest)
            return real(*rest, **more)

        monkeypatch.setattr("transduce.tasks.sound.audio_blocks", blocks)
        got, other = transcriber.transcripts(sounds, SHORT)
        assert (got.error, got.segments, got.text) == (message, [], "")
        assert not other.error and other.text


def test_groups_reach_the_minimum_duration():
    groups = group_by_duration([SimpleNamespace(seconds=n) for n in (1, 2, 3, 9, 1, 1)], 4.0)
    assert [[each.seconds for each in group] for group in groups] == [[1, 2, 3], [9], [1, 1]]
    assert list(group_by_duration([], 4.0)) == []
