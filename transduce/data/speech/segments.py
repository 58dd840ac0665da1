"""Where to cut long recordings: in pauses, and where there is none, where it is quietest."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

FRAME = 0.01
"""Seconds over which the level is measured: at least one period of the deepest voice."""

PAUSE = 0.3
"""Seconds that a pause lasts at least: longer than the closure of a stop consonant, or a hesitation within a phrase."""

CLICK = 0.05
"""Seconds: what is loud for a shorter time is no speech."""

LEAD, TRAIL = 0.02, 0.09
"""Seconds of a pause that a segment keeps before and after the speech, at least: words fade out more slowly than in."""

DROPS = (15.0, 35.0)
"""By how many decibels the level falls in a pause: the least that counts, and what is always enough."""

QUIET = 0.1
"""Seconds over which the quietest place is looked for: longer than the closure of a [t], shorter than a pause."""


def segments(
    waveform: Float[Tensor, " n"], sample_rate: int, longest: float, shortest: float = 0.0, margin: float = 0.0
) -> list[tuple[int, int]]:
    """Cut a long recording: the start and stop samples of its segments, in order.

    A recording of at most `longest` seconds is one segment. A longer one is cut in every pause; of the
    pause, LEAD and TRAIL stay with the speech, and `margin` seconds more on either side. Two neighbours are one segment
    where either is shorter than `shortest` seconds and both together are not too long, across the shortest pause first. Where somebody speaks for longer than `longest` without a pause, the cut is at the quietest place in
    the second half of the longest segment possible.

    Raises:
        ValueError: `longest` is below one second.
    """
    if not longest >= 1:
        raise ValueError(f"longest must be at least one second, but longest={longest} s; 30.0 is usual")
    limit = int(longest * sample_rate)
    if len(waveform) <= limit:
        return [(0, len(waveform))]
    spans = _joined(_between_pauses(waveform, sample_rate, margin), limit, int(shortest * sample_rate))
    return [
        (first + start, first + stop)
        for first, last in spans
        for start, stop in _at_quietest(waveform[first:last], limit, max(1, round(QUIET * sample_rate)))
    ]


def _between_pauses(waveform: Float[Tensor, " n"], sample_rate: int, margin: float) -> list[tuple[int, int]]:
    """The spans between pauses, with what stays of these; the whole where there is no pause, or nothing else."""
    size = max(1, round(FRAME * sample_rate))
    loud = _loud(waveform, size)
    spoken = _runs(~_long(~_long(loud, CLICK), PAUSE))
    if not spoken:
        return [(0, len(waveform))]
    lead, trail = (round(sample_rate * min(each + margin, PAUSE / 2)) for each in (LEAD, TRAIL))
    return [(max(0, a * size - lead), min(len(waveform), b * size + trail)) for a, b in spoken]


def _loud(waveform: Float[Tensor, " n"], size: int) -> Bool[Tensor, " frames"]:
    """Which frames may be speech: those whose level is near enough to that of the loud ones.

    The drop that makes a pause is 70 % of the way from the loud frames (the 95th percentile) to the quiet ones (the
    5th), within DROPS.
    """
    power = torch.nn.functional.pad(waveform, (0, -len(waveform) % size)).view(-1, size).square().mean(dim=1)
    level = 10 * power.clamp_min(1e-12).log10()
    ranked = level.sort().values
    quiet, high = (float(ranked[int(share * (len(ranked) - 1))]) for share in (0.05, 0.95))
    return level > high - min(max(0.7 * (high - quiet), DROPS[0]), DROPS[1])


def _long(frames: Bool[Tensor, " n"], seconds: float) -> Bool[Tensor, " n"]:
    """The frames that belong to a run of at least so many seconds."""
    found = torch.zeros_like(frames)
    for start, stop in _runs(frames):
        if stop - start >= round(seconds / FRAME):
            found[start:stop] = True
    return found


def _runs(frames: Bool[Tensor, " n"]) -> list[tuple[int, int]]:
    """Start and stop of every run of True."""
    edges = torch.nn.functional.pad(frames.byte(), (1, 1)).diff().nonzero()[:, 0].tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _joined(spans: list[tuple[int, int]], limit: int, least: int) -> list[tuple[int, int]]:
    """The same spans, except that two neighbours become one where either is shorter than `least` and both fit.

    The shortest pause comes first, so that what belongs together is joined, and a short span does not go to the longer
    one before it, across a longer pause.
    """
    first, last = list(range(len(spans))), list(range(len(spans)))  # of the spans that one is joined with, at its ends
    for left in sorted(range(len(spans) - 1), key=lambda i: spans[i + 1][0] - spans[i][1]):
        a, b = first[left], last[left + 1]
        (start, middle), (next_start, stop) = (spans[a][0], spans[left][1]), (spans[left + 1][0], spans[b][1])
        if min(middle - start, stop - next_start) < least and stop - start <= limit:
            last[a], first[b] = b, a
    found, i = [], 0
    while i < len(spans):
        found.append((spans[i][0], spans[last[i]][1]))
        i = last[i] + 1
    return found


def _at_quietest(waveform: Float[Tensor, " n"], limit: int, width: int) -> list[tuple[int, int]]:
    """Segments that cover the waveform, each of at most `limit` samples and at least about a quarter of that.

    Of several equally quiet places, the cut is at the middle one.
    """
    found, start = [], 0
    while len(waveform) - start > limit:
        first = start + limit // 2
        last = min(start + limit, len(waveform) - limit // 4)  # so that the last segment is not shorter than a frame
        stop = first + _quietest(waveform[first:last], width)
        found.append((start, stop))
        start = stop
    return [*found, (start, len(waveform))]


def _quietest(waveform: Float[Tensor, " n"], width: int) -> int:
    """The middle of the `width` consecutive samples that have the least energy."""
    total = torch.nn.functional.pad(waveform.double().square().cumsum(0), (1, 0))
    energy = total[width:] - total[:-width]
    least = (energy == energy.min()).nonzero()[:, 0]
    return int(least[len(least) // 2]) + width // 2
