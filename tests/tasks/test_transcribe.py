"""Sound in, text out: whatever shares the batch, however long the file, and no loop without an end."""

import logging
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

import transduce as td
from tests.runs import RATE, sound
from transduce.data.audio import read_audio
from transduce.data.sentencepiece_bpe import BOS, EOS
from transduce.decode.beam import Hypothesis, loops
from transduce.tasks.outputs import Output, Segment

SHORT = td.SearchConfig(length_ratio=0.0, length_extra=7, no_repeat_ngram=4)  # no second search


@pytest.mark.parametrize(
    "decoding", [SHORT, replace(SHORT, beam_size=1), replace(SHORT, ctc_weight=0.3)], ids=["beam", "greedy", "ctc"]
)
def test_batch_size_order_and_neighbours_change_no_transcript(transcriber, recordings, decoding):
    frames = [transcriber.feature_extractor(read_audio(r.audio, RATE)) for r in recordings[:4]]
    # a long neighbour
    frames.append(transcriber.feature_extractor(torch.from_numpy(np.tile(sound("red blue"), 5)).float()))
    alone = [transcriber.decode([each], decoding)[0] for each in frames]
    assert len({outputs[0].text for outputs in alone}) > 2  # it does depend on the sound
    order = random.Random(5).sample(range(len(frames)), len(frames))
    for batch_tokens, rows in ((60, range(len(frames))), (60, order), (100_000, order)):
        together = transcriber.decode([frames[i] for i in rows], replace(decoding, batch_tokens=batch_tokens))
        for row, outputs in zip(rows, together, strict=True):
            assert [o.text for o in outputs] == [o.text for o in alone[row]]
            assert outputs[0].score == pytest.approx(alone[row][0].score, abs=1e-5)


def test_greedy_search_equals_a_loop_over_argmax(transcriber, recordings):
    frames = transcriber.feature_extractor(read_audio(recordings[0].audio, RATE)).double()
    target = [BOS]
    with torch.no_grad():
        while len(target) < 8 and target[-1] != EOS:
            logits = transcriber.model(source=frames[None], target_in=torch.tensor([target]))[0, -1]
            logits[:3] = -torch.inf
            target.append(int(logits.argmax()))
    want = transcriber.tokenizer.decode([[i for i in target[1:] if i != EOS]])[0]
    assert transcriber([recordings[0].audio], replace(SHORT, beam_size=1)) == [want.strip()]


def test_results_keep_the_order_and_bad_files_fail_alone(transcriber, recordings, tmp_path):
    (tmp_path / "text.wav").write_text("no sound")
    paths = [recordings[0].audio, tmp_path / "text.wav", str(recordings[1].audio), tmp_path / "none.wav"]
    done = []
    got = transcriber.transcribe(paths, SHORT, progress=lambda n, total: done.append((n, total)))
    assert [str(t.path) for t in got] == [str(path) for path in paths]
    assert sum(n for n, _ in done) == 2 and {total for _, total in done} == {2}
    assert [t.text for t in got] == [*transcriber([paths[0]], SHORT), "", *transcriber([paths[2]], SHORT), ""]
    assert [bool(t.error) for t in got] == [False, True, False, True]
    assert got[3].error == f"{tmp_path / 'none.wav'} cannot be read: No such file or directory; check the path"
    with pytest.raises(ValueError) as error:
        transcriber(paths, SHORT)
    assert str(error.value) == got[1].error
    assert transcriber([], SHORT) == []


def test_batch_size_is_bounded_by_encoder_positions(transcriber, monkeypatch):
    """Of two frames each, where 5 frames are 3 positions: 2 rows of them are 6 positions, and 3 are 9."""
    sizes, search = [], td.Transcriber._search
    assert transcriber.model.config.encoder.input.stack == 2
    monkeypatch.setattr(
        td.Transcriber, "_search", lambda self, *parts: sizes.append(len(parts[0])) or search(self, *parts)
    )
    transcriber.decode([torch.randn(5, 10)] * 3, replace(SHORT, batch_tokens=8))
    assert sizes == [1, 2]


