"""Transcription of sound to text."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.decode.beam import Hypothesis, loops
from transduce.errors import InputError, logger
from transduce.tasks.base import (
    PLAIN,
    Details,
    Request,
    Source,
    check_list,
    encoder_states,
    in_order,
    source_lengths,
    warn_of_lacking,
)
from transduce.tasks.config import AUTO, SearchConfig
from transduce.tasks.outputs import (
    Output,
    Segment,
    Transcript,
    Word,
    split_at_times,
    with_scores,
    word_spans,
)
from transduce.tasks.search import bias_of, outputs_of, timestamps
from transduce.tasks.sound import CHUNK, Audio, AudioSegment, Sound, SoundTask, group_by_duration
from transduce.tasks.speech import attention_starts, ctc_words, no_speech_prob

BLOCK = 4
"""The no_repeat_ngram of the second search where the first one looped."""
AT_ONCE = 4
"""Segments that are searched together if the first results are needed soon."""


class Utterance(NamedTuple):
    """The frames of a segment with speech, and its request."""

    name: str
    """Its name in warnings."""
    request: Request
    frames: Float[Tensor, "S F"]
    states: Float[Tensor, "_ D"] | None = None
    """The states of the first encoder, if they are already computed."""


class Transcriber(SoundTask):
    """Transcribes one sound, or each sound in a list, in the same order: files, or samples with
    their rate. A sound that cannot be used raises an error, but `transcribe` goes on with the
    others."""

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
        """The transcript of every sound, with its segments; a sound that cannot be used has an
        error instead.

        Args:
            decoding: the search configuration; default: the run's own.
            settings: fields of SearchConfig, such as n_best=3; the others stay as they are in
                `decoding`.
            prefix, require: see `read`.
            progress: called with 1 for every segment that is done, and the number of all segments
                of the sounds that were read so far.
            token_scores: give every output the log-probabilities of its tokens.
            word_times: give every output its words, with their times and confidence, by CTC or
                alignment heads (of the first model).

        Raises:
            InputError: times of words are requested, but the model has neither.
        """
        check_list(sounds, "transcribe takes a list of files")
        config = (decoding or self.decoding).changed(**settings)
        details = Details(token_scores=token_scores, word_times=word_times)
        stretches = self.read(sounds, config, prefix=prefix, require=require)
        return self.transcripts(stretches, config, progress=progress, details=details)

    def transcripts(
        self,
        sounds: Iterable[Sound],
        decoding: SearchConfig | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
        details: Details = PLAIN,
    ) -> list[Transcript]:
        """The transcripts of sounds that `read` returned, each in one or more stretches; see
        `transcribe`."""
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
        details: Details = PLAIN,
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
        details: Details = PLAIN,
    ) -> Iterator[tuple[int, Segment]]:
        """The index of a stretch of sound that was read and a segment of it, as batches finish.

        Segments without speech, whose text is blank, come first, then long ones. A sound with an
        error has no segment.

        Raises:
            InputError: timestamps are combined with n_best, token_scores or word_times.
        """
        config = decoding or self.decoding
        rows: dict[str, list[int]] = defaultdict(list)
        for i, sound in enumerate(sounds):
            rows[sound.request.language].append(i)
        for language, some in rows.items():
            auto = config.target_language == AUTO  # it was detected where the sound was read
            task = self.with_decoding(replace(config, target_language=language) if auto else config)
            numbered = task._stream([sounds[i] for i in some], details)
            yield from ((some[k], segment) for k, segment in numbered)

    def _stream(self, sounds: Sequence[Sound], details: Details) -> Iterator[tuple[int, Segment]]:
        config = self.decoding
        times = timestamps(self.tokenizer, config)
        if times and (config.n_best > 1 or details.token_scores or details.word_times):
            raise InputError(
                "timestamps cut an output into segments; leave out n_best, token_scores and "
                "word_times"
            )
        if details.word_times:
            self._check_times()
        parts = [
            (i, sound.from_segment(k, 1).request, segment)
            for i, sound in enumerate(sounds)
            for k, segment in enumerate(sound.segments)
        ]
        states: dict[int, Tensor] = {}
        if is_judged := config.no_speech_threshold or details.no_speech:
            sounding = [k for k, (*_, segment) in enumerate(parts) if len(segment.frames)]
            frames: list[Source] = [parts[k][2].frames for k in sounding]
            encoded = encoder_states(self.engine, frames, config.batch_tokens)
            states = dict(zip(sounding, encoded, strict=True))
        speech: list[tuple[int, AudioSegment, float | None, Utterance]] = []
        for k, (i, request, segment) in enumerate(parts):
            p = no_speech_prob(self.engine, self.tokenizer, states.get(k)) if is_judged else None
            is_noise = 0 < config.no_speech_threshold < (p or 0) and not request.has_text
            if len(segment.frames) and not is_noise:
                name = f"{sounds[i].path} from {segment.start:.1f} s"
                utterance = Utterance(name, request, segment.frames, states.get(k))
                speech.append((i, segment, p, utterance))
            else:
                blank = Output("", math.nan, math.nan, language=request.language, no_speech_prob=p)
                yield i, Segment(segment.start, segment.stop, [blank] * config.n_best)
        if states and config.no_speech_threshold and not speech:
            logger.warning(
                "none of %d segments has speech, by no_speech_threshold=%g, so they have no text; "
                "0 transcribes them all the same",
                len(parts),
                config.no_speech_threshold,
            )
        for row, outputs in self._decode([utterance for *_, utterance in speech], details):
            i, segment, p, (name, request, *_) = speech[row]
            warn_of_lacking(name, request.require, outputs[0].text, self.tokenizer)
            if details.word_times:
                words = self._words(segment, outputs)
                outputs = [replace(o, words=own) for o, own in zip(outputs, words, strict=True)]
            outputs = [replace(o, language=request.language, no_speech_prob=p) for o in outputs]
            result = Segment(segment.start, segment.stop, outputs)
            for each in split_at_times(result, times, self.tokenizer) if times else [result]:
                yield i, each

    def decode(
        self, frames: Sequence[Float[Tensor, "_ F"]], decoding: SearchConfig
    ) -> list[list[Output]]:
        """The n best texts of every utterance, in order."""
        utterances = [
            Utterance(f"utterance {i}", Request(number=i), each) for i, each in enumerate(frames)
        ]
        return in_order(self.with_decoding(decoding)._decode(utterances, PLAIN))

    def _decode(
        self, utterances: Sequence[Utterance], details: Details
    ) -> Iterator[tuple[int, list[Output]]]:
        """Yield the number of an utterance and its n best texts, as batches finish; see `_search`.

        Utterances whose best text loops, or does not end before the length bound, are searched once
        more with repetition blocked; a warning counts them, and names some.
        """
        config = self.decoding
        if config.glossary and config.glossary_bonus == math.inf:
            raise InputError(
                "only a source text tells which terms to require, but this is sound and "
                "glossary_bonus=inf; take a finite one"
            )
        bias = bias_of(dict(config.glossary).values(), config.glossary_bonus)
        frames: list[Source] = [each.frames for each in utterances]
        looped: list[int] = []

        def search(rows: list[int], decoding: SearchConfig) -> list[list[Hypothesis]]:
            batch = [utterances[row] for row in rows]
            requests = [replace(each.request, bias=bias) for each in batch]
            states = [each.states for each in batch if each.states is not None]
            return self._search([each.frames for each in batch], requests, decoding, states)

        def decode(rows: list[int]) -> list[list[Output]]:
            hypotheses = dict(zip(rows, search(rows, config), strict=True))
            again = [row for row in rows if loops(hypotheses[row][0])]
            if again and not config.no_repeat_ngram:
                looped.extend(again)
                blocked = search(again, replace(config, no_repeat_ngram=BLOCK))
                hypotheses.update(zip(again, blocked, strict=True))
            best = [outputs_of(self.tokenizer, hypotheses[row], config) for row in rows]
            return self._detailed([frames[row] for row in rows], best, details)

        lengths = source_lengths(self.engine, frames)
        yield from self._in_batches(lengths, config.batch_tokens, decode)
        if looped:
            logger.warning(
                "%d of %d utterances came out as a loop, or without an end, and were searched "
                "again with repetition blocked: %s",
                len(looped),
                len(utterances),
                ", ".join(utterances[row].name for row in sorted(looped)[:5])
                + ", ..." * (len(looped) > 5),
            )

    def words(self, sounds: Sequence[Audio], texts: Sequence[str | Output]) -> list[list[Word]]:
        """The words of given texts, with their times and confidence; sound is not cut.

        Raises:
            InputError: there are not as many texts as sounds, one of either cannot be used, or
                there is neither a CTC head nor alignment heads.
        """
        self._check_times()
        pairs = zip(self._whole(sounds), self._as_outputs(sounds, texts), strict=True)
        return [self._words(segment, [output])[0] for segment, output in pairs]

    @property
    def has_word_times(self) -> bool:
        """Whether the model gives the times of words."""
        return self.model.config.ctc or bool(self.decoding.alignment_heads)

    def _check_times(self) -> None:
        """Raise InputError where the model gives no times of words."""
        heads, config = self.decoding.alignment_heads, self.model.config
        if not self.has_word_times:
            raise InputError(
                "times of words come from a CTC head, or from the alignment_heads of an imported "
                "Whisper, but this model has neither; leave them out, or train with --model.ctc "
                "and --ctc-weight 0.5"
            )
        assert config.decoder is not None
        n_layers, n_heads = config.decoder.n_layers, config.n_heads
        if not config.ctc and any(not 0 <= i < n_layers or not 0 <= k < n_heads for i, k in heads):
            raise InputError(
                f"alignment_heads are layers below {n_layers} and heads below {n_heads}, but in "
                f"the run's config.json they are {heads}; change them"
            )

    def _words(self, segment: AudioSegment, outputs: list[Output]) -> list[list[Word]]:
        """The words of each output of a segment, with their times in the whole sound, by the CTC
        head, or else by alignment heads; in an ensemble, those of the first model."""
        features, config = self.feature_extractor.config, self.model.config
        start, stop, frames = segment
        if config.ctc:
            return ctc_words(self.engine, self.tokenizer, features, frames, outputs, start)
        # frames may go on after the sound, which is padded for a Whisper
        n = math.ceil(round(segment.seconds / features.hop, 6))
        n = max(1, n // config.frames.per_position)
        timed = []
        sources = [frames] * len(outputs)
        scores = self._token_scores(sources, outputs)
        alignments = self._align(sources, outputs)
        for output, score, alignment in zip(outputs, scores, alignments, strict=True):
            weights = alignment.weights
            heads = [weights[layer, head] for layer, head in self.decoding.alignment_heads]
            places = [*attention_starts(torch.stack(heads)[..., :n]), n]
            moments = [min(stop, start + place * self.position_seconds) for place in places]
            spans = word_spans(self.tokenizer, output.tokens)
            words = with_scores(self.tokenizer, output, score).words
            pairs = zip(words, spans, strict=True)
            timed.append(
                [replace(word, start=moments[a], stop=moments[b]) for word, (_, a, b) in pairs]
            )
        return timed
