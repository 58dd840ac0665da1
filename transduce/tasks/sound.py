"""Sound as a transcriber takes it: cut into segments, lazily, with or without speech, and its
transcript."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedIOBase
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from transduce.data.audio import audio_blocks, read_samples, scale
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import FeatureExtractor, VectorReader
from transduce.data.segments import levels, segments, split_segments
from transduce.decode.rules import Timestamps
from transduce.decode.scorer import at_least_float32
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.model.transformer import Memory
from transduce.tasks.base import Request, encoder_states
from transduce.tasks.config import SearchConfig
from transduce.tasks.outputs import Output

Audio = Path | str | BufferedIOBase | tuple[np.ndarray | Tensor, int]
"""A file, by its path or open; or samples with their rate in Hz: one channel of shape (n,), floats
of which full scale is -1 ... 1, or integers of 16 or 32 bits."""

CHUNK = 600.0
"""Seconds of sound that are searched at a time, in batches of similar length; so many features are
in memory."""

STRETCH = 60.0
"""Seconds of one sound whose features are made at a time; the segment that completes them may be
longer."""

UNCUT = 1e9
"""The max_seconds that disables segmentation."""


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


@runtime_checkable
class Lasting(Protocol):
    """What has a duration."""

    @property
    def seconds(self) -> float:
        """How long it lasts."""


ItemT = TypeVar("ItemT", bound=Lasting)


@dataclass(frozen=True)
class SegmentedAudio:
    """Sound whose segments are known."""

    silent: bool
    """Whether every sample is 0."""
    n_frames: list[int]
    """Of every segment."""
    segments: Iterator[AudioSegment]
    """The sound is read again for them, so they may raise an InputError, which names it. Digital
    silence has no frames."""


def segment_audio(
    audio: Audio,
    name: Path | str,
    feature_extractor: FeatureExtractor | VectorReader,
    decoding: SearchConfig,
) -> SegmentedAudio:
    """Cut sound in its pauses.

    Vectors have no loudness, so they are cut into equal parts, as few as are no longer than
    `max_seconds`; they are normalized before, all at once.

    Raises:
        InputError: the sound cannot be used; the message names it.
    """
    if isinstance(feature_extractor, VectorReader):
        return _segment_vectors(audio, name, feature_extractor, decoding.max_seconds)
    rate = feature_extractor.config.sample_rate
    read = _reader(audio, rate, name)
    blocks = read()
    first = list(islice(blocks, 2))
    loudness = levels(chain(first, blocks), rate)
    divisor = scale(loudness.loudest, str(name))
    with errors_of(name):
        spans = segments(loudness, decoding.max_seconds, decoding.min_seconds, decoding.margin)

    def extracted() -> Iterator[AudioSegment]:
        again = iter(first) if len(first) == 1 else read()  # a single block is still in memory
        for (start, stop), waveform in zip(
            spans, split_segments(again, spans, str(name)), strict=True
        ):
            with errors_of(name):
                frames = feature_extractor(waveform / divisor)
            yield AudioSegment(
                start / rate, stop / rate, frames if waveform.any() else frames[:0].clone()
            )

    n_frames = [feature_extractor.config.n_frames(stop - start) for start, stop in spans]
    return SegmentedAudio(not loudness.loudest, n_frames, extracted())


@contextmanager
def errors_of(name: Path | str) -> Iterator[None]:
    """Name the sound in an InputError of these lines."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name} cannot be transcribed: {error}") from error


def group_by_duration(items: Iterable[ItemT], least: float) -> Iterator[list[ItemT]]:
    """Items in groups of at least `least` seconds each; the last one may be shorter."""
    group: list[ItemT] = []
    total = 0.0
    for item in items:
        group.append(item)
        total += item.seconds
        if total >= least:
            yield group
            group = []
            total = 0.0
    if group:
        yield group


def _reader(
    audio: Audio, rate: int, name: Path | str
) -> Callable[[], Iterator[Float[Tensor, " _"]]]:
    """A function that reads the sound from its beginning."""
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


def _segment_vectors(
    audio: Audio, name: Path | str, reader: VectorReader, max_seconds: float
) -> SegmentedAudio:
    if not isinstance(audio, Path | str):
        raise InputError(
            f"{name} cannot be used: this model takes vectors, not sound; name files (.npy)"
        )
    vectors = reader(Path(audio))
    seconds = reader.config.seconds
    n = math.ceil(len(vectors) / max(1, int(round(max_seconds / reader.config.hop, 6))))
    spans = list(pairwise(len(vectors) * i // n for i in range(n + 1)))
    parts = (AudioSegment(seconds(a), seconds(b), vectors[a:b]) for a, b in spans)
    return SegmentedAudio(False, [b - a for a, b in spans], parts)


def detects_speech(model: Engine, tokenizer: Tokenizer) -> bool:
    """Whether the model has a token for no speech, as Whisper has, or a CTC head."""
    return tokenizer.no_speech_id is not None or model.config.ctc


@torch.no_grad()
def no_speech_probs(
    model: Engine, tokenizer: Tokenizer, sources: Sequence[Float[Tensor, "_ F"]], batch_tokens: int
) -> list[float | None]:
    """The probability that nobody speaks in every sound; 1 of no frames, None if it cannot be told.

    Whisper's is that of its token for it, after the first token of its prompt. Of other models it
    is 1 - q^(1/n), for the n tokens of the greedy path of their CTC head, which all alignments
    together spell with the probability q; 1 where that path is all blank.

    Args:
        batch_tokens: source positions of a batch: speed and memory, never the figures.
    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision,
    section 4.5.
    """
    if not detects_speech(model, tokenizer):
        return [None if len(frames) else 1.0 for frames in sources]
    states = iter(
        encoder_states(model, [frames for frames in sources if len(frames)], batch_tokens)
    )
    return [
        _probability(model, tokenizer, next(states)) if len(frames) else 1.0 for frames in sources
    ]


def _probability(model: Engine, tokenizer: Tokenizer, states: Float[Tensor, "S D"]) -> float:
    batch = states[None].to(model.device)
    if tokenizer.no_speech_id is None:
        return _by_ctc(
            at_least_float32(model.ctc_logits(batch)[0]).cpu(), *tokenizer.required("pad_id")
        )
    bos = torch.tensor([tokenizer.required("bos_id")], device=model.device)
    decoded = model.decoder_states(bos, memory=Memory(batch, None))
    return float(at_least_float32(model.project(decoded))[0, 0].softmax(-1)[tokenizer.no_speech_id])


def _by_ctc(logits: Float[Tensor, "S V"], blank_id: int) -> float:
    log_probs = logits.log_softmax(-1)
    ids = log_probs.argmax(-1).unique_consecutive()
    ids = ids[ids != blank_id]
    if not len(ids):
        return 1.0
    sizes = torch.tensor(len(log_probs)), torch.tensor(len(ids))
    log_prob = -F.ctc_loss(log_probs, ids, *sizes, blank=blank_id, reduction="sum")
    return -float((log_prob / len(ids)).expm1())