def test_stream_yields_every_segment_once(transcriber, recordings, tmp_path):
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(tmp_path / "long.wav", np.concatenate([sound("red blue green", seed=i) for i in range(4)]), RATE)
    paths = [tmp_path / "long.wav", tmp_path / "none.wav", tmp_path / "silent.wav", *(r.audio for r in recordings[:3])]
    config = replace(SHORT, n_best=2, batch_tokens=20)
    got = list(transcriber.stream(list(transcriber.read(paths, replace(config, max_seconds=1.0))), config))
    whole = transcriber.transcribe(paths, replace(config, max_seconds=1.0))
    assert got[0] == (2, Segment(0.0, 1.0, [Output("", math.nan, math.nan)] * 2))
    for i, transcript in enumerate(whole):
        segments = sorted((segment for j, segment in got if j == i), key=lambda segment: segment.start)
        assert segments == transcript.segments
    assert max(len(transcript.segments) for transcript in whole) > 1


def test_one_file_name_instead_of_a_list_is_refused(transcriber):
    with pytest.raises(ValueError) as error:
        transcriber.transcribe("a.wav")
    assert str(error.value) == "transcribe takes a list of files, but got one string; use ['a.wav']"


def test_long_files_are_cut_at_pauses(transcriber, tmp_path):
    texts = [np.concatenate([sound("red blue green", seed=i), np.zeros(RATE // 2)]) for i in range(12)]
    waveform, starts = np.concatenate(texts), np.cumsum([0, *map(len, texts[:-1])]) / RATE
    soundfile.write(tmp_path / "long.wav", waveform, RATE)
    (transcript,) = transcriber.transcribe([tmp_path / "long.wav"], replace(SHORT, max_seconds=3.0))
    segments = transcript.segments
    for segment, start in zip(segments, starts, strict=True):  # a segment for every text
        assert segment.start <= start + 0.05 and segment.stop >= start + 0.6 and segment.stop - segment.start <= 1.2
    assert transcript.text == " ".join(text for p in segments if (text := p.outputs[0].text.strip()))
    for segment in (segments[0], segments[-1]):  # each is what a file of its own would give
        part = read_audio(tmp_path / "long.wav", RATE)[round(segment.start * RATE) : round(segment.stop * RATE)]
        assert transcriber.decode([transcriber.feature_extractor(part)], SHORT)[0][0].text == segment.outputs[0].text


def test_digital_silence_is_blank_with_a_warning(transcriber, recordings, tmp_path, caplog):
    """Whatever the model would hear in it; the sides of the FLAC cancel out."""
    tone = sound("red blue")
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(tmp_path / "opposite.flac", np.stack([tone, -tone], axis=1), RATE)
    silent = [tmp_path / "silent.wav", tmp_path / "opposite.flac"]
    assert transcriber.decode([transcriber.feature_extractor(torch.zeros(RATE))], SHORT)[0][0].text.strip()
    paths = [recordings[0].audio, *silent, recordings[1].audio]
    done = []
    got = transcriber.transcribe(paths, replace(SHORT, n_best=2), progress=lambda n, total: done.append((n, total)))
    first, last = transcriber([paths[0], paths[3]], SHORT)
    assert [t.text for t in got] == [first, "", "", last] and first and last
    assert [t.error for t in got] == [""] * 4 and {len(t.segments[0].outputs) for t in got} == {2}
    assert done == [(1, 4)] * 4
    messages = [r.getMessage() for r in caplog.records]
    assert [each.partition(" is silent")[0] for each in messages] == [str(path) for path in silent]


def test_silence_in_long_files_is_skipped(transcriber, tmp_path, caplog):
    first, last = sound("red blue green"), sound("black red")
    soundfile.write(tmp_path / "long.wav", np.concatenate([first, np.zeros(8 * RATE), last]), RATE)
    (transcript,) = transcriber.transcribe([tmp_path / "long.wav"], replace(SHORT, max_seconds=2.0))
    before, after = transcript.segments
    assert before.start >= 0 and before.stop <= len(first) / RATE + 0.2
    assert len(first) / RATE + 7.8 <= after.start and after.stop <= (len(first) + len(last)) / RATE + 8
    assert transcript.text and not caplog.records


def test_max_seconds_beyond_the_runs_range_causes_a_warning(transcriber, recordings, caplog):
    known = replace(SHORT, min_seconds=1.0, max_seconds=3.0)
    own = td.Transcriber(transcriber.model, transcriber.tokenizer, transcriber.feature_extractor, known)
    own([recordings[0].audio], max_seconds=2.5, min_seconds=0.0)
    assert not caplog.records
    own([recordings[0].audio], max_seconds=20.0)
    (message,) = [r.getMessage() for r in caplog.records]
    assert all(part in message for part in (" 20 s ", " 3 s ", "max_seconds"))


def test_n_best_outputs_are_sorted_and_complete(transcriber, recordings):
    for transcript in transcriber.transcribe([r.audio for r in recordings[:2]], replace(SHORT, n_best=4)):
        scores = [output.score for output in transcript.segments[0].outputs]
        assert len(scores) == 4 and scores == sorted(scores, reverse=True)


# Loops


@pytest.mark.parametrize(
    ("tokens", "loop"),
    [
        ([], False),
        ([4], False),
        ([4] * 23, False),  # a long number may be said
        ([4] * 24, True),
        ([7, 8, 4, 5, 6, *[1, 2, 3] * 8, 9], True),
        ([1, 2, 3] * 7, False),
        (list(range(11)) * 2, False),
        (list(range(11)) * 3, True),
        (list(range(40)) * 2 + list(range(39)), False),  # not quite three times
        (list(range(40)) * 3, True),
        (list(range(100)), False),
    ],
)
def test_a_loop_is_a_span_three_times_in_a_row(tokens, loop):
    assert loops(Hypothesis(tokens, -1.0, -1.0, True)) == loop
    assert loops(Hypothesis(tokens, -1.0, -1.0, False))  # without an end


@pytest.mark.parametrize("beam_size", [1, 3])
def test_looping_outputs_are_searched_again_with_a_warning(transcriber, recordings, caplog, monkeypatch, beam_size):
    """Every position of the decoder gives the same state, so that one token is always the likeliest."""
    torch.manual_seed(1)
    model = td.Transformer(transcriber.model.config).double().eval()
    with torch.no_grad():
        model.decoder.norm.weight.zero_()
        model.decoder.norm.bias.copy_(torch.arange(20.0))
        model.output.copy_(model.output.abs() * -1.0)
        model.output[270] = 0.5  # always best, and EOS never
        model.output[EOS] = -99.0
        model.output[271] = 0.25
    rigged = td.Transcriber(model, transcriber.tokenizer, transcriber.feature_extractor)
    decoding = td.SearchConfig(beam_size=beam_size, length_ratio=1.0, length_extra=5)
    frames = [rigged.feature_extractor(read_audio(r.audio, RATE)) for r in recordings]
    got, decode = [], transcriber.tokenizer.decode
    monkeypatch.setattr(transcriber.tokenizer, "decode", lambda rows: got.extend(rows) or decode(rows))
    with caplog.at_level(logging.WARNING):
        rigged.transcribe([r.audio for r in recordings], decoding)
    first = f"{recordings[0].audio} from 0.0 s, {recordings[1].audio} from 0.0 s, "
    (message,) = [r.getMessage() for r in caplog.records if r.name == "transduce"]
    assert message.startswith(
        "8 of 8 utterances came out as a loop, or without an end, and were searched again with repetition blocked: "
        + first
    )
    assert message.endswith(f"{recordings[4].audio} from 0.0 s, ...")
    bounds = [-(-len(each) // 2) + 5 for each in frames]
    assert len(got) >= 8 and all(0 < len(row) <= max(bounds) for row in got)
    for row in got:
        assert max(Counter(zip(row, row[1:], row[2:], row[3:], strict=False)).values()) == 1


def test_finished_outputs_are_not_searched_again(transcriber, recordings, monkeypatch, caplog):
    calls = []
    search = td.Transcriber._search

    def ended(self, frames, requests, decoding, states):
        calls.append(decoding.no_repeat_ngram)
        got = search(self, frames, requests, decoding, states)
        return [[replace(each, finished=True) for each in hypotheses] for hypotheses in got]

    monkeypatch.setattr(td.Transcriber, "_search", ended)
    transcriber([recordings[0].audio], replace(SHORT, no_repeat_ngram=0))
    assert calls == [0] and caplog.records == []
