"""Real recordings at 8 kHz through the front end of a model that hears 16 kHz."""

import math
import os

import numpy as np
import pytest
import soundfile

from transduce.data.audio import read_audio
from transduce.data.features import FeatureConfig, FeatureExtractor
from transduce.data.manifest import Recording, read_manifest

pytestmark = pytest.mark.data

EDGE = 160
"""Samples at 16 kHz left out at either end, where a filter and a DFT differ in what they think comes beyond."""


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    """Four or five of each speaker, all digits among them."""
    root = os.environ.get("TRANSDUCE_DATA")
    if not root:
        pytest.skip("needs fsdd inside the folder that TRANSDUCE_DATA names")
    got = read_manifest(f"{root}/fsdd/test.tsv")[::11]
    assert len(got) == 28 and len({r.speaker for r in got}) == 6
    return got


def doubled(samples: np.ndarray) -> np.ndarray:
    """Twice the rate: zeros appended to the spectrum. Mirrored at both ends, so that its period has no step."""
    mirrored = np.concatenate([samples, samples[::-1]])
    return 2 * np.fft.irfft(np.fft.rfft(mirrored), 2 * len(mirrored))[: 2 * len(samples)]


def band(samples: np.ndarray, low: float, high: float) -> float:
    """Energy between two frequencies of sound at 16 kHz."""
    power = np.abs(np.fft.rfft(samples * np.hanning(len(samples)))) ** 2
    hertz = np.fft.rfftfreq(len(samples), 1 / 16000)
    return float(power[(hertz >= low) & (hertz < high)].sum())


def filtered(samples: np.ndarray, high: float) -> np.ndarray:
    """Without what lies above, in hertz, of sound at 16 kHz."""
    spectrum = np.fft.rfft(samples)
    spectrum[np.fft.rfftfreq(len(samples), 1 / 16000) > high] = 0
    return np.fft.irfft(spectrum, len(samples))


def test_upsampling_keeps_the_length_and_adds_nothing_above_4_khz(recordings):
    """The filter of `read_audio`, a sinc of six zero crossings, falls between 3.2 and 4.8 kHz."""
    for r in recordings:
        samples, rate = soundfile.read(r.audio)
        got = read_audio(r.audio, 16000).numpy().astype(np.float64)
        assert rate == 8000 and len(got) == 2 * len(samples)
        assert len(got) / 16000 == pytest.approx(r.seconds, abs=1e-3)
        below = band(got, 0, 4000)
        assert band(got, 4000, 8001) < 0.002 * below
        assert band(got, 4800, 8001) < 2e-5 * below


def test_upsampling_keeps_low_frequencies(recordings):
    """Against zeros in the spectrum, as far as the filter is flat."""
    for r in recordings:
        samples, _ = soundfile.read(r.audio)
        got, want = (
            filtered(x, 3000) for x in (read_audio(r.audio, 16000).numpy().astype(np.float64), doubled(samples))
        )
        inside = slice(EDGE, -EDGE)
        assert np.sqrt(np.mean((got - want)[inside] ** 2)) < 0.005 * np.sqrt(np.mean(want[inside] ** 2))


def test_features_at_16_khz_of_8_khz_recordings(recordings):
    config = FeatureConfig(deltas=1)
    feature_extractor = FeatureExtractor(config)
    for r in recordings:
        n_samples = 2 * soundfile.info(r.audio).frames
        frames = feature_extractor(read_audio(r.audio, 16000))
        assert frames.shape == (1 + math.floor((n_samples - 400) / 160), 80)  # 25 ms every 10 ms
        assert frames.isfinite().all()
        assert frames.std(dim=0, correction=0).min() > 0.99  # no feature is constant: normalized, it would be 0
