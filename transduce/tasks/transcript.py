"""Sound as a transcriber takes it, and its transcript."""

from dataclasses import dataclass, field, replace
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.rules import Timestamps
from transduce.tasks.request import Request
from transduce.tasks.search import Output

Audio = Path | str | BufferedIOBase | tuple[np.ndarray | Tensor, int]
"""A file, by its path or open; or samples with their rate in Hz: one channel of shape (n,), floats
of which full scale is -1 ... 1, or integers of 16 or 32 bits."""


def audio_name(audio: Audio, number: str) -> Path | str:
    """The name of a sound in messages: its path, the name of an open file, or its number."""
    if isinstance(audio, Path | str):
        return Path(audio)
    name = getattr(audio, "name", None)
    return name if isinstance(name, str) else number


class AudioSegment(NamedTuple):
    """A part of a sound, in seconds; digital silence has no frames: models hallucinate on it."""

    start: float
    stop: float
    frames: Float[Tensor, "_ F"]

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.stop - self.start


@dataclass(frozen=True)
class Sound:
    """Successive segments of a sound that was read; short sound is one such stretch.

    If there is an `error`, the sound cannot be used.
    """

    path: Path | str
    """The file; of samples, their name in messages."""
    segments: list[AudioSegment]
    error: str = ""
    n_segments: int = 0
    """The number of segments of the whole sound."""
    request: Request = field(default_factory=Request)
    """What its first segment asks of a search; `request.part` is the number of that segment in the
    whole sound."""

    def from_segment(self, first: int, n: int) -> "Sound":
        """n of its segments, from this one on; a prefix belongs to the first one with frames."""
        begun = any(len(segment.frames) for segment in self.segments[:first])
        request = replace(
            self.request,
            prefix=None if begun else self.request.prefix,
            part=self.request.part + first,
        )
        return replace(self, segments=self.segments[first : first + n], request=request)

    @property
    def seconds(self) -> float:
        """How long the stretch lasts."""
        return self.segments[-1].stop - self.segments[0].start if self.segments else 0.0


@dataclass(frozen=True)
class Segment:
    """A transcript between two moments, in seconds; n best outputs."""

    start: float
    stop: float
    outputs: list[Output]


def split_at_times(segment: Segment, times: Timestamps, tokenizer: Tokenizer) -> list[Segment]:
    """A segment for each text between two times of its output; itself where there is none."""
    (output,) = segment.outputs
    parts = []
    for begun, ended, ids in times.segments(output.tokens):
        stop = segment.stop if ended is None else min(segment.stop, segment.start + ended)
        part = replace(output, text=tokenizer.decode([ids])[0].strip(), tokens=ids)
        parts.append(Segment(min(stop, segment.start + begun), stop, [part]))
    return parts or [segment]


@dataclass(frozen=True)
class Transcript:
    """A sound as text, or the `error` for which there is none."""

    path: Path | str
    segments: list[Segment]
    error: str = ""

    @property
    def text(self) -> str:
        """The best text of every segment, joined by spaces."""
        return " ".join(
            text for segment in self.segments if (text := segment.outputs[0].text.strip())
        )
