"""Sound as a transcriber takes it, and what it makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.phrases import Prefix
from transduce.decode.timestamps import Timestamps
from transduce.tasks.search import Output

Audio = Path | str | BufferedIOBase | tuple[np.ndarray | Tensor, int]
"""A file, by its path or open; or samples with their rate in Hz: one channel of shape (n,), floats of which full scale
is -1 ... 1, or integers of 16 or 32 bits."""


def audio_name(audio: Audio, number: str) -> Path | str:
    """What messages call it: its path, its name, as open files have one, or its number."""
    if isinstance(audio, Path | str):
        return Path(audio)
    name = getattr(audio, "name", None)
    return name if isinstance(name, str) else number


@dataclass(frozen=True)
class Sound:
    """A stretch of sound that was read: start and stop in seconds, and the frames, of its segments.

    Short sound is one stretch. If `error` tells why there is no more, the sound cannot be used. A segment of digital
    silence has no frames: in constant ones a model hears whatever it likes.
    """

    path: Path | str
    """The file; of samples, what messages call them."""
    segments: list[tuple[float, float, Float[Tensor, "_ F"]]]
    error: str = ""
    number: int = 0
    """Which sound of all it is; what is drawn depends on it."""
    first_segment: int = 0
    """Which of the segments of the whole sound segments[0] is; what is drawn depends on it, too."""
    n_segments: int = 0
    """How many segments the whole sound has."""
    prefix: Prefix | None = None
    """What the text of its first segment that is no silence begins with."""
    require: Sequence[str] = ()
    """The phrases that the text of its only segment holds."""

    def from_segment(self, first: int, n: int) -> "Sound":
        """n of its segments, from this one on; the prefix is no longer theirs once something was heard before."""
        begun = any(len(frames) for *_, frames in self.segments[:first])
        segments, prefix = self.segments[first : first + n], None if begun else self.prefix
        return replace(self, segments=segments, first_segment=self.first_segment + first, prefix=prefix)

    @property
    def seconds(self) -> float:
        """How long the stretch lasts."""
        return self.segments[-1][1] - self.segments[0][0] if self.segments else 0.0


@dataclass(frozen=True)
class Segment:
    """What was said between two moments, in seconds; n best outputs."""

    start: float
    stop: float
    outputs: list[Output]


def cut(whole: Segment, times: Timestamps, tokenizer: Tokenizer) -> list[Segment]:
    """A segment for each stretch of text between two times of its output; itself where there is none."""
    (output,), found = whole.outputs, list[Segment]()
    for begun, ended, ids in times.stretches(output.tokens):
        stop = whole.stop if ended is None else min(whole.stop, whole.start + ended)
        one = replace(output, text=tokenizer.decode([ids])[0].strip(), tokens=ids)
        found.append(Segment(min(stop, whole.start + begun), stop, [one]))
    return found or [whole]


@dataclass(frozen=True)
class Transcript:
    """A sound as text; `error` tells why there is none."""

    path: Path | str
    segments: list[Segment]
    error: str = ""

    @property
    def text(self) -> str:
        """The best text of every segment, joined by spaces."""
        return " ".join(text for segment in self.segments if (text := segment.outputs[0].text.strip()))


@dataclass(frozen=True)
class Details:
    """What outputs are given besides their text."""

    token_scores: bool = False
    """The log-probabilities of their tokens, and the confidence of their words."""
    word_times: bool = False
    """When their words were said, and how sure CTC is of them."""
    no_speech: bool = False
    """How likely it is that nobody speaks, where the model can tell."""
