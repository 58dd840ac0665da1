"""SpecAugment and speed: what is hidden, how much of it, where; and that chance comes from the generator alone."""

import math
import re
from collections import Counter

import numpy as np
import pytest
import torch

from transduce.data.audio import change_speed
from transduce.data.config import Augmentation
from transduce.data.features import FeatureConfig, FeatureExtractor
from transduce.data.frame_reader import (
    add_noise,
    add_silence,
    change_level,
    draw_speed,
    draw_vtlp,
    drop_tokens,
    generator,
    mask_frequency as mask_bands,
    mask_time as mask_frames,
    perturb_vocal_tract,
)

LEVELS = Augmentation(gain=12.0, tilt=3.0)


def mask_time(frames, *, spans, widest, hop, share, rng):
    fields = {"n_time_masks": spans, "time_mask_width": widest, "time_mask_proportion": share}
    return mask_frames(frames, Augmentation(**fields), hop, rng)


def mask_frequency(log_mel, *, spans, widest, rng):
    return mask_bands(log_mel, Augmentation(n_frequency_masks=spans, frequency_mask_width=widest), rng)


def runs(flags: list[bool]) -> list[tuple[int, int]]:
    """Start and length of every stretch of True."""
    got, start = [], None
    for i, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = i
        elif not flag and start is not None:
            got.append((start, i - start))
            start = None
    return got


def test_masked_frames_are_the_mean_and_others_unchanged(rng):
    frames = torch.randn(50, 7, generator=rng)
    before = frames.clone()
    hidden_once = False
    for _ in range(20):
        got = mask_time(frames, spans=2, widest=0.1, hop=0.01, share=1.0, rng=rng)
        hidden = (got != frames).any(dim=1)
        hidden_once |= bool(hidden.any())
        assert torch.equal(got[hidden], frames.mean(dim=0).expand(int(hidden.sum()), -1))
        assert all(length <= 20 for _, length in runs(hidden.tolist())) and len(runs(hidden.tolist())) <= 2
        assert torch.equal(frames, before)
    assert hidden_once


def test_masked_bands_are_their_means_over_time(rng):
    log_mel = torch.randn(30, 40, generator=rng)
    before = log_mel.clone()
    hidden_once = False
    for _ in range(20):
        got = mask_frequency(log_mel, spans=2, widest=9, rng=rng)
        hidden = (got != log_mel).any(dim=0)
        hidden_once |= bool(hidden.any())
        assert torch.equal(got[:, hidden], log_mel.mean(dim=0)[hidden].expand(30, -1))
        assert all(length <= 18 for _, length in runs(hidden.tolist())) and len(runs(hidden.tolist())) <= 2
        assert torch.equal(log_mel, before)
    assert hidden_once


@pytest.mark.parametrize(("widest", "share", "most"), [(0.05, 1.0, 5), (0.3, 1.0, 30), (1.0, 0.1, 4), (1.0, 1.0, 40)])
def test_mask_widths_are_uniform_up_to_the_limit(widest, share, most, rng):
    """Within four standard deviations of what uniform draws give, by the exact probabilities."""
    frames, n = torch.randn(40, 2, generator=rng), 3000
    spans: Counter[tuple[int, int]] = Counter()
    for _ in range(n):
        got = mask_time(frames, spans=1, widest=widest, hop=0.01, share=share, rng=rng)
        spans.update(runs((got != frames).any(dim=1).tolist()) or [(0, 0)])
    assert sum(spans.values()) == n
    for width in range(most + 1):
        count = sum(c for (_, length), c in spans.items() if length == width)
        assert abs(count - n / (most + 1)) < 4 * math.sqrt(n / (most + 1))
    assert max(length for _, length in spans) == most
    starts = [start for (start, length), c in spans.items() for _ in range(c) if length == 1]
    assert min(starts) < 8 and max(starts) > 31


def test_every_band_can_be_masked(rng):
    log_mel, seen = torch.randn(5, 12, generator=rng), torch.zeros(12)
    for _ in range(300):
        seen += (mask_frequency(log_mel, spans=1, widest=3, rng=rng) != log_mel).any(dim=0)
    assert (seen > 0).all()


