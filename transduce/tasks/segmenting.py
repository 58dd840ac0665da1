"""Sound to segments and their features, made when they are asked for: memory does not grow with its length."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from transduce.data.speech.audio import audio_blocks, read_samples, scale
from transduce.data.speech.features import FeatureExtractor, VectorReader
from transduce.data.speech.segments import cut, levels, segments
from transduce.errors import InputError
from transduce.tasks.config import SearchConfig
from transduce.tasks.transcript import Audio

Item = TypeVar("Item")


@dataclass(frozen=True)
class SegmentedAudio:
    """Sound of which it is known where it is cut."""

    seconds: float
    silent: bool
    """Whether every sample is 0."""
    n_frames: list[int]
    """Of every segment."""
    segments: Iterator[tuple[float, float, Float[Tensor, "_ F"]]]
    """Start and stop in seconds, and the frames, of every segment; no frames of digital silence. The sound is read again
    for them, so they may raise a InputError that names it."""


def segment_audio(
    audio: Audio, name: Path | str, feature_extractor: FeatureExtractor | VectorReader, decoding: SearchConfig
) -> SegmentedAudio:
    """Find where to cut sound: in its pauses.

    Vectors do not say how loud they are, so they are cut into equal parts, as few as are no longer than `max_seconds`;
    they are normalized before, all at once.

    Raises:
        InputError: the sound cannot be used; the message names it.
    """
    if isinstance(feature_extractor, VectorReader):
        return _cut_vectors(audio, name, feature_extractor, decoding.max_seconds)
    rate = feature_extractor.config.sample_rate
    read = _reader(audio, rate, name)
    blocks = read()
    first = list(islice(blocks, 2))
    found = levels(chain(first, blocks), rate)
    divisor = scale(found.loudest, str(name))
    try:
        spans = segments(found, decoding.max_seconds, decoding.min_seconds, decoding.margin)
    except InputError as error:
        raise InputError(f"{name} cannot be transcribed: {error}") from error

    def heard() -> Iterator[tuple[float, float, Float[Tensor, "_ F"]]]:
        again = iter(first) if len(first) == 1 else read()  # what is one block is in memory
        for (start, stop), waveform in zip(spans, cut(again, spans, str(name)), strict=True):
            try:
                frames = feature_extractor(waveform / divisor)
            except InputError as error:
                raise InputError(f"{name} cannot be transcribed: {error}") from error
            yield start / rate, stop / rate, frames if waveform.any() else frames[:0].clone()

    n_frames = [feature_extractor.config.n_frames(stop - start) for start, stop in spans]
    return SegmentedAudio(found.n_samples / rate, not found.loudest, n_frames, heard())


def group_by_duration(items: Iterable[Item], least: float, seconds: Callable[[Item], float]) -> Iterator[list[Item]]:
    """As many items at a time as last for `least` seconds together; the last may be fewer."""
    group, total = [], 0.0
    for item in items:
        group.append(item)
        total += seconds(item)
        if total >= least:
            yield group
            group, total = [], 0.0
    if group:
        yield group


def _reader(audio: Audio, rate: int, name: Path | str) -> Callable[[], Iterator[Float[Tensor, " _"]]]:
    """What reads sound from its beginning, each time it is called."""
    if isinstance(audio, tuple) and len(audio) == 2:
        waveform = read_samples(*audio, rate, name=str(name))
        return lambda: iter([waveform])
    if isinstance(audio, Path | str | BufferedIOBase):
        file = Path(audio) if isinstance(audio, str) else audio
        return lambda: audio_blocks(file, rate, name=str(name))
    raise InputError(
        f"{name} cannot be used: a sound must be a file or (samples, rate), but it is of the type "
        f"{type(audio).__name__}; give a list such as [(samples, rate)]"
    )


def _cut_vectors(audio: Audio, name: Path | str, reader: VectorReader, max_seconds: float) -> SegmentedAudio:
    if not isinstance(audio, Path | str):
        raise InputError(f"{name} cannot be used: this model takes vectors, not sound; name files (.npy)")
    vectors, seconds = reader(Path(audio)), reader.config.seconds
    n = math.ceil(len(vectors) / max(1, int(round(max_seconds / reader.config.hop, 6))))
    spans = list(pairwise(len(vectors) * i // n for i in range(n + 1)))
    found = ((seconds(a), seconds(b), vectors[a:b]) for a, b in spans)
    return SegmentedAudio(seconds(len(vectors)), False, [b - a for a, b in spans], found)
