"""Samples and open files in place of paths, and what of them cannot be used."""

import io

import jaxtyping
import numpy as np
import pytest
import soundfile
import torch

import transduce as td
from tests.runs import RATE, sound

SHORT = td.SearchConfig(length_ratio=0.0, length_extra=7, no_repeat_ngram=4)  # no second search


def test_samples_are_transcribed_like_a_file(transcriber, tmp_path, caplog):
    """At the model's own rate, at another one, louder than full scale, as integers, as an array or as a tensor."""
    for rate, gain, kind in ((RATE, 1.0, np.float32), (2 * RATE, 1.0, np.int16), (11025, 5.0, np.float32)):
        wave = gain * sound("red blue", rate=rate)
        samples = wave.astype(kind) if kind is np.float32 else (wave * 32767).astype(kind)
        soundfile.write(tmp_path / "a.wav", samples, rate, subtype="FLOAT" if kind is np.float32 else "PCM_16")
        (want,) = transcriber.transcribe([tmp_path / "a.wav"], SHORT)
        for given in (samples, torch.from_numpy(samples)):
            (got,) = transcriber.transcribe([(given, rate)], SHORT)
            assert (got.path, got.error, got.segments) == ("sound 1", "", want.segments)
    assert transcriber([(np.zeros(RATE), RATE)], SHORT) == [""]
    (message,) = [r.getMessage() for r in caplog.records]
    assert message.startswith("sound 1 is silent")


@pytest.mark.parametrize(
    ("samples", "rate", "part"),
    [
        (np.zeros((2, 9)), RATE, "torch.float64 of shape (2, 9); average the channels, and give (samples, rate)"),
        (np.zeros(9, np.uint8), RATE, "torch.uint8 of shape (9,)"),
        (torch.zeros(0), RATE, "torch.float32 of shape (0,)"),
        (np.zeros(RATE), 8, "sample rate must lie in 1000 ... 768000 Hz, but it is 8;"),
        (np.full(RATE, np.inf), RATE, "NaN or infinite samples"),
    ],
    ids=["channels", "bytes", "nothing", "rate", "infinite"],
)
def test_invalid_samples_fail_alone(transcriber, recordings, samples, rate, part):
    whole, refused = transcriber.transcribe([recordings[0].audio, (samples, rate)], SHORT)
    assert whole.error == "" and refused.error.startswith("sound 2 cannot be used: ") and part in refused.error


@pytest.mark.parametrize("given", [np.zeros(RATE), torch.zeros(RATE), (np.zeros(RATE), RATE, 2)], ids=type)
def test_inputs_that_are_no_audio_fail_alone(transcriber, given, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the type is wrong on purpose
    (got,) = transcriber.transcribe([given], SHORT)
    assert got.error == (
        "sound 1 cannot be used: a sound must be a file or (samples, rate), but it is of the type "
        f"{type(given).__name__}; give a list such as [(samples, rate)]"
    )


def test_samples_with_a_float_rate_are_one_input(transcriber, monkeypatch):
    """As librosa gives it, where it was asked for 16e3."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the type is wrong on purpose
    wave = sound("red blue", rate=RATE)
    want = transcriber((wave, RATE), SHORT)
    assert [transcriber((wave, rate), SHORT) for rate in (float(RATE), np.float64(RATE))] == [want, want]


def test_rate_and_samples_in_the_wrong_order_are_refused(transcriber, monkeypatch):
    """As scipy.io.wavfile gives them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    (got,) = transcriber.transcribe([(RATE, np.zeros(9))], SHORT)
    assert got.error == (
        "sound 1 cannot be used: samples must be floats, or integers of 16 or 32 bits, of shape (n,), but they are "
        "torch.int64 of shape (); average the channels, and give (samples, rate)"
    )


def test_open_files_are_transcribed_like_their_paths(transcriber, recordings):
    """Messages name it, by its own name where it has one."""
    path = recordings[0].audio
    (want,) = transcriber.transcribe([path], SHORT)
    with path.open("rb") as file:
        got, broken = transcriber.transcribe([file, io.BytesIO(b"no sound")], SHORT)
    assert (got.path, got.segments) == (str(path), want.segments)
    assert transcriber([io.BytesIO(path.read_bytes())], SHORT) == [want.text]
    assert broken.error.startswith("sound 2 cannot be read as sound: it is damaged or of an unknown format (libsndfile")
