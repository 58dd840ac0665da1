"""Sound for transcribers: read lazily, cut into segments, and turned into features."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedIOBase
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transduce.data.audio import Block, audio_blocks, read_samples, scale
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import Features, VectorReader
from transduce.data.manifest import Recording
from transduce.data.segments import levels, segments as segment_spans, split_segments
from transduce.decode.phrases import required, text_prefix
from transduce.errors import InputError, errors_of, logger
from transduce.model.transformer import Transformer
from transduce.tasks.base import (
    Request,
    Source,
    check_list,
    check_positions,
    with_phrases,
)
from transduce.tasks.config import AUTO, SearchConfig
from transduce.tasks.outputs import Output
from transduce.tasks.seq2seq import Alignment, Seq2SeqTask
from transduce.tasks.speech import detect_language, detects_speech

Audio = Path | str | BufferedIOBase | tuple[np.ndarray | Tensor, int]
"""A file, by its path or open; or samples with their rate in Hz: one channel of shape (n,), floats
of which full scale is -1 ... 1, or integers of 16 or 32 bits."""

CHUNK = 600.0
"""Seconds of sound that are searched at a time, in batches of similar length; their features are in
memory."""

STRETCH = 60.0
"""Seconds of one sound whose features are made at a time; the segment that completes them may be
longer."""

UNCUT = 1e9
"""The max_seconds that disables segmentation."""


def audio_name(audio: Audio, number: str) -> Path | str:
    """The name of a sound in messages: its path, the name of the open file, or its number."""
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
    """The request of its first segment; `request.part` is the number of that segment in the whole
    sound."""

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


ItemT = TypeVar("ItemT", AudioSegment, Sound, Recording)
TaskT = TypeVar("TaskT", bound="SoundTask")


def segment_audio(
    audio: Audio,
    name: Path | str,
    feature_extractor: Features,
    decoding: SearchConfig,
) -> tuple[list[int], Iterator[AudioSegment]]:
    """Cut sound in its pauses: return the number of frames of every segment, and an iterator of the
    segments, which reads the sound again, so that it may raise an InputError, too. A warning names
    a silent sound.

    Vectors have no loudness, so they are cut into equal parts, as few as `max_seconds` allows,
    after normalization as a whole.

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
    if not loudness.loudest:
        logger.warning(
            "%s is silent, every sample being 0, so its text is blank; if its channels cancel out, "
            "take one",
            name,
        )
    spans = segment_spans(loudness, decoding.max_seconds, decoding.min_seconds, decoding.margin)

    def extracted() -> Iterator[AudioSegment]:
        again = iter(first) if len(first) == 1 else read()  # a single block is still in memory
        waveforms = split_segments(again, spans, str(name))
        for (start, stop), waveform in zip(spans, waveforms, strict=True):
            with errors_of(f"{name} cannot be transcribed"):
                frames = feature_extractor(waveform / divisor)
            if not waveform.any():
                frames = frames[:0].clone()
            yield AudioSegment(start / rate, stop / rate, frames)

    return [feature_extractor.config.n_frames(b - a) for a, b in spans], extracted()


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


