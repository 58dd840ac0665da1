"""How likely it is that nobody speaks, and what a threshold makes of it."""

import json
import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import soundfile
import torch

import transduce as td
from tests.runs import RATE
from transduce.cli.main import main
from transduce.data.audio import read_audio
from transduce.tasks.outputs import Output
from transduce.tasks.speech import no_speech_prob

SHORT = td.SearchConfig(ctc_weight=1.0, min_length=2, no_repeat_ngram=4)  # no second search


@pytest.fixture(scope="module")
def transcriber(speech_run) -> td.Transcriber:
    """In float64, with a CTC head that is sure of something."""
    got = td.load_transcriber(speech_run, dtype=torch.float64)
    with torch.no_grad():
        got.model.ctc.weight.mul_(6)
    return got


def ctc_prob(probs: np.ndarray, ids: Sequence[int], blank: int) -> float:
    """The probability that CTC spells these tokens: the forward recursion of Graves et al. (2006), section 4.1."""
    labels = [blank, *(each for token in ids for each in (token, blank))]
    alpha = np.zeros(len(labels))
    alpha[:2] = [probs[0, label] for label in labels[:2]]
    for row in probs[1:]:
        before = alpha
        alpha = np.zeros(len(labels))
        for s, label in enumerate(labels):
            skips = s > 1 and label not in (blank, labels[s - 2])
            alpha[s] = row[label] * (before[s] + (before[s - 1] if s else 0) + (before[s - 2] if skips else 0))
    return alpha[-2:].sum()


def test_no_speech_prob_is_the_formula_written_out(transcriber, recordings):
    """Of the transcript that CTC writes by itself, whatever the search makes of the sound."""
    got = transcriber.transcribe([r.audio for r in recordings], replace(SHORT, n_best=2), no_speech_threshold=1.0)
    blank, seen = transcriber.tokenizer.pad_id, []
    for recording, transcript in zip(recordings, got, strict=True):
        frames = transcriber.feature_extractor(read_audio(recording.audio, RATE)).double()
        with torch.no_grad():
            logits = transcriber.model.ctc_logits(transcriber.model.encode(frames[None]).states)[0].numpy()
        probs = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        path = probs.argmax(axis=1).tolist()
        ids = [token for before, token in pairwise([blank, *path]) if token not in (before, blank)]
        want = 1 - ctc_prob(probs, ids, blank) ** (1 / len(ids))
        (segment,) = transcript.segments
        assert [output.no_speech_prob for output in segment.outputs] == pytest.approx([want] * 2, abs=1e-9)
        seen.append(want)
    assert np.ptp(seen) > 0.1, "it depends on the sound"


def test_no_speech_prob_is_1_where_ctc_outputs_only_blanks(transcriber, recordings, monkeypatch):
    nothing = torch.nn.functional.one_hot(torch.tensor(transcriber.tokenizer.pad_id), transcriber.model.vocab_size)
    monkeypatch.setattr(transcriber.model, "ctc_logits", lambda states: nothing.double().expand(*states.shape[:2], -1))
    (states,) = transcriber.encode([recordings[0].audio])
    for each in (states, None):
        assert no_speech_prob(transcriber.model, transcriber.tokenizer, each) == 1.0


def test_encoder_runs_once_for_no_speech_prob_and_search(transcriber, recordings, monkeypatch):
    paths = [r.audio for r in recordings]
    alone = transcriber.transcribe(paths, SHORT, batch_tokens=1)  # every sound by itself, encoded by the search
    rows = []
    encode = type(transcriber.engine).encode
    monkeypatch.setattr(
        type(transcriber.engine), "encode", lambda self, x, *a, **how: rows.append(len(x)) or encode(self, x, *a, **how)
    )
    judged = transcriber.transcribe(paths, SHORT, no_speech_threshold=1.0)
    assert sum(rows) == len(paths)
    for one, other in zip(judged, alone, strict=True):
        assert one.text == other.text
        assert one.segments[0].outputs[0].score == pytest.approx(other.segments[0].outputs[0].score, abs=1e-4)


