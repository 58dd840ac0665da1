"""Segments of long recordings: cut in pauses, and where there is none, at the quietest place."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transduce.data.audio import Block
from transduce.errors import InputError

FRAME = 0.01
"""Seconds over which the level is measured: at least one period of the deepest voice."""

PAUSE = 0.3
"""The shortest pause in seconds: longer than the closure of a stop consonant, or a hesitation
within a phrase."""

CLICK = 0.05
"""The shortest loud sound in seconds that can be speech."""

LEAD, TRAIL = 0.02, 0.09
"""Seconds of a pause that a segment keeps before and after the speech, at least: words fade out
more slowly than in."""

DROPS = (15.0, 35.0)
"""Decibels by which the level falls in a pause: the least that counts, and the drop that is always
enough."""

QUIET = 0.1
"""Seconds over which the quietest place is measured: longer than the closure of a [t], shorter than
a pause."""

Span = tuple[int, int]
"""The first sample of a segment, and the one after its last."""


@dataclass(frozen=True)
class Levels:
    """The loudness of a recording: a hundred numbers a second, which are enough to know where to
    cut it."""

    power: Float[Tensor, " frames"]
    """The mean square of the samples of every FRAME; the last is filled up with zeros."""
    frame_samples: int
    n_samples: int
    sample_rate: int
    loudest: Float[Tensor, ""]
    """The largest absolute sample; NaN if a sample is NaN."""


def levels(blocks: Iterable[Block], sample_rate: int) -> Levels:
    """The levels of a recording that is given block by block; the borders of the blocks do not
    matter."""
    size = max(1, round(FRAME * sample_rate))
    n_samples = 0
    loudest = torch.zeros(())
    powers = []
    rest = torch.zeros(0)
    for block in chain(blocks, [None]):
        if block is None:
            rest = torch.nn.functional.pad(rest, (0, -len(rest) % size))
        else:
            n_samples += len(block)
            loudest = torch.maximum(loudest, block.abs().amax())
            rest = torch.cat([rest, block])
        complete = len(rest) // size * size
        powers.append(rest[:complete].view(-1, size).square().mean(dim=1))
        rest = rest[complete:]
    return Levels(torch.cat(powers), size, n_samples, sample_rate, loudest)


def split_segments(blocks: Iterable[Block], spans: Sequence[Span], name: str) -> Iterator[Block]:
    """The samples of every span of a recording that is given block by block; spans are in order and
    do not overlap.

    Args:
        name: stands for the recording in messages.

    Raises:
        InputError: the recording ends before the last span does.
    """
    blocks = iter(blocks)
    begin = 0  # of `rest`
    rest = torch.zeros(0)
    for start, stop in spans:
        while begin + len(rest) < stop:
            block = next(blocks, None)
            if block is None:
                raise InputError(
                    f"{name} must stay as it is while it is read, but now it ends after "
                    f"{begin + len(rest)} samples; try again"
                )
            before = max(0, start - begin)
            begin += min(before, len(rest))
            rest = torch.cat([rest[before:], block])
        yield rest[start - begin : stop - begin]


def segments(
    levels: Levels, longest: float, shortest: float = 0.0, margin: float = 0.0
) -> list[Span]:
    """The spans of the segments of a long recording, in order.

    A recording of at most `longest` seconds is one segment. A longer one is cut in every pause;
    LEAD and TRAIL of the pause stay with the speech, plus `margin` seconds on either side. Two
    neighbours are merged if either is shorter than `shortest` seconds and both together are not too
    long, across the shortest pause first. Speech that is longer than `longest` without a pause is
    cut at the quietest place in the second half of the longest segment possible.

    Args:
        longest: at least one second.
    """
    limit = int(longest * levels.sample_rate)
    if levels.n_samples <= limit:
        return [(0, levels.n_samples)]
    spans = _merge_short(_between_pauses(levels, margin), limit, int(shortest * levels.sample_rate))
    return [part for span in spans for part in _split_at_quietest(levels, span, limit)]


def _between_pauses(levels: Levels, margin: float) -> list[Span]:
    """The spans between pauses, each with a part of the pauses around it; the whole recording if
    there is no pause, or no speech."""
    speech = _runs(~_long(~_long(_loud(levels), CLICK), PAUSE))
    if not speech:
        return [(0, levels.n_samples)]
    size = levels.frame_samples
    lead, trail = (
        round(levels.sample_rate * min(part + margin, PAUSE / 2)) for part in (LEAD, TRAIL)
    )
    return [
        (max(0, start * size - lead), min(levels.n_samples, stop * size + trail))
        for start, stop in speech
    ]


def _loud(levels: Levels) -> Bool[Tensor, " frames"]:
    """The frames that may be speech: those whose level is near enough to that of the loud ones.

    The drop that makes a pause is 70 % of the way from the loud frames (the 95th percentile) to the
    quiet ones (the 5th), within DROPS.
    """
    level = 10 * levels.power.clamp_min(1e-12).log10()
    # torch's own quantile takes two days of sound at most
    quiet, high = np.quantile(level.numpy(), (0.05, 0.95), method="lower").tolist()
    return level > high - min(max(0.7 * (high - quiet), DROPS[0]), DROPS[1])


def _long(frames: Bool[Tensor, " n"], seconds: float) -> Bool[Tensor, " n"]:
    """The frames that belong to a run of at least this many seconds."""
    in_long_run = torch.zeros_like(frames)
    for start, stop in _runs(frames):
        in_long_run[start:stop] = stop - start >= round(seconds / FRAME)
    return in_long_run


def _runs(frames: Bool[Tensor, " n"]) -> list[Span]:
    """Start and stop of every run of True."""
    edges = torch.nn.functional.pad(frames.byte(), (1, 1)).diff().nonzero()[:, 0].tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _merge_short(spans: list[Span], limit: int, least: int) -> list[Span]:
    """The same spans, except that two neighbours become one where either is shorter than `least`
    and both fit.

    The shortest pause comes first, so that a short span joins the nearer neighbour.
    """
    stops, starts = dict(spans), {stop: start for start, stop in spans}
    for (_, pause), (speech, _) in sorted(pairwise(spans), key=lambda two: two[1][0] - two[0][1]):
        start, stop = starts[pause], stops[speech]  # of the merged neighbours
        if min(pause - start, stop - speech) < least and stop - start <= limit:
            del starts[pause], stops[speech]
            stops[start], starts[stop] = stop, start
    return [*stops.items()]


def _split_at_quietest(levels: Levels, span: Span, limit: int) -> Iterator[Span]:
    """Yield segments that cover a span, each of at most `limit` samples and at least about a
    quarter of that.

    Cuts lie between frames. Of several equally quiet places, the cut is at the middle one.
    """
    start, stop = span
    size = levels.frame_samples
    width = round(QUIET / FRAME)
    while stop - start > limit:
        first = -(-(start + limit // 2) // size)
        # so that the last segment is not shorter than a frame
        last = min(start + limit, stop - limit // 4) // size
        energy = levels.power[first:last].double().unfold(0, width, 1).sum(dim=1)
        quietest = (energy == energy.min()).nonzero()[:, 0]
        middle = size * (first + int(quietest[len(quietest) // 2]) + width // 2)
        yield start, middle
        start = middle
    yield start, stop
