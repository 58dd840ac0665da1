"""Tasks whose input is sound: how it is read, its features, and the times of given words."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from transduce.data.speech.features import FeatureExtractor, VectorReader
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.phrases import text_prefix
from transduce.decode.required import required
from transduce.errors import InputError
from transduce.model.transformer import Transformer
from transduce.tasks.config import SearchConfig
from transduce.tasks.inputs import check_list, per_line
from transduce.tasks.no_speech import detects_speech
from transduce.tasks.request import Request
from transduce.tasks.segmenting import errors_of, group_by_duration, segment_audio, warn_of_unusual
from transduce.tasks.seq2seq import Seq2SeqTask
from transduce.tasks.states import Source, check_positions
from transduce.tasks.transcript import Audio, Sound, audio_name
from transduce.tasks.word_times import CTCAligner
from transduce.tasks.words import Word

logger = logging.getLogger("transduce")

STRETCH = 60.0
"""Seconds of one sound whose features are made at a time; the segment that completes them may be
longer."""

WHOLE = 1e9
"""The max_seconds that disables segmentation."""


class SoundTask(Seq2SeqTask[Audio]):
    """A task of sounds: files, or samples with their rate."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        feature_extractor: FeatureExtractor | VectorReader,
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
        grow with its length. Its file is read twice, for the cuts and for the features; if it
        ceases to be readable, its last stretch has an error.

        A sound of nothing but digital silence is named by a warning, and so is one that is shorter
        than half of `min_seconds`. If max_seconds is above the run's own, a warning says that the
        run knows no such segments.

        Args:
            prefix: the beginning of each text, "" for none; its last word may go on, unless a space
                ends it.
            require: the phrases in each text, [] for none: of sound in one segment, as nobody knows
                in which of several they are. A wider beam finds better places for them.
            first_sound: the number of sounds[0], where these are a part of all sounds.
        """
        decoding = decoding or self.decoding
        prefixes = per_line(prefix, len(sounds), "prefix", "")
        phrases = per_line(require, len(sounds), "require", [])
        if self.trained_seconds < decoding.max_seconds < WHOLE:
            logger.warning(
                "segments of up to %g s are longer than what the run was trained on, %g s with "
                "some reserve; expect "
                "errors, or leave out max_seconds",
                decoding.max_seconds,
                self.trained_seconds,
            )
        if decoding.no_speech_threshold and not detects_speech(self.engine, self.tokenizer):
            logger.warning(
                "no_speech_threshold changes nothing: this model has neither a CTC head nor a "
                "token for no speech"
            )
        for i, audio in enumerate(sounds):
            yield from self._read(audio, i, prefixes[i], phrases[i], first_sound + i, decoding)

    def _read(
        self,
        audio: Audio,
        i: int,
        prefix: str,
        phrases: Sequence[str],
        number: int,
        decoding: SearchConfig,
    ) -> Iterator[Sound]:
        """The stretches of one sound; an error ends them."""
        name = audio_name(audio, f"sound {i + 1}")
        request = Request(number=number)
        try:
            segmented = segment_audio(audio, name, self.feature_extractor, decoding)
            with errors_of(name):
                request = self._request(number, prefix, phrases, segmented.n_frames)
            for stretch in group_by_duration(
                segmented.segments, STRETCH, lambda segment: segment.stop - segment.start
            ):
                if not request.part:
                    warn_of_unusual(segmented, name, decoding)
                sound = Sound(name, stretch, n_segments=len(segmented.n_frames), request=request)
                yield sound
                request = sound.from_segment(len(stretch), 0).request
        except InputError as error:
            yield Sound(name, [], str(error), request=request)

    @torch.no_grad()
    def words(self, sounds: Sequence[Audio], texts: Sequence[str]) -> list[list[Word]]:
        """The words of given texts, with their times and confidence by CTC; sound is not cut.

        Raises:
            InputError: there are not as many texts as sounds, one of either cannot be used, or
            there is no CTC head.
        """
        sources = self._checked_sources(sounds)
        targets = self._targets(sounds, texts)
        aligner = self._aligner()
        return [
            aligner(source, [ids[:-1]])[0] for source, ids in zip(sources, targets, strict=True)
        ]

    def _aligner(self) -> CTCAligner:
        """The aligner of words by the CTC head; in an ensemble, by that of the first model."""
        return CTCAligner(self.engine, self.tokenizer, self.feature_extractor.config)

    def sources(self, inputs: Sequence[Audio]) -> list[Source]:
        """The frames of every sound, which is not cut.

        Raises:
            InputError: one of them cannot be used, or is silent.
        """
        check_list(inputs, "encode, score and align take a list of sounds")
        sources: list[Source] = []
        for sound in self.read(inputs, replace(self.decoding, max_seconds=WHOLE)):
            if sound.error:
                raise InputError(sound.error)
            ((_, _, frames),) = sound.segments
            if not len(frames):
                raise InputError(
                    f"a sound must have something to hear, but {sound.path} is silent; leave it out"
                )
            sources.append(frames)
        return sources

    @property
    def position_seconds(self) -> float:
        """The time from one source position to the next."""
        return self.feature_extractor.config.hop * self.model.config.frames.per_position

    def _request(
        self, number: int, prefix: str, phrases: Sequence[str], n_frames: Sequence[int]
    ) -> Request:
        """The request of a sound with segments of these lengths.

        Raises:
            InputError: a segment is too long, or the text cannot have the prefix or the phrases.
        """
        for model in self.engines:
            n_positions = model.config.frames.out_lengths(max(n_frames))
            check_positions(
                "a segment", n_positions, [model], source=True, way_out="lower max_seconds"
            )
        if phrases and len(n_frames) > 1:
            raise InputError(
                f"required phrases are for sound in one segment, but it has {len(n_frames)}; cut "
                "it where you know "
                "what is said, or raise max_seconds"
            )
        required(self.tokenizer, [phrases])
        return Request(prefix=text_prefix(self.tokenizer, prefix), require=phrases, number=number)