def test_masks_may_be_wider_than_the_input(rng):
    for _ in range(20):
        assert mask_frequency(torch.randn(4, 3, generator=rng), spans=3, widest=15, rng=rng).shape == (4, 3)
        one = torch.randn(1, 3, generator=rng)
        assert torch.equal(mask_time(one, spans=3, widest=9.0, hop=0.01, share=1.0, rng=rng), one)
        assert mask_time(one[:0], spans=3, widest=9.0, hop=0.01, share=1.0, rng=rng).shape == (0, 3)


def test_no_masks_or_zero_width_change_nothing(rng):
    frames = torch.randn(20, 6, generator=rng)
    for spans, width in ((0, 9), (3, 0)):
        assert torch.equal(mask_frequency(frames, spans=spans, widest=width, rng=rng), frames)
        assert torch.equal(mask_time(frames, spans=spans, widest=width / 1, hop=0.01, share=1.0, rng=rng), frames)
    assert torch.equal(mask_time(frames, spans=3, widest=9.0, hop=0.01, share=0.0, rng=rng), frames)


def test_masked_bands_do_not_reach_the_mfcc(rng):
    """MFCC of the rest alone, the hidden bands being 0."""
    features = FeatureExtractor(FeatureConfig(n_mels=23, n_coefficients=23))
    log_mel = torch.randn(60, 23, generator=rng)
    hidden = log_mel.clone()
    hidden[:, 5:9] = log_mel[:, 5:9].mean(dim=0)
    without = log_mel.clone()
    without[:, 5:9] = 0
    torch.testing.assert_close(features.mfcc(hidden), features.mfcc(without), rtol=0, atol=1e-4)


def test_augmentation_depends_on_its_generator_alone():
    frames = torch.arange(800.0).view(40, 20)

    def draw(*numbers: int) -> list[float]:
        rng = generator(*numbers)
        torch.rand(3), np.random.rand(3)  # generators that others use do not matter
        first = mask_time(frames, spans=2, widest=0.2, hop=0.01, share=0.5, rng=rng)
        second = mask_frequency(first, spans=2, widest=9, rng=rng)
        return [*second.flatten().tolist(), draw_speed((0.9, 1.0, 1.1), rng)]

    assert draw(1, 2, 3) == draw(1, 2, 3)
    draws = [
        draw(*numbers) for numbers in ((1, 2, 3), (1, 3, 2), (2, 1, 3), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    ]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert one != other


def test_generators_of_neighbouring_seeds_are_uncorrelated():
    """First draws over seeds, epochs and indices: mean, variance and correlation of neighbours as of uniform ones."""
    first = np.array(
        [
            [[float(torch.rand((), generator=generator(s, e, i))) for i in range(30)] for e in range(10)]
            for s in range(5)
        ]
    )
    n = first.size
    assert len(np.unique(first)) == n
    assert abs(first.mean() - 1 / 2) < 4 * math.sqrt(1 / 12 / n) and abs(first.var() - 1 / 12) < 0.01
    for axis in range(3):
        one, other = (np.take(first, range(k, first.shape[axis] - 1 + k), axis).ravel() for k in (0, 1))
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(len(one))


def test_every_speed_is_drawn_equally_often(rng):
    n = 3000
    drawn = Counter(draw_speed((0.9, 1.0, 1.1), rng) for _ in range(n))
    assert set(drawn) == {0.9, 1.0, 1.1}
    assert all(abs(count - n / 3) < 4 * math.sqrt(n * 2 / 9) for count in drawn.values())


@pytest.mark.parametrize("speed", [0.5, 0.9, 1.0, 1.1, 1.25, 2.0])
def test_speed_changes_tempo_and_pitch(speed):
    """A tone of f Hz becomes one of speed * f Hz, in n / speed samples, known without resampling."""
    rate, f = 16000, 440.0
    waveform = 0.5 * torch.sin(2 * math.pi * f * torch.arange(rate) / rate)
    got = change_speed(waveform, speed)
    assert len(got) == math.ceil(round(rate / speed, 6))
    want = 0.5 * torch.sin(2 * math.pi * speed * f * torch.arange(len(got)) / rate)
    torch.testing.assert_close(got[100:-100], want[100:-100], rtol=0, atol=0.005)


def test_speed_one_changes_nothing(rng):
    waveform = torch.randn(999, generator=rng)
    assert torch.equal(change_speed(waveform, 1.0), waveform)


@pytest.mark.parametrize("speed", [0.0, -1.0, 0.49, 2.01, math.nan, math.inf])
def test_an_impossible_speed_is_refused(speed):
    with pytest.raises(ValueError, match=rf"^speed must lie in \[0\.5, 2\], but speed={re.escape(str(speed))}$"):
        Augmentation(speeds=(1.0, speed))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("speeds", ()), ("n_time_masks", -1), ("time_mask_width", -0.1), ("n_frequency_masks", -2),
        ("frequency_mask_width", -3), ("time_mask_proportion", 1.5), ("vtlp", 1.0),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name} must .*but {name}={re.escape(str(value))}"):
        Augmentation(**{name: value})


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_vtlp_moves_a_tone_by_its_factor(factor):
    """The band that answers a tone of factor * f is where the warped bands of a tone of f have their peak."""
    config = FeatureConfig(n_mels=80, n_coefficients=20)
    features = FeatureExtractor(config)
    time = torch.arange(16000) / 16000
    for hertz in (2000.0, 3000.0, 4000.0):
        here, there = (features.log_mel(torch.sin(2 * math.pi * f * time))[20] for f in (hertz, factor * hertz))
        got = perturb_vocal_tract(here[None], factor, config)[0]
        assert abs(int(got.argmax()) - int(there.argmax())) <= 1
        if factor != 1.0:
            assert abs(int(here.argmax()) - int(there.argmax())) >= 2  # so that the test can fail