def _reader(audio: Audio, rate: int, name: Path | str) -> Callable[[], Iterator[Block]]:
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
) -> tuple[list[int], Iterator[AudioSegment]]:
    if not isinstance(audio, Path | str):
        raise InputError(
            f"{name} cannot be used: this model takes vectors, not sound; name files (.npy)"
        )
    vectors = reader(Path(audio))
    seconds = reader.config.seconds
    n = math.ceil(len(vectors) / max(1, int(round(max_seconds / reader.config.hop, 6))))
    spans = list(pairwise(len(vectors) * i // n for i in range(n + 1)))
    parts = (AudioSegment(seconds(a), seconds(b), vectors[a:b]) for a, b in spans)
    return [b - a for a, b in spans], parts


class SoundTask(Seq2SeqTask[Audio]):
    """A task of sound, which it reads in segments."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        feature_extractor: Features,
        decoding: SearchConfig | None = None,
        lexicon: Sequence[str] = (),
    ) -> None:
        super().__init__(model, tokenizer, decoding)
        self.feature_extractor = feature_extractor
        self.lexicon = tuple(lexicon)
        self.trained_seconds = self.decoding.max_seconds
        """A little more than the longest recording of the training."""

    def read(
        self,
        sounds: Sequence[Audio],
        decoding: SearchConfig | None = None,
        *,
        prefix: Sequence[str] | None = None,
        require: Sequence[Sequence[str]] | None = None,
        first_sound: int = 0,
    ) -> Iterator[Sound]:
        """Read one sound after the other, cut into segments of at most `decoding.max_seconds`.

        A long sound comes in several stretches of about STRETCH seconds, so that memory does not
        grow with its length. Its file is read twice, for the cuts and for the features; if reading
        fails in between, its last stretch has an error.

        Args:
            prefix: the beginning of each text, "" for none; its last word may be continued, unless
                the prefix ends with a space.
            require: the required phrases of each text, [] for none; only for sound in one segment,
                as it is unknown which of several segments has them. A wider beam finds better
                places for them.
            first_sound: the number of sounds[0], if these are a part of all sounds.
        """
        config = decoding or self.decoding
        rows = with_phrases(sounds, prefix, require)
        if self.trained_seconds < config.max_seconds < UNCUT:
            logger.warning(
                "segments of up to %g s are longer than what the run was trained on, %g s with "
                "some reserve; expect errors, or leave out max_seconds",
                config.max_seconds,
                self.trained_seconds,
            )
        if config.no_speech_threshold and not detects_speech(self.engine, self.tokenizer):
            logger.warning(
                "no_speech_threshold changes nothing: this model has neither a CTC head nor a "
                "token for no speech"
            )
        if config.target_language == AUTO and not self.tokenizer.languages:
            raise InputError(
                "a multilingual Whisper detects the language, but this model has no tokens for "
                "languages; leave auto out"
            )
        for i, (audio, text, phrases) in enumerate(rows):
            request = Request(number=first_sound + i, require=phrases)
            yield from self._read(audio, audio_name(audio, f"sound {i + 1}"), request, text, config)

    def _read(
        self, audio: Audio, name: Path | str, request: Request, prefix: str, config: SearchConfig
    ) -> Iterator[Sound]:
        """The stretches of one sound; an error ends them."""
        try:
            n_frames, segments = segment_audio(audio, name, self.feature_extractor, config)
            with errors_of(f"{name} cannot be transcribed"):
                n_positions = self.model.config.frames.out_lengths(max(n_frames))
                check_positions(
                    "a segment", n_positions, self.engines, source=True, way_out="lower max_seconds"
                )
                if request.require and len(n_frames) > 1:
                    raise InputError(
                        f"required phrases are for sound in one segment, but it has {len(n_frames)}"
                        "; cut it where you know what is said, or raise max_seconds"
                    )
                required(self.tokenizer, [request.require])  # which checks the phrases
                request = replace(request, prefix=text_prefix(self.tokenizer, prefix))
            for stretch in group_by_duration(segments, STRETCH):
                speech = [segment.frames for segment in stretch if len(segment.frames)]
                if config.target_language == AUTO and speech and not request.language:
                    language = detect_language(self.engine, self.tokenizer, speech[0])
                    request = replace(request, language=language)
                sound = Sound(name, stretch, "", len(n_frames), request)
                yield sound
                request = sound.from_segment(len(stretch), 0).request
        except InputError as error:
            yield Sound(name, [], str(error), request=request)

    def sources(self, inputs: Sequence[Audio]) -> list[Source]:
        """The frames of every sound, which is not cut.

        Raises:
            InputError: one of them cannot be used, or is silent.
        """
        return [segment.frames for segment in self._whole(inputs)]

    def _whole(self, inputs: Sequence[Audio]) -> list[AudioSegment]:
        """Every sound as one segment."""
        check_list(inputs, "encode, score and align take a list of sounds")
        whole: list[AudioSegment] = []
        for sound in self.read(inputs, replace(self.decoding, max_seconds=UNCUT)):
            if sound.error:
                raise InputError(sound.error)
            (segment,) = sound.segments
            if not len(segment.frames):
                raise InputError(
                    f"a sound must have samples other than 0, but {sound.path} is silent; leave it "
                    "out"
                )
            whole.append(segment)
        return whole

    def with_decoding(self: TaskT, decoding: SearchConfig) -> TaskT:
        """The same task with another `decoding`, in the language that it names."""
        task = super().with_decoding(decoding)
        if decoding.target_language not in ("", AUTO):
            task.tokenizer = self.tokenizer.with_language(decoding.target_language)
        return task

    def _alignment(
        self, source: Source, output: Output, weights: Float[Tensor, "L H T S"]
    ) -> Alignment:
        tokens = self.tokenizer.tokens(self._target(output))
        return Alignment([], tokens, weights, self.position_seconds)

    @property
    def position_seconds(self) -> float:
        """The time from one source position to the next."""
        features = self.feature_extractor.config
        hop = round(features.seconds(2) - features.seconds(1), 9)  # a whole number of samples
        return hop * self.model.config.frames.per_position