def test_segments_above_the_threshold_are_blank(transcriber, recordings, tmp_path, caplog):
    """In the order of the sounds, beside silence; what a text shall begin with or hold is somebody's word for speech."""
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    paths = [tmp_path / "silent.wav", *(r.audio for r in recordings)]
    plain = transcriber.transcribe(paths, SHORT, n_best=2)
    probs = [
        t.segments[0].outputs[0].no_speech_prob for t in transcriber.transcribe(paths, SHORT, no_speech_threshold=1.0)
    ]
    assert {each.no_speech_prob for t in plain for each in t.segments[0].outputs} == {None} and probs[0] == 1.0
    threshold = float(np.median(probs))
    got = transcriber.transcribe(paths, SHORT, n_best=2, no_speech_threshold=threshold, token_scores=True)
    for one, transcript, p in zip(plain, got, probs, strict=True):
        if p > threshold:
            assert transcript.segments[0].outputs == [Output("", math.nan, math.nan, no_speech_prob=p)] * 2
        else:
            assert transcript.text == one.text != ""
    begun = transcriber.transcribe(
        paths[1:], SHORT, prefix=["red"] * 4 + [""] * 4, require=[[]] * 4 + [["blue"]] * 4, no_speech_threshold=1e-9
    )
    assert all(each.text.startswith("red") for each in begun[:4]) and all("blue" in each.text for each in begun[4:])
    assert transcriber(paths[:1], SHORT, no_speech_threshold=1.0) == [""]  # without a frame, whatever the threshold
    assert not any("has speech" in record.getMessage() for record in caplog.records)
    assert transcriber(paths[1:], SHORT, no_speech_threshold=1e-9) == [""] * 8
    assert caplog.records[-1].getMessage() == (
        "none of 8 segments has speech, by no_speech_threshold=1e-09, so they have no text; 0 transcribes them "
        "all the same"
    )


@pytest.mark.parametrize("lost", ["head", "training"])
def test_threshold_is_ignored_without_a_trained_ctc_head(speech_run, recordings, tmp_path, caplog, capsys, lost):
    """A head that learned nothing is none."""
    run = shutil.copytree(speech_run, tmp_path / "run")
    transcriber = td.load(run)
    if lost == "head":
        model = transcriber.model
        model.ctc, model.config = None, replace(model.config, ctc=False)
        transcriber.engines = (model,)
    else:
        plain = json.loads((run / "config.json").read_text())
        plain["experiment"]["ctc_weight"] = 0.0
        (run / "config.json").write_text(json.dumps(plain))
        transcriber = td.load(run)
    paths = [r.audio for r in recordings[:3]]
    plain = replace(SHORT, ctc_weight=0.0)
    want = transcriber(paths, plain)
    assert all(want) and not caplog.records
    got = transcriber.transcribe(paths, plain, no_speech_threshold=0.01)
    assert [each.text for each in got] == want
    assert got[0].segments[0].outputs[0].no_speech_prob is None
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING] == [
        "no_speech_threshold changes nothing: this model has neither a CTC head nor a token for no speech"
    ]


def test_command_accepts_a_no_speech_threshold(speech_run, recordings, capsys):
    flags = ["--ctc-weight", "1", "--min-length", "2", "--no-repeat-ngram", "4"]
    command = ["transcribe", str(speech_run), *(str(r.audio) for r in recordings[:4]), *flags]
    assert main([*command, "--format", "json", "--no-speech-threshold", "1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    probs = [row["segments"][0]["no_speech_prob"] for row in rows]
    threshold = sum(sorted(probs)[1:3]) / 2
    assert main([*command, "--no-speech-threshold", str(threshold)]) == 0
    want = ["" if p > threshold else row["text"] for row, p in zip(rows, probs, strict=True)]
    assert capsys.readouterr().out.split("\n")[:-1] == want and want.count("") == 2
    assert main([*command, "--no-speech-threshold", "1.5"]) == 2
    assert "no_speech_threshold must lie in [0, 1], but no_speech_threshold=1.5" in capsys.readouterr().err