def test_vtlp_factor_one_changes_nothing(rng):
    log_mel = torch.randn(7, 23, generator=rng)
    torch.testing.assert_close(
        perturb_vocal_tract(log_mel, 1.0, FeatureConfig(n_mels=23, n_coefficients=0)), log_mel, rtol=0, atol=1e-5
    )


def test_vtlp_factors_cover_their_range():
    drawn = [draw_vtlp(0.2, generator(1, 0, i)) for i in range(500)]
    assert 0.8 <= min(drawn) < 0.81 and 1.19 < max(drawn) <= 1.2
    assert abs(sum(drawn) / len(drawn) - 1) < 0.03  # 0.115 / sqrt(500), six times


def test_token_dropout_replaces_its_share_except_the_first(rng):
    target_in = torch.arange(4, 4 + 60 * 50).view(60, 50)
    got = torch.stack([drop_tokens(row, share=0.3, instead=1, rng=rng) for row in target_in])
    assert torch.equal(got[:, 0], target_in[:, 0])
    changed = got != target_in
    assert (got[changed] == 1).all()
    assert abs(changed[:, 1:].float().mean() - 0.3) < 0.05  # 0.46 / sqrt(2940), six times
    assert torch.equal(drop_tokens(target_in[0], share=0.0, instead=1, rng=rng), target_in[0])


def test_added_silence_repeats_the_quietest_frame(rng):
    log_mel = torch.randn(6, 4, generator=rng)
    quietest = min(log_mel.tolist(), key=sum)
    got = add_silence(log_mel, 2, 3)
    torch.testing.assert_close(got, torch.tensor([quietest] * 2 + log_mel.tolist() + [quietest] * 3))
    assert torch.equal(add_silence(log_mel, 0, 0), log_mel)


def test_noise_in_log_mels_equals_noise_in_the_waveform(rng):
    """At 60 dB: the same mean energy in every band as white noise of that level, added before the DFT."""
    extractor = FeatureExtractor(FeatureConfig())
    clean = torch.full((4000, 80), -60.0, dtype=torch.float64)  # nothing, but for one loud frame
    clean[0] = 3.0
    added = add_noise(clean, extractor.band_widths.double(), 60.0, rng)[1:].exp().mean(dim=0)
    white = extractor.log_mel(torch.randn(640_000, generator=rng)).double().exp().mean(dim=0)
    want = 1e-6 * float(clean.exp().mean(dim=0).sum()) * white / white.sum()
    torch.testing.assert_close(added, want, rtol=0.25, atol=0)
    assert float(added.sum()) == pytest.approx(float(want.sum()), rel=0.02)


