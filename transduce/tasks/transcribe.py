"""Sound in, text out."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from transduce.decode.hypothesis import Hypothesis, loops
from transduce.errors import InputError
from transduce.tasks.config import SearchConfig
from transduce.tasks.inputs import check_list, warn_of_lacking
from transduce.tasks.no_speech import no_speech_probs
from transduce.tasks.request import Details, Request
from transduce.tasks.search import Output, chosen, outputs_of, timestamps
from transduce.tasks.segmenting import group_by_duration
from transduce.tasks.sound import SoundTask
from transduce.tasks.states import Source, in_batches, in_order, source_lengths
from transduce.tasks.transcript import (
    Audio,
    AudioSegment,
    Segment,
    Sound,
    Transcript,
    split_at_times,
)

logger = logging.getLogger("transduce")

BLOCK = 4
"""The no_repeat_ngram of the second search where the first one looped."""
AT_ONCE = 4
"""Segments that are searched together where somebody waits for the first."""

CHUNK = 600.0
"""Seconds of sound that are searched at a time, in batches of similar length; so many features are
in memory."""


class Transcriber(SoundTask):
    """A list of sounds in, as many texts out, in the same order."""

    def __call__(
        self, sounds: Sequence[Audio], decoding: SearchConfig | None = None, **settings: Any
    ) -> list[str]:
        """The text of every sound; see `transcribe`.

        Raises:
            InputError: one of them cannot be used; `transcribe` goes on with the others.
        """
        transcripts = self.transcribe(sounds, decoding, **settings)
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
        for chunk in group_by_duration(sounds, CHUNK, lambda sound: sound.seconds):
            for sound in chunk:
                transcript = transcripts.setdefault(
                    sound.request.number, Transcript(sound.path, [])
                )
                if sound.error:
                    transcripts[sound.request.number] = replace(
                        transcript, segments=[], error=sound.error
                    )
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

    def stream(
        self,
        sounds: Sequence[Sound],
        decoding: SearchConfig | None = None,
        *,
        details: Details | None = None,
        **settings: Any,
    ) -> Iterator[tuple[int, Segment]]:
        """The index of a stretch of sound that was read and a segment of it, as batches finish.

        Segments without speech, whose text is blank, come first, then long ones. A sound with an
        error has no segment.

        Raises:
            InputError: with timestamps, more is asked for than one text for each of them.
        """
        return self.with_decoding(self._merged(decoding, settings))._stream(
            sounds, details or Details()
        )

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
            noise = 0 < config.no_speech_threshold < (p or 0) and not (
                part.request.prefix or part.request.require
            )
            if len(segment.frames) and not noise:
                speech.append((i, part, p))
            else:
                yield (
                    i,
                    Segment(
                        segment.start, segment.stop, [Output("", no_speech_prob=p)] * config.n_best
                    ),
                )
        names = [f"{part.path} from {part.segments[0].start:.1f} s" for _, part, _ in speech]
        for row, outputs in self._decode([part for _, part, _ in speech], names, details):
            i, part, p = speech[row]
            start, stop, _ = part.segments[0]
            warn_of_lacking(names[row], part.request.require, outputs[0].text)
            outputs = [
                replace(o, words=[w.later(start) for w in o.words], no_speech_prob=p)
                for o in outputs
            ]
            whole = Segment(start, stop, outputs)
            for each in split_at_times(whole, times, self.tokenizer) if times else [whole]:
                yield i, each

    def in_order(
        self,
        sound: Sound,
        decoding: SearchConfig | None = None,
        *,
        details: Details | None = None,
        **settings: Any,
    ) -> Iterator[Segment]:
        """The segments of a stretch of sound that was read, in their order, as soon as they are
        done.

        A few that follow each other are searched together.
        """
        config = self._merged(decoding, settings)
        for first in range(0, len(sound.segments), AT_ONCE):
            numbered = self.stream([sound.from_segment(first, AT_ONCE)], config, details=details)
            yield from sorted(
                (segment for _, segment in numbered), key=lambda segment: segment.start
            )

    def decode(
        self, frames: Sequence[Float[Tensor, "_ F"]], decoding: SearchConfig
    ) -> list[list[Output]]:
        """The n best texts of every utterance, in order; a warning counts the loops."""
        names = [f"utterance {i}" for i in range(len(frames))]
        sounds = [
            Sound(name, [AudioSegment(0.0, 0.0, each)], request=Request(number=i))
            for i, (name, each) in enumerate(zip(names, frames, strict=True))
        ]
        return in_order(self.with_decoding(decoding)._decode(sounds, names, Details()))

    def _decode(
        self, sounds: Sequence[Sound], names: Sequence[str], details: Details
    ) -> Iterator[tuple[int, list[Output]]]:
        """The number of a sound of one segment and its n best texts, as batches finish.

        Sounds whose best text loops, or does not end before the length bound, are searched once
        more with repetition blocked; a warning counts them, and names some.
        """
        config = self.decoding
        frames: list[Source] = [sound.segments[0].frames for sound in sounds]
        aligner = self._aligner() if details.word_times else None
        looped: list[int] = []

        def search(rows: list[int], how: SearchConfig) -> list[list[Hypothesis]]:
            return self._search(
                [frames[row] for row in rows], [sounds[row].request for row in rows], how
            )

        def decode(rows: list[int]) -> list[list[Output]]:
            hypotheses = dict(zip(rows, search(rows, config), strict=True))
            again = [
                row for row in rows if not config.no_repeat_ngram and loops(hypotheses[row][0])
            ]
            if again:
                looped.extend(again)
                blocked = search(again, replace(config, no_repeat_ngram=BLOCK))
                hypotheses.update(zip(again, blocked, strict=True))
            candidates = (
                outputs_of(self.tokenizer, hypotheses[row], config.n_candidates) for row in rows
            )
            outputs = [chosen(each, config) for each in candidates]
            batch = [frames[row] for row in rows]
            if details.token_scores:
                outputs = self.with_token_scores(batch, outputs)
            return (
                [aligner.with_words(*pair) for pair in zip(batch, outputs, strict=True)]
                if aligner
                else outputs
            )

        yield from in_batches(source_lengths(self.engine, frames), config.batch_tokens, decode)
        if looped:
            some = ", ".join(names[row] for row in sorted(looped)[:5]) + ", ..." * (len(looped) > 5)
            logger.warning(
                "%d of %d utterances came out as a loop, or without an end, and were searched "
                "again with repetition "
                "blocked: %s",
                len(looped),
                len(frames),
                some,
            )
