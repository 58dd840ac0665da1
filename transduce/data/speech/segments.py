"""Where to cut long recordings: in pauses, and where there is none, where it is quietest."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transduce.errors import InputError

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


@dataclass(frozen=True)
class Levels:
    """How loud a recording is: a hundred numbers a second, which are enough to know where to cut it."""

    power: Float[Tensor, " frames"]
    """The mean square of the samples of every FRAME; the last is filled up with zeros."""
    frame_samples: int
    n_samples: int
    sample_rate: int
    loudest: Float[Tensor, ""]
    """How far the loudest sample is from 0; NaN if one is."""


def levels(blocks: Iterable[Float[Tensor, " _"]], sample_rate: int) -> Levels:
    """The levels of a recording that is given block by block; the borders of the blocks do not matter."""
    size, n, loudest = max(1, round(FRAME * sample_rate)), 0, torch.zeros(())
    powers, rest = [], torch.zeros(0)
    for block in blocks:
        n, loudest = n + len(block), torch.maximum(loudest, block.abs().amax())
        rest = torch.cat([rest, block])
        whole = len(rest) // size * size
        powers.append(rest[:whole].view(-1, size).square().mean(dim=1))
        rest = rest[whole:]
    rest = torch.nn.functional.pad(rest, (0, -len(rest) % size))
    powers.append(rest.view(-1, size).square().mean(dim=1))
    return Levels(torch.cat(powers), size, n, sample_rate, loudest)


def cut(
    blocks: Iterable[Float[Tensor, " _"]], spans: Sequence[tuple[int, int]], name: str
) -> Iterator[Float[Tensor, " _"]]:
    """The samples of every span of a recording that is given block by block; spans are in order and do not overlap.

    Args:
        name: what messages call it.

    Raises:
        InputError: the recording ends before the last span does.
    """
    given, begin, block = iter(blocks), 0, torch.zeros(0)
    for start, stop in spans:
        parts = [block[max(0, start - begin) : max(0, stop - begin)]]
        while begin + len(block) < stop:
            begin, following = begin + len(block), next(given, None)
            if following is None:
                raise InputError(
                    f"{name} must stay as it is while it is read, but now it ends after {begin} samples; try again"
                )
            block = following
            parts.append(block[max(0, start - begin) : max(0, stop - begin)])
        yield torch.cat(parts)


def segments(found: Levels, longest: float, shortest: float = 0.0, margin: float = 0.0) -> list[tuple[int, int]]:
    """Cut a long recording: the start and stop samples of its segments, in order.

    A recording of at most `longest` seconds is one segment. A longer one is cut in every pause; of the
    pause, LEAD and TRAIL stay with the speech, and `margin` seconds more on either side. Two neighbours are one segment
    where either is shorter than `shortest` seconds and both together are not too long, across the shortest pause first.
    Where somebody speaks for longer than `longest` without a pause, the cut is at the quietest place in the second half
    of the longest segment possible.

    Raises:
        InputError: `longest` is below one second.
    """
    if not longest >= 1:
        raise InputError(f"longest must be at least one second, but longest={longest} s; 30.0 is usual")
    limit = int(longest * found.sample_rate)
    if found.n_samples <= limit:
        return [(0, found.n_samples)]
    spans = _joined(_between_pauses(found, margin), limit, int(shortest * found.sample_rate))
    return [part for first, last in spans for part in _at_quietest(found, first, last, limit)]


def _between_pauses(found: Levels, margin: float) -> list[tuple[int, int]]:
    """The spans between pauses, with what stays of these; the whole where there is no pause, or nothing else."""
    size, n = found.frame_samples, found.n_samples
    spoken = _runs(~_long(~_long(_loud(found), CLICK), PAUSE))
    if not spoken:
        return [(0, n)]
    lead, trail = (round(found.sample_rate * min(each + margin, PAUSE / 2)) for each in (LEAD, TRAIL))
    return [(max(0, a * size - lead), min(n, b * size + trail)) for a, b in spoken]


def _loud(found: Levels) -> Bool[Tensor, " frames"]:
    """Which frames may be speech: those whose level is near enough to that of the loud ones.

    The drop that makes a pause is 70 % of the way from the loud frames (the 95th percentile) to the quiet ones (the
    5th), within DROPS.
    """
    level = 10 * found.power.clamp_min(1e-12).log10()
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


def _at_quietest(found: Levels, start: int, stop: int, limit: int) -> list[tuple[int, int]]:
    """Segments that cover a span, each of at most `limit` samples and at least about a quarter of that.

    Cuts lie between frames. Of several equally quiet places, the cut is at the middle one.
    """
    size, width, parts = found.frame_samples, round(QUIET / FRAME), []
    while stop - start > limit:
        first = -(-(start + limit // 2) // size)
        last = min(start + limit, stop - limit // 4) // size  # so that the last segment is not shorter than a frame
        middle = size * (first + _quietest(found.power[first:last], width))
        parts.append((start, middle))
        start = middle
    return [*parts, (start, stop)]


def _quietest(power: Float[Tensor, " n"], width: int) -> int:
    """The middle of the `width` consecutive frames that have the least energy."""
    energy = power.double().unfold(0, width, 1).sum(dim=1)
    least = (energy == energy.min()).nonzero()[:, 0]
    return int(least[len(least) // 2]) + width // 2