def test_the_signal_to_noise_ratio_is_uniform_up_to_60_decibels(rng):
    widths, clean = torch.ones(40), torch.full((1, 40), -200.0)
    clean[0, 0] = 4.0
    noise = [add_noise(clean, widths, 20.0, rng)[0, 1:].exp().sum() / 39 * 40 for _ in range(1000)]
    ratios = 10 * (math.exp(4.0) / torch.stack(noise)).log10()
    assert 17 < ratios.min() < 22 and 58 < ratios.max() < 63  # noise varies by about 1 dB
    assert float(ratios.mean()) == pytest.approx(40, abs=1.5)  # 40 / sqrt(12 * 1000) = 0.37


def test_noise_frames_vary_like_white_noise(rng):
    """Behind digital silence nothing else is heard; wide bands vary less than narrow ones."""
    extractor = FeatureExtractor(FeatureConfig())
    loud_once = torch.full((4000, 80), -13.8)
    loud_once[0] = 14.0
    got = add_noise(loud_once, extractor.band_widths, 60.0, rng)[1:].std(dim=0)  # well above the silence
    want = extractor.log_mel(torch.randn(640_000, generator=rng)).std(dim=0)
    assert float((got / want).log().abs().max()) < 0.7  # within a factor of 2
    assert got[-1] < got[0]


def test_gain_and_tilt_equal_a_filter_of_the_waveform(rng):
    """Gain is what happens at 1 kHz, tilt what happens from there to 4 kHz; the filter has both at every frequency."""
    extractor = FeatureExtractor(FeatureConfig(low=100.0))
    noise = torch.randn(160_000, generator=rng, dtype=torch.float64)
    before, spectrum = extractor.log_mel(noise.float()), torch.fft.rfft(noise)
    hertz = torch.fft.rfftfreq(len(noise), 1 / 16000).clamp_min(1.0)
    mels = 2595 * (1 + torch.tensor([100.0, 1000.0, 4000.0, 8000.0]) / 700).log10()
    one, four = ((mels[1:3] - mels[0]) / (mels[3] - mels[0]) * 81 - 1).round().long().tolist()
    gains, tilts = [], []
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        got = (change_level(before, LEVELS, extractor.config, generator) - before).double()
        torch.testing.assert_close(got, got[:1].expand_as(got), atol=1e-4, rtol=0)
        decibels = got[0] * 10 / math.log(10)
        gains.append(float(decibels[one]))
        tilts.append(float(decibels[four] - decibels[one]) / 2)
        if seed < 3:
            filtered = spectrum * 10 ** ((gains[-1] + tilts[-1] * (hertz / 1000).log2()) / 20)
            want = extractor.log_mel(torch.fft.irfft(filtered, n=len(noise)).float()) - before
            torch.testing.assert_close(got.mean(dim=0).float(), want.mean(dim=0), atol=0.1, rtol=0)
    for drawn, most in ((gains, 12.0), (tilts, 3.0)):
        assert max(map(abs, drawn)) < 1.05 * most and min(drawn) < -0.9 * most and max(drawn) > 0.9 * most
        assert abs(np.mean(drawn)) < 4 * most / math.sqrt(3 * 300)
    assert abs(np.corrcoef(gains, tilts)[0, 1]) < 0.2


def test_gain_is_removed_by_utterance_but_not_global_normalization(rng):
    log_mel = torch.randn(50, 80, generator=rng)
    louder = change_level(log_mel, LEVELS, FeatureConfig(), rng)
    statistics = {"mean": torch.zeros(20), "std": torch.full((20,), 2.0)}
    for normalize, lost in (("utterance", True), ("global", False)):
        config = FeatureConfig(normalize=normalize, n_coefficients=20)
        extractor = FeatureExtractor(config, **statistics if config.has_statistics else {})
        assert torch.allclose(extractor.mfcc(log_mel), extractor.mfcc(louder), atol=1e-4) == lost
