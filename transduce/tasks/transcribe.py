"""Sound in, text out."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import FeatureExtractor, VectorReader
from transduce.decode.beams import Hypothesis, loops
from transduce.decode.phrases import required, text_prefix
from transduce.errors import InputError
from transduce.model.transformer import Transformer
from transduce.tasks.base import (
    Details,
    Request,
    Source,
    check_list,
    check_positions,
    in_batches,
    in_order,
    per_line,
    source_lengths,
    warn_of_lacking,
)
from transduce.tasks.config import SearchConfig
from transduce.tasks.outputs import CTCAligner, Output, Word
from transduce.tasks.search import chosen, outputs_of, timestamps
from transduce.tasks.seq2seq import Seq2SeqTask
from transduce.tasks.sound import (
    CHUNK,
    STRETCH,
    UNCUT,
    Audio,
    Segment,
    Sound,
    Transcript,
    audio_name,
    detects_speech,
    errors_of,
    group_by_duration,
    no_speech_probs,
    segment_audio,
    split_at_times,
)

logger = logging.getLogger("transduce")

BLOCK = 4
"""The no_repeat_ngram of the second search where the first one looped."""
AT_ONCE = 4
"""Segments that are searched together where somebody waits for the first."""


class Transcriber(Seq2SeqTask[Audio]):
    """A sound in, or a list, of files or samples with their rate, as many texts out, in the same
    order; one that cannot be used is an error, but `transcribe` goes on with the others."""

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

    def _texts(
        self, inputs: Sequence[Audio], decoding: SearchConfig | None, settings: dict[str, Any]
    ) -> list[str]:
        transcripts = self.transcribe(inputs, decoding, **settings)
        for transcript in transcripts:
            if transcript.error:
                raise InputError(transcript.error)
        return [transcript.text for transcript in transcripts]

    def transcribe(
        self,
        sounds: Sequence[Audio],
        decoding: SearchConfig | None = None,
        *,
        prefix: Sequence[str] | None = None,
        require: Sequence[Sequence[str]] | None = None,
        progress: Callable[[int, int], object] | None = None,
        token_scores: bool = False,
        word_times: bool = False,
        **settings: Any,
    ) -> list[Transcript]:
        """Every sound with its segments; one that cannot be used has an error instead.

        Args:
            decoding: how to search; the run's own way if not given.
            settings: fields of SearchConfig, such as n_best=3; the others stay as they are in
                `decoding`.
            prefix, require: see `read`.
            progress: called with 1 for every segment that is done, and the number of all segments
                of the sounds that were read so far.
            token_scores: give every output the log-probabilities of its tokens.
            word_times: give every output its words, with their times and confidence, by CTC (of the
                first model).

        Raises:
            InputError: times of words are asked for, but the model has no CTC head.
        """
        check_list(sounds, "transcribe takes a list of files")
        config = self._merged(decoding, settings)
        details = Details(token_scores=token_scores, word_times=word_times)
        stretches = self.read(sounds, config, prefix=prefix, require=require)
        return self.transcripts(stretches, config, progress=progress, details=details)

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

        Args:
            prefix: the beginning of each text, "" for none; its last word may go on, unless a space
                ends it.
            require: the phrases in each text, [] for none: of sound in one segment, as nobody knows
                in which of several they are. A wider beam finds better places for them.
            first_sound: the number of sounds[0], where these are a part of all sounds.
        """
        config = decoding or self.decoding
        prefixes = per_line(prefix, len(sounds), "prefix", "")
        phrases = per_line(require, len(sounds), "require", [])
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
        texts = zip(sounds, prefixes, phrases, strict=True)
        for i, (audio, text, each) in enumerate(texts):
            request = Request(number=first_sound + i, require=each)
            yield from self._read(audio, audio_name(audio, f"sound {i + 1}"), request, text, config)

    def _read(
        self, audio: Audio, name: Path | str, request: Request, prefix: str, config: SearchConfig
    ) -> Iterator[Sound]:
        """The stretches of one sound; an error ends them."""
        try:
            segmented = segment_audio(audio, name, self.feature_extractor, config)
            with errors_of(name):
                n_positions = self.model.config.frames.out_lengths(max(segmented.n_frames))
                check_positions(
                    "a segment", n_positions, self.engines, source=True, way_out="lower max_seconds"
                )
                if request.require and len(segmented.n_frames) > 1:
                    raise InputError(
                        "required phrases are for sound in one segment, but it has "
                        f"{len(segmented.n_frames)}; cut it where you know what is said, or raise "
                        "max_seconds"
                    )
                required(self.tokenizer, [request.require])  # which checks the phrases
                request = replace(request, prefix=text_prefix(self.tokenizer, prefix))
            if segmented.silent:
                logger.warning(
                    "%s is silent, every sample being 0, so its text is blank; if its channels "
                    "cancel out, take one",
                    name,
                )
            for stretch in group_by_duration(segmented.segments, STRETCH):
                sound = Sound(name, stretch, "", len(segmented.n_frames), request)
                yield sound
                request = sound.from_segment(len(stretch), 0).request
        except InputError as error:
            yield Sound(name, [], str(error), request=request)

    def transcripts(
        self,
        sounds: Iterable[Sound],
        decoding: SearchConfig | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
        details: Details | None = None,
    ) -> list[Transcript]:
        """Transcripts of sounds that are read, each in one stretch or several; see `transcribe`."""
        transcripts: dict[int, Transcript] = {}
        n_segments = 0
        for chunk in group_by_duration(sounds, CHUNK):
            for sound in chunk:
                number = sound.request.number
                transcript = transcripts.setdefault(number, Transcript(sound.path, []))
                if sound.error:
                    transcripts[number] = replace(transcript, segments=[], error=sound.error)
                n_segments += 0 if sound.request.part else sound.n_segments
            for i, segment in self.stream(chunk, decoding, details=details):
                transcript = transcripts[chunk[i].request.number]
                if not transcript.error:
                    transcript.segments.append(segment)
                if progress:
                    progress(1, n_segments)
        for transcript in transcripts.values():
            transcript.segments.sort(key=lambda segment: segment.start)
        return list(transcripts.values())

    def in_order(
        self,
        sound: Sound,
        decoding: SearchConfig | None = None,
        *,
        details: Details | None = None,
    ) -> Iterator[Segment]:
        """The segments of a stretch of sound that was read, in their order, as soon as they are
        done: a few that follow each other are searched together."""
        for first in range(0, len(sound.segments), AT_ONCE):
            numbered = self.stream([sound.from_segment(first, AT_ONCE)], decoding, details=details)
            yield from sorted((each for _, each in numbered), key=lambda segment: segment.start)

    def stream(
        self,
        sounds: Sequence[Sound],
        decoding: SearchConfig | None = None,
        *,
        details: Details | None = None,
    ) -> Iterator[tuple[int, Segment]]:
        """The index of a stretch of sound that was read and a segment of it, as batches finish.

        Segments without speech, whose text is blank, come first, then long ones. A sound with an
        error has no segment.

        Raises:
            InputError: with timestamps, more is asked for than one text for each of them.
        """
        task = self.with_decoding(decoding or self.decoding)
        return task._stream(sounds, details or Details())

    def _stream(self, sounds: Sequence[Sound], details: Details) -> Iterator[tuple[int, Segment]]:
        config = self.decoding
        times = timestamps(self.tokenizer, config)
        if times and (config.n_best > 1 or details.token_scores or details.word_times):
            raise InputError(
                "timestamps cut an output into segments; leave out n_best, token_scores and "
                "word_times"
            )
        parts = [
            (i, sound.from_segment(k, 1))
            for i, sound in enumerate(sounds)
            for k in range(len(sound.segments))
        ]
        no_speech: Sequence[float | None] = [None] * len(parts)
        if config.no_speech_threshold or details.no_speech:
            frames = [part.segments[0].frames for _, part in parts]
            no_speech = no_speech_probs(self.engine, self.tokenizer, frames, config.batch_tokens)
        speech: list[tuple[int, Sound, float | None]] = []
        for (i, part), p in zip(parts, no_speech, strict=True):
            (segment,) = part.segments
            is_noise = 0 < config.no_speech_threshold < (p or 0) and not part.request.has_text
            if len(segment.frames) and not is_noise:
                speech.append((i, part, p))
            else:
                blank = [Output("", no_speech_prob=p)] * config.n_best
                yield i, Segment(segment.start, segment.stop, blank)
        names = [f"{part.path} from {part.segments[0].start:.1f} s" for _, part, _ in speech]
        requests = [part.request for _, part, _ in speech]
        sources = [part.segments[0].frames for _, part, _ in speech]
        for row, outputs in self._decode(sources, requests, names, details):
            i, part, p = speech[row]
            (segment,) = part.segments
            warn_of_lacking(names[row], requests[row].require, outputs[0].text)
            outputs = [
                replace(
                    output,
                    words=[word.later(segment.start) for word in output.words],
                    no_speech_prob=p,
                )
                for output in outputs
            ]
            result = Segment(segment.start, segment.stop, outputs)
            for each in split_at_times(result, times, self.tokenizer) if times else [result]:
                yield i, each

    def decode(
        self, frames: Sequence[Float[Tensor, "_ F"]], decoding: SearchConfig
    ) -> list[list[Output]]:
        """The n best texts of every utterance, in order."""
        names = [f"utterance {i}" for i in range(len(frames))]
        requests = [Request(number=i) for i in range(len(frames))]
        return in_order(self.with_decoding(decoding)._decode(frames, requests, names, Details()))

    def _decode(
        self,
        frames: Sequence[Source],
        requests: Sequence[Request],
        names: Sequence[str],
        details: Details,
    ) -> Iterator[tuple[int, list[Output]]]:
        """The number of a segment and its n best texts, as batches finish.

        Segments whose best text loops, or does not end before the length bound, are searched once
        more with repetition blocked; a warning counts them, and names some.
        """
        config = self.decoding
        aligner = self._aligner() if details.word_times else None
        looped: list[int] = []

        def search(rows: list[int], decoding: SearchConfig) -> list[list[Hypothesis]]:
            batch = [requests[row] for row in rows]
            return self._search([frames[row] for row in rows], batch, decoding)

        def decode(rows: list[int]) -> list[list[Output]]:
            hypotheses = dict(zip(rows, search(rows, config), strict=True))
            again = [row for row in rows if loops(hypotheses[row][0])]
            if again and not config.no_repeat_ngram:
                looped.extend(again)
                blocked = search(again, replace(config, no_repeat_ngram=BLOCK))
                hypotheses.update(zip(again, blocked, strict=True))
            best = (outputs_of(self.tokenizer, hypotheses[row], config) for row in rows)
            batch = [frames[row] for row in rows]
            outputs = self._detailed(batch, [chosen(each, config) for each in best], details)
            if not aligner:
                return outputs
            return [aligner.with_words(*pair) for pair in zip(batch, outputs, strict=True)]

        yield from in_batches(source_lengths(self.engine, frames), config.batch_tokens, decode)
        if looped:
            logger.warning(
                "%d of %d utterances came out as a loop, or without an end, and were searched "
                "again with repetition blocked: %s",
                len(looped),
                len(frames),
                ", ".join(names[row] for row in sorted(looped)[:5]) + ", ..." * (len(looped) > 5),
            )

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
        for sound in self.read(inputs, replace(self.decoding, max_seconds=UNCUT)):
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
