"""MFCC are what the formulas say, written out here in float64 with explicit sums and matrices."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torchaudio.transforms import MelSpectrogram

from transduce.data.features import FeatureConfig, FeatureExtractor, statistics

CONFIGS = {
    "16 kHz": FeatureConfig(normalize="none"),
    "8 kHz": FeatureConfig(sample_rate=8000, n_mels=40, n_coefficients=13, normalize="none"),
    "no loss, 20 to 3800 Hz": FeatureConfig(n_mels=23, n_coefficients=23, high=3800.0, normalize="none"),
    "22050 Hz, long hop": FeatureConfig(
        sample_rate=22050, frame=0.032, hop=0.02, n_mels=30, n_coefficients=20, low=0.0, normalize="none"
    ),
    "a power of two": FeatureConfig(frame=0.032, hop=0.032, n_mels=64, n_coefficients=16, low=60.0, normalize="none"),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def speech_like(n: int, rate: int) -> np.ndarray:
    """A gliding harmonic tone that comes and goes, over noise."""
    t = np.arange(n) / rate
    phase = 2 * np.pi * np.cumsum(120 + 60 * np.sin(2 * np.pi * 1.5 * t)) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 20)) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * t))
    return 0.1 * voice + 0.01 * np.random.default_rng(n).standard_normal(n)


def mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def hertz(mels: float) -> float:
    return 700 * (10 ** (mels / 2595) - 1)


def triangles(config: FeatureConfig, n_fft: int) -> np.ndarray:
    """(bins, bands): up from the edge before to 1 at the band's centre, down to the edge after, linear in Hz."""
    high = config.sample_rate / 2 if config.high is None else config.high
    step = (mel(high) - mel(config.low)) / (config.n_mels + 1)
    edges = [hertz(mel(config.low) + i * step) for i in range(config.n_mels + 2)]
    weights = np.zeros((n_fft // 2 + 1, config.n_mels))
    for k in range(n_fft // 2 + 1):
        f = k * config.sample_rate / n_fft
        for m in range(config.n_mels):
            left, centre, right = edges[m : m + 3]
            if left < f <= centre:
                weights[k, m] = (f - left) / (centre - left)
            elif centre < f < right:
                weights[k, m] = (right - f) / (right - centre)
    return weights


def log_mel_by_hand(waveform: np.ndarray, config: FeatureConfig) -> np.ndarray:
    rate, n_fft = config.sample_rate, 1
    width, hop = round(config.frame * rate), round(config.hop * rate)
    while n_fft < width:
        n_fft *= 2
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / width)
    dft = np.exp(-2j * np.pi * np.outer(np.arange(width), np.arange(n_fft // 2 + 1)) / n_fft)
    weights = triangles(config, n_fft)
    rows, start = [], 0
    while start + width <= len(waveform):
        rows.append(np.log(np.abs((waveform[start : start + width] * window) @ dft) ** 2 @ weights + 1e-6))
        start += hop
    return np.array(rows)


def dct_by_hand(log_mel: np.ndarray, n: int) -> np.ndarray:
    """Orthonormal DCT-II."""
    n_mels = log_mel.shape[1]
    cosines = np.array([[math.cos(math.pi * k * (m + 0.5) / n_mels) for k in range(n)] for m in range(n_mels)])
    scale = np.array([math.sqrt((1 if k == 0 else 2) / n_mels) for k in range(n)])
    return log_mel @ cosines * scale


def deltas_by_hand(frames: np.ndarray) -> np.ndarray:
    """d_t = (sum over n = 1, 2 of n (c_{t+n} - c_{t-n})) / (2 (1 + 4)), the ends repeated."""

    def at(t: int) -> np.ndarray:
        return frames[min(max(t, 0), len(frames) - 1)]

    return np.array([(at(t + 1) - at(t - 1) + 2 * (at(t + 2) - at(t - 2))) / 10 for t in range(len(frames))])


@each_config
def test_mfcc_equal_the_formula(config):
    waveform = speech_like(round(0.7 * config.sample_rate), config.sample_rate).astype(np.float32)
    features = FeatureExtractor(config)
    log_mel = features.log_mel(torch.from_numpy(waveform))
    by_hand = log_mel_by_hand(waveform.astype(np.float64), config)
    np.testing.assert_allclose(log_mel.numpy(), by_hand, rtol=0, atol=1e-4)
    want = dct_by_hand(by_hand, config.n_coefficients)
    np.testing.assert_allclose(features(torch.from_numpy(waveform)).numpy(), want, rtol=0, atol=1e-4)


@each_config
def test_log_mels_equal_those_of_torchaudio(config, rng):
    """Its window lies in the middle of the n_fft points, so the waveform gets that much silence in front."""
    waveform = 0.1 * torch.randn(9000, generator=rng)
    before = (config.n_fft - config.frame_samples) // 2
    after = config.n_fft - config.frame_samples - before
    rival = MelSpectrogram(
        config.sample_rate, n_fft=config.n_fft, win_length=config.frame_samples, hop_length=config.hop_samples,
        f_min=config.low, f_max=config.high, n_mels=config.n_mels, center=False,
    )  # fmt: skip
    want = (rival(torch.nn.functional.pad(waveform, (before, after))) + 1e-6).log().T
    torch.testing.assert_close(FeatureExtractor(config).log_mel(waveform), want, rtol=0, atol=1e-4)


def test_zero_coefficients_give_log_mels(rng):
    """And silence behind a short sound is what is heard of it."""
    config = FeatureConfig(n_mels=23, n_coefficients=0, normalize="none", pad_to=0.5)
    waveform = torch.randn(4000, generator=rng) * 0.1
    want = FeatureExtractor(config).log_mel(torch.cat([waveform, torch.zeros(4000)]))
    assert config.n_features == 23 and torch.equal(FeatureExtractor(config)(waveform), want)
    assert len(want) == config.n_frames(4000) == config.n_frames(8000)
    torch.testing.assert_close(want[-1], torch.full((23,), math.log(1e-6)), rtol=0, atol=1e-4)


def test_frames_do_not_depend_on_their_chunk(rng):
    """Frames are made in chunks; what a frame is does not depend on which."""
    features = FeatureExtractor(FeatureConfig(normalize="none"))
    waveform = torch.randn(16000 * 13, generator=rng) * 0.1
    whole = features.log_mel(waveform)
    for frame in (0, 511, 512, 513, 1025, len(whole) - 1):
        alone = features.log_mel(waveform[frame * 160 : frame * 160 + 400])
        torch.testing.assert_close(alone[0], whole[frame], rtol=0, atol=1e-5)


@pytest.mark.parametrize("deltas", [1, 2])
def test_deltas_equal_the_formula(deltas):
    config = replace(CONFIGS["8 kHz"], deltas=deltas)
    waveform = torch.from_numpy(speech_like(3000, 8000)).float()
    got = FeatureExtractor(config)(waveform).double().numpy()
    assert got.shape[1] == config.n_features == 13 * (1 + deltas)
    for order in range(deltas):
        own, derived = (got[:, 13 * (order + i) : 13 * (order + i + 1)] for i in (0, 1))
        np.testing.assert_allclose(derived, deltas_by_hand(own), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize("at", [300.0, 1000.0, 3100.0])
def test_a_tone_is_loudest_in_its_mel_band(rate, at):
    """The loudest band is the one whose centre is nearest to the tone in mels, give or take the DFT's step."""
    config = FeatureConfig(sample_rate=rate, n_mels=40, n_coefficients=13)
    waveform = 0.5 * torch.sin(2 * math.pi * at * torch.arange(rate) / rate)
    step = (mel(rate / 2) - mel(20)) / 41
    nearest = round((mel(at) - mel(20)) / step) - 1
    loudest = FeatureExtractor(config).log_mel(waveform).argmax(dim=1)
    assert ((loudest - nearest).abs() <= 1).all()


@each_config
def test_number_of_frames_is_the_count_of_full_windows(config):
    width, hop = config.frame_samples, config.hop_samples
    for n in (width, width + 1, width + hop - 1, width + hop, width + 7 * hop, 4321):
        fits = sum(1 for start in range(0, n, hop) if start + width <= n)
        assert config.n_frames(n) == fits == len(FeatureExtractor(config).log_mel(torch.zeros(n)))
        last = [start for start in range(0, n, hop) if start + width <= n][-1]
        assert config.seconds(fits) == pytest.approx((last + width) / config.sample_rate, rel=1e-12)
    assert config.n_frames(width - 1) == config.n_frames(1) == config.n_frames(0) == 0


def test_frame_sizes_at_16_khz():
    config = FeatureConfig()
    assert (config.frame_samples, config.hop_samples, config.n_fft, config.n_frames(16000)) == (400, 160, 512, 98)


def test_a_waveform_shorter_than_one_window_is_refused():
    features = FeatureExtractor(FeatureConfig())
    assert features(torch.zeros(400)).shape == (1, 40)
    with pytest.raises(ValueError) as caught:
        features(torch.zeros(399))
    assert str(caught.value) == (
        "a waveform must fill one window of 400 samples (0.025 s at 16000 Hz), but it has 399; "
        "leave it out or add silence"
    )


def test_an_utterance_gets_mean_0_and_variance_1():
    config = FeatureConfig(deltas=2)
    frames = FeatureExtractor(config)(torch.from_numpy(speech_like(16000, 16000)).float()).double().numpy()
    np.testing.assert_allclose(frames.mean(axis=0), 0, atol=1e-4)
    plain = FeatureExtractor(replace(config, normalize="none"))(torch.from_numpy(speech_like(16000, 16000)).float())
    wide = plain.double().numpy()
    want = (wide - wide.mean(axis=0)) / np.sqrt(wide.var(axis=0) + 1e-5)
    np.testing.assert_allclose(frames, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("n_samples", [400, 560, 16000])
def test_constant_features_are_normalized_to_zero(n_samples):
    """One frame, and digital silence: neither 0 / 0 nor noise blown up."""
    frames = FeatureExtractor(FeatureConfig(deltas=2))(torch.zeros(n_samples))
    assert frames.isfinite().all() and frames.abs().max() < 0.02
    one = FeatureExtractor(FeatureConfig(deltas=2))(0.1 * torch.ones(400))
    assert torch.equal(one, torch.zeros(1, 120))


def test_global_statistics_equal_numpy(rng):
    utterances = [3 + 2 * torch.randn(n, 5, generator=rng) for n in (1, 7, 400, 23)]
    mean, std = statistics(iter(utterances))
    wide = np.concatenate([u.double().numpy() for u in utterances])
    np.testing.assert_allclose(mean.numpy(), wide.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(std.numpy(), wide.std(axis=0), rtol=1e-6)


def test_statistics_keep_small_deviations_beside_a_large_mean():
    """What float32 sums would lose."""
    frames = torch.tensor([[1000.0], [1000.5]]).repeat(50_000, 1)
    mean, std = statistics([frames, frames])
    assert float(mean) == 1000.25 and float(std) == pytest.approx(0.25, rel=1e-6)


def test_global_normalization_uses_the_given_statistics(rng):
    config = FeatureConfig(n_coefficients=13, normalize="global")
    waveform = 0.1 * torch.randn(8000, generator=rng)
    plain = FeatureExtractor(replace(config, normalize="none"))(waveform)
    mean, std = torch.randn(13, generator=rng), 1 + torch.rand(13, generator=rng)
    got = FeatureExtractor(config, mean=mean, std=std)(waveform)
    torch.testing.assert_close(got, (plain - mean) / std, rtol=1e-4, atol=1e-4)
    same = FeatureExtractor(config, mean=plain.mean(dim=0), std=torch.zeros(13))(waveform)
    assert same.isfinite().all()


def test_statistics_without_frames_are_refused():
    for nothing in ([], [torch.zeros(0, 3)]):
        with pytest.raises(ValueError) as caught:
            statistics(nothing)
        assert str(caught.value) == (
            "statistics need at least one frame, but there is none; check what was left out, and why"
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"low": 4000.0, "sample_rate": 8000},
            "mel bands must lie in 0 <= low < high <= sample_rate / 2, but low=4000.0 Hz, high=4000.0 Hz "
            "and sample_rate=8000 Hz",
        ),
        ({"high": 8001.0}, "low=20.0 Hz, high=8001.0 Hz and sample_rate=16000 Hz"),
        ({"sample_rate": 0}, "sample_rate=0"),
        ({"sample_rate": 11025}, "sample_rate=11025 Hz"),
        ({"hop": 0.05}, "hop=0.05 s and frame=0.025 s at sample_rate=16000 Hz"),
        ({"hop": 0.00001}, "hop=1e-05 s and frame=0.025 s at sample_rate=16000 Hz"),
        ({"n_mels": 0}, "[1, 1000], but n_mels=0"),
        ({"n_coefficients": 81}, "[0, 80], but n_coefficients=81"),
        ({"n_coefficients": -1}, "[0, 80], but n_coefficients=-1"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        FeatureConfig(**fields)


@pytest.mark.parametrize(("field", "value"), [("deltas", 3), ("normalize", "all")])
def test_unknown_choices_are_refused(field, value):
    config = FeatureConfig()
    vars(config)[field] = value  # when tests run, the type checker would refuse it as an argument
    with pytest.raises(ValueError, match=f"^{field} must be one of .*, but {field}={value!r}$"):
        config.__post_init__()


def test_bands_too_narrow_for_the_dft_are_refused():
    with pytest.raises(ValueError) as caught:
        FeatureExtractor(FeatureConfig(n_mels=200))
    n_empty = int((triangles(FeatureConfig(n_mels=200), 512).max(axis=0) == 0).sum())
    assert str(caught.value) == (
        f"every mel band must hold a frequency of the DFT, but {n_empty} of n_mels=200 between 20.0 and 8000.0 Hz lie "
        "between its steps of 31.25 Hz; take fewer bands or a longer frame"
    )
    FeatureExtractor(FeatureConfig(sample_rate=8000))  # the defaults are possible at both rates


@pytest.mark.parametrize(
    ("normalize", "mean", "std", "got"),
    [
        ("global", None, None, ("(40,)", "None", "None")),
        ("global", torch.zeros(13), torch.ones(13), ("(40,)", "(13,)", "(13,)")),
        ("none", torch.zeros(40), torch.ones(40), ("None", "(40,)", "(40,)")),
    ],
)
def test_missing_or_unneeded_statistics_are_refused(normalize, mean, std, got):
    with pytest.raises(ValueError) as caught:
        FeatureExtractor(FeatureConfig(normalize=normalize), mean=mean, std=std)
    assert str(caught.value) == (
        f"normalize={normalize} needs mean and std of shape {got[0]}, but mean has {got[1]} and std has {got[2]}; "
        "`statistics` computes them for global, and the other settings take none"
    )
