"""Long recordings: cut in their pauses, whatever the noise; nothing that is said is lost, and nothing is too long."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from transduce.data.segments import LEAD, TRAIL, Levels, levels, segments, split_segments

RATE = 8000


def speech(
    spoken: list[tuple[float, float]], seconds: float, *, noise: float = 0.0, level: float = 0.1
) -> torch.Tensor:
    """Loud noise, as long as somebody speaks, on a background of faint noise."""
    rng = torch.Generator().manual_seed(1)
    waveform = noise * torch.randn(round(seconds * RATE), generator=rng)
    for start, stop in spoken:
        a, b = round(start * RATE), round(stop * RATE)
        waveform[a:b] += level * torch.randn(b - a, generator=rng)
    return waveform


def cuts(waveform: torch.Tensor, rate: int, *bounds: float, **more: float) -> list[tuple[int, int]]:
    return segments(levels([waveform], rate), *bounds, **more)


def in_seconds(got: list[tuple[int, int]]) -> list[tuple[float, float]]:
    return [(start / RATE, stop / RATE) for start, stop in got]


SPOKEN = [(0.5, 2.0), (2.4, 3.1), (5.0, 8.0), (8.5, 9.5)]


@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-3, 1e-2], ids=["silence", "-60 dB", "-40 dB", "-20 dB"])
@pytest.mark.parametrize("level", [0.5, 0.1])
def test_a_long_recording_is_cut_at_pauses(noise, level):
    """Whatever the levels of speech and background are; a little of a pause stays on either side."""
    got = in_seconds(cuts(speech(SPOKEN, 10, noise=noise * level / 0.1, level=level), RATE, 4.0))
    assert len(got) == len(SPOKEN)
    for (start, stop), (first, last) in zip(got, SPOKEN, strict=True):
        assert start == pytest.approx(max(0, first - LEAD), abs=0.02)
        assert stop == pytest.approx(last + TRAIL, abs=0.02)


def test_margin_keeps_more_of_each_pause():
    """But not so much that half of the shortest pause is exceeded."""
    waveform = speech(SPOKEN, 10, noise=1e-4)
    for margin, lead, trail in ((0.05, 0.07, 0.14), (0.3, 0.15, 0.15)):
        for (start, stop), (first, last) in zip(
            in_seconds(cuts(waveform, RATE, 4.0, margin=margin)), SPOKEN, strict=True
        ):
            assert (start, stop) == (pytest.approx(first - lead, abs=0.02), pytest.approx(last + trail, abs=0.02))


def test_short_gaps_are_no_pauses_and_clicks_no_speech():
    spoken = [(0.2, 1.0), (1.1, 2.0), (3.0, 3.03), (4.0, 5.5)]  # 0.1 s of silence; 0.03 s of sound
    got = in_seconds(cuts(speech(spoken, 6, noise=1e-4), RATE, 3.0))
    (first, second) = got
    assert first == (0.0, pytest.approx(2.0 + TRAIL, abs=0.02))  # 0.2 s of silence are no pause either
    assert second == pytest.approx((4.0 - LEAD, 5.5 + TRAIL), abs=0.02)


@pytest.mark.parametrize(
    ("shortest", "longest", "want"), [(0.0, 5.0, 4), (0.7, 5.0, 4), (0.9, 5.0, 3), (1.5, 5.0, 2), (1.5, 4.0, 3)]
)
def test_short_segments_are_merged_if_they_fit(shortest, longest, want):
    """With what stays of the pauses they last 1.61, 0.81, 3.11 and 1.11 s."""
    got = in_seconds(cuts(speech(SPOKEN, 10, noise=1e-4), RATE, longest, shortest))
    assert len(got) == want
    assert all(stop - start <= longest for start, stop in got)


def test_short_segments_merge_with_the_nearer_neighbour():
    """Words one after the other belong together, however long what they are joined to became before."""
    words = [(0.5, 0.9), (1.3, 1.7), (2.1, 2.5), (3.3, 3.7), (4.1, 4.5), (4.9, 5.3)]  # pauses of 0.4 s, and one of 0.8
    got = in_seconds(cuts(speech(words, 6, noise=1e-4), RATE, 5.0, 1.0))
    want = [(0.5 - LEAD, 2.5 + TRAIL), (3.3 - LEAD, 5.3 + TRAIL)]
    assert [pytest.approx(each, abs=0.02) for each in want] == got


def test_a_short_recording_is_one_segment():
    waveform = speech([(1.0, 1.5), (2.5, 3.0)], 4)
    assert cuts(waveform, RATE, 4.0) == [(0, 4 * RATE)]


def assert_covers(got: list[tuple[int, int]], n: int, limit: int) -> None:
    assert got[0][0] == 0 and got[-1][1] == n
    assert all(one[1] == other[0] for one, other in pairwise(got))
    assert all(0 < stop - start <= limit for start, stop in got)
    if len(got) > 1:
        assert min(stop - start for start, stop in got) >= limit // 4


@pytest.mark.parametrize("n", [1, 799, 800, 801, 803, 1000, 1199, 1200, 1201, 1601, 4001, 50_001])
def test_without_pauses_segments_cover_everything_within_limits(n, rng):
    for waveform in (torch.randn(n, generator=rng), torch.zeros(n), torch.ones(n)):
        got = cuts(waveform, 800, 1.0)
        assert_covers(got, n, 800)
        assert len(got) == 1 or n > 800


def test_without_pauses_the_cut_has_the_least_energy(rng):
    rate, frame = 1000, 10  # samples a second and a frame, in which noise is never a pause
    waveform = torch.randn(10 * rate, generator=rng) * (0.5 + torch.rand(10 * rate, generator=rng))
    (_, got), _ = cuts(waveform, rate, 9.0)
    # from half of 9 s on, and leaving a quarter of 9 s behind, between frames
    places = range(int(4.5 * rate), 10 * rate - 9 * rate // 4 - 10 * frame + 1, frame)
    energy = {i + 5 * frame: float(waveform[i : i + 10 * frame].double().square().sum()) for i in places}
    assert got == min(energy, key=lambda place: energy[place])


def test_an_hour_of_silence_can_be_cut():
    waveform = torch.zeros(3600 * 1000)
    got = cuts(waveform, 1000, 30.0)
    assert_covers(got, len(waveform), 30 * 1000)


def test_two_days_of_sound_can_be_cut():
    n = 2**24 + 2  # frames: more than torch.quantile takes
    power = torch.full((n,), 1e-2)
    power[n // 2 : n // 2 + 50] = 0.0
    assert segments(Levels(power, 1, n, 100, torch.tensor(0.1)), 100_000.0) == [
        (0, n // 2 + 9),
        (n // 2 + 48, n),
    ]


@pytest.mark.parametrize("size", [1, 7, 80, 333, 10_000])
def test_segmenting_in_blocks_equals_segmenting_at_once(size, rng):
    """Its levels, where it is cut, and what is between the cuts; the last frame and the last block are not full."""
    waveform = 3 * torch.randn(2503, generator=rng)
    got, frames = levels(waveform.split(size), 1000), np.resize(np.r_[waveform.numpy(), np.zeros(7)], (251, 10))
    np.testing.assert_allclose(got.power, (frames.astype(np.float64) ** 2).mean(axis=1), rtol=1e-6)
    assert (got.n_samples, float(got.loudest)) == (2503, float(waveform.abs().max()))
    spans = segments(got, 1.0)
    assert spans == cuts(waveform, 1000, 1.0) and len(spans) > 2
    for some in (spans, spans[1:2], [(3, 5), (700, 701), (2400, 2503)]):
        for (start, stop), samples in zip(some, split_segments(waveform.split(size), some, "a"), strict=True):
            assert torch.equal(samples, waveform[start:stop])


def test_a_recording_that_ends_before_its_last_segment_is_refused():
    with pytest.raises(ValueError) as caught:
        list(split_segments([torch.zeros(900), torch.zeros(600)], [(0, 1000), (1000, 1501)], "a.wav"))
    assert (
        str(caught.value) == "a.wav must stay as it is while it is read, but now it ends after 1500 samples; try again"
    )
