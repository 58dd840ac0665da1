"""Sound in, text out."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.batch import pad_frames
from transduce.data.speech.features import FeatureExtractor, VectorReader
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.hypothesis import Hypothesis, loops
from transduce.decode.phrases import Prefix
from transduce.errors import InputError
from transduce.model.transformer import Transformer
from transduce.tasks.config import SearchConfig
from transduce.tasks.inputs import check_list
from transduce.tasks.no_speech import no_speech_probs, warn_if_unmeasurable
from transduce.tasks.phrases import per_line, prefix as begin, required, warn_of_lacking
from transduce.tasks.risk import chosen
from transduce.tasks.search import Output, in_batches, last_position, outputs_of, search_sources, timestamps
from transduce.tasks.segmenting import SegmentedAudio, group_by_duration, segment_audio
from transduce.tasks.seq2seq import Seq2SeqTask
from transduce.tasks.states import Source
from transduce.tasks.transcript import Audio, Details, Segment, Sound, Transcript, audio_name, cut
from transduce.tasks.word_times import CTCAligner
from transduce.tasks.words import Word

logger = logging.getLogger("transduce")

BLOCK = 4
"""What looped is searched again without any n-gram of so many tokens coming twice."""
AT_ONCE = 4
"""Segments that are searched together where somebody waits for the first."""

STRETCH = 60.0
"""Seconds of one sound whose features are made at a time; the segment that completes them may be longer."""
CHUNK = 600.0
"""Seconds of sound that are searched at a time, in batches of similar length; so many features are in memory."""

WHOLE = 1e9
"""Seconds that no recording has, so that it stays in one piece."""


class Transcriber(Seq2SeqTask[Audio]):
    """A list of sounds in, as many texts out, in the same order: files, or samples with their rate."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        feature_extractor: FeatureExtractor | VectorReader,
        decoding: SearchConfig | None = None,
        lexicon: Sequence[str] = (),
    ) -> None:
        super().__init__(model, tokenizer, decoding)
        self.feature_extractor, self.lexicon = feature_extractor, tuple(lexicon)

    def __call__(self, sounds: Sequence[Audio], decoding: SearchConfig | None = None, **settings: Any) -> list[str]:
        """What is said in every sound; see `transcribe`.

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
            settings: fields of SearchConfig, such as n_best=3; the others stay as they are in `decoding`.
            prefix, require: see `read`.
            progress: called with 1 for every segment that is done, and the number of all segments of the sounds that were
                read so far.
            token_scores: give every output the log-probabilities of its tokens.
            word_times: give every output its words, with their times and confidence, by CTC (of the first model).

        Raises:
            InputError: times of words are asked for, but the model has no CTC head.
        """
        check_list(sounds, "transcribe takes a list of files")
        config, details = (decoding or self.decoding).changed(**settings), Details(token_scores, word_times)
        found = self.read(sounds, config, prefix=prefix, require=require)
        return self.transcripts(found, config, progress=progress, details=details)

    def read(
        self,
        sounds: Sequence[Audio],
        decoding: SearchConfig,
        *,
        prefix: Sequence[str] | None = None,
        require: Sequence[Sequence[str]] | None = None,
        first_sound: int = 0,
    ) -> Iterator[Sound]:
        """One sound after the other, each when it is asked for, cut into segments of at most `decoding.max_seconds`.

        A long sound comes in several stretches of about STRETCH seconds, so that memory does not grow with its length.
        Its file is read twice, for the places to cut and for the features; what ceases to be readable in between ends
        with a stretch that has an error.

        A sound of nothing but digital silence is named by a warning, and so is what is shorter than half of
        `min_seconds`. If max_seconds is above the run's own, a warning says that the run knows no such segments.

        Args:
            prefix: what each text begins with, "" for nothing; its last word may go on, unless a space ends it.
            require: the phrases that each text must hold, [] for none: of sound in one segment, as nobody knows in which
                of several they are said. A wider beam finds better places for them.
            first_sound: the number of sounds[0], where these are a part of all sounds.
        """
        begins = per_line(prefix, len(sounds), "prefix", "")
        holds = per_line(require, len(sounds), "require", [])
        if self.decoding.max_seconds < decoding.max_seconds < WHOLE:
            logger.warning(
                "segments of up to %g s are longer than what the run was trained on, %g s with some reserve; expect "
                "errors, or leave out max_seconds",
                decoding.max_seconds,
                self.decoding.max_seconds,
            )
        if decoding.no_speech_threshold:
            warn_if_unmeasurable(self.engine, self.tokenizer)
        for i, audio in enumerate(sounds):
            path, done = audio_name(audio, f"sound {i + 1}"), 0
            try:
                found = segment_audio(audio, path, self.feature_extractor, decoding)
                self._check_positions(path, max(found.n_frames))
                told = self._prefix(path, begins[i], holds[i], len(found.n_frames))
                for stretch in group_by_duration(found.segments, STRETCH, lambda segment: segment[1] - segment[0]):
                    if not done:
                        _warn(path, found, decoding)
                    sound = Sound(path, stretch, "", first_sound + i, done, len(found.n_frames), told, holds[i])
                    yield sound
                    told, done = sound.from_segment(len(stretch), 0).prefix, done + len(stretch)
            except InputError as error:
                yield Sound(path, [], str(error), first_sound + i, done)

    def transcripts(
        self,
        sounds: Iterable[Sound],
        decoding: SearchConfig,
        *,
        progress: Callable[[int, int], object] | None = None,
        details: Details | None = None,
    ) -> list[Transcript]:
        """What `transcribe` makes of sounds that are read, each in one stretch or several."""
        found: dict[int, Transcript] = {}
        n_segments = 0
        for chunk in group_by_duration(sounds, CHUNK, lambda sound: sound.seconds):
            for sound in chunk:
                before = found.setdefault(sound.number, Transcript(sound.path, []))
                if sound.error:
                    found[sound.number] = replace(before, segments=[], error=sound.error)
                n_segments += 0 if sound.first_segment else sound.n_segments
            for i, segment in self.stream(chunk, decoding, details=details):
                if not found[chunk[i].number].error:
                    found[chunk[i].number].segments.append(segment)
                if progress:
                    progress(1, n_segments)
        for transcript in found.values():
            transcript.segments.sort(key=lambda segment: segment.start)
        return list(found.values())

    def stream(
        self,
        sounds: Sequence[Sound],
        decoding: SearchConfig | None = None,
        *,
        details: Details | None = None,
        **settings: Any,
    ) -> Iterator[tuple[int, Segment]]:
        """The index of a stretch of sound that was read and a segment of it, as batches finish.

        Segments without speech, whose text is blank, come first, then long ones. A sound with an error has no segment.

        Raises:
            InputError: with timestamps, more is asked for than one text for each of them.
        """
        config = (decoding or self.decoding).changed(**settings)
        times = timestamps(self.tokenizer, config)
        if times and (config.n_best > 1 or (details and (details.token_scores or details.word_times))):
            raise InputError("timestamps cut an output into segments; leave out n_best, token_scores and word_times")
        parts = [(i, sound.from_segment(k, 1)) for i, sound in enumerate(sounds) for k in range(len(sound.segments))]
        probs: Sequence[float | None] = [None] * len(parts)
        if config.no_speech_threshold or (details and details.no_speech):
            frames = [part.segments[0][2] for _, part in parts]
            probs = no_speech_probs(self.engine, self.tokenizer, frames, config.batch_tokens)
        heard: list[tuple[int, Sound, float | None]] = []
        for (i, part), p in zip(parts, probs, strict=True):
            ((start, stop, own),) = part.segments
            noise = 0 < config.no_speech_threshold < (p or 0) and not (part.prefix or part.require)
            if len(own) and not noise:
                heard.append((i, part, p))
            else:
                yield i, Segment(start, stop, [Output("", no_speech_prob=p)] * config.n_best)
        names = [f"{one.path} from {one.segments[0][0]:.1f} s" for _, one, _ in heard]
        for row, outputs in self._decode([one for _, one, _ in heard], config, names, details):
            i, one, p = heard[row]
            ((start, stop, _),) = one.segments
            warn_of_lacking(names[row], one.require, outputs[0].text)
            outputs = [replace(o, words=[w.later(start) for w in o.words], no_speech_prob=p) for o in outputs]
            whole = Segment(start, stop, outputs)
            yield from ((i, segment) for segment in (cut(whole, times, self.tokenizer) if times else [whole]))

    def in_order(
        self, sound: Sound, decoding: SearchConfig | None = None, *, details: Details | None = None, **settings: Any
    ) -> Iterator[Segment]:
        """The segments of a stretch of sound that was read, each as soon as it is there, in the order of hearing.

        A few that follow each other are searched together.
        """
        for first in range(0, len(sound.segments), AT_ONCE):
            some = sound.from_segment(first, AT_ONCE)
            found = [segment for _, segment in self.stream([some], decoding, details=details, **settings)]
            yield from sorted(found, key=lambda segment: segment.start)

    @torch.no_grad()
    def words(self, sounds: Sequence[Audio], texts: Sequence[str]) -> list[list[Word]]:
        """When each word of a given text is said in its sound, which is not cut, and how sure CTC is of it.

        Raises:
            InputError: there are not as many texts as sounds, one of either cannot be used, or there is no CTC head.
        """
        sources, targets = self._checked(sounds), self._targets(sounds, texts)
        words = self._words()
        return [words(source, [ids[:-1]])[0] for source, ids in zip(sources, targets, strict=True)]

    def _words(self) -> CTCAligner:
        """What finds words in sound: the CTC head of the model; in an ensemble, that of the first."""
        return CTCAligner(self.engine, self.tokenizer, self.feature_extractor.config)

    def sources(self, inputs: Sequence[Audio]) -> list[Source]:
        """The frames of every sound, which is not cut.

        Raises:
            InputError: one of them cannot be used, or is silent.
        """
        check_list(inputs, "encode, score and align take a list of sounds")
        found: list[Source] = []
        for sound in self.read(inputs, replace(self.decoding, max_seconds=WHOLE)):
            if sound.error:
                raise InputError(sound.error)
            ((_, _, frames),) = sound.segments
            if not len(frames):
                raise InputError(f"a sound must have something to hear, but {sound.path} is silent; leave it out")
            found.append(frames)
        return found

    @property
    def position_seconds(self) -> float:
        """The time from one source position to the next."""
        return self.feature_extractor.config.hop * self.model.config.frames.per_position

    def decode(self, frames: Sequence[Float[Tensor, "_ F"]], decoding: SearchConfig) -> list[list[Output]]:
        """The n best texts of every utterance, in order; what loops is searched again, as a warning tells."""
        heard = [Sound(f"utterance {i}", [(0.0, 0.0, each)], number=i) for i, each in enumerate(frames)]
        found = dict(self._decode(heard, decoding, [str(one.path) for one in heard]))
        return [found[row] for row in range(len(frames))]

    def _decode(
        self, heard: Sequence[Sound], config: SearchConfig, names: Sequence[str], details: Details | None = None
    ) -> Iterator[tuple[int, list[Output]]]:
        """The number of a sound of one segment and its n best texts, as batches finish.

        What loops, or does not end before the length bound, is searched once more with repetition blocked; a warning
        tells how many, and names some.
        """
        looped, frames = list[int](), [each for one in heard for *_, each in one.segments]
        words = self._words() if details and details.word_times else None

        def search(rows: list[int]) -> list[list[Output]]:
            found = self._search([heard[row] for row in rows], config)
            again = [i for i, hypotheses in enumerate(found) if not config.no_repeat_ngram and loops(hypotheses[0])]
            if again:
                looped.extend(rows[i] for i in again)
                blocked = self._search([heard[rows[i]] for i in again], replace(config, no_repeat_ngram=BLOCK))
                for i, hypotheses in zip(again, blocked, strict=True):
                    found[i] = hypotheses
            candidates = (outputs_of(self.tokenizer, hypotheses, config.n_candidates) for hypotheses in found)
            outputs = [chosen(each, config) for each in candidates]
            own = [frames[row] for row in rows]
            if details and details.token_scores:
                outputs = self.with_token_scores(own, outputs, config)
            return [words.added(*pair) for pair in zip(own, outputs, strict=True)] if words else outputs

        lengths = [self.model.config.frames.out_lengths(len(each)) for each in frames]
        yield from in_batches(lengths, config.batch_tokens, search)
        if looped:
            which = ", ".join(names[i] for i in sorted(looped)[:5]) + ", ..." * (len(looped) > 5)
            told = "came out as a loop, or without an end, and were searched again with repetition blocked"
            logger.warning("%d of %d utterances %s: %s", len(looped), len(frames), told, which)

    def _search(self, heard: list[Sound], config: SearchConfig) -> list[list[Hypothesis]]:
        source, lengths = pad_frames([frames for one in heard for *_, frames in one.segments])
        source = source.to(self.engine.dtype)
        told: dict[str, Any] = {"prefixes": [one.prefix for one in heard], "lm": self.lm, "words": self.lexicon}
        told["required"] = required(self.tokenizer, [one.require for one in heard])
        told["rngs"] = [rng for one in heard for rng in config.rngs(one.number, one.first_segment)]
        return search_sources(self.engines, source, lengths, config, self.tokenizer, **told)

    def _prefix(self, path: Path | str, prefix: str, phrases: Sequence[str], n_segments: int) -> Prefix | None:
        """What begins the text of a sound; raise InputError where that, or what it shall hold, cannot be."""
        if phrases and n_segments > 1:
            raise InputError(
                f"required phrases are for sound in one segment, but {path} has {n_segments}; cut it where you know what "
                "is said, or raise max_seconds"
            )
        try:
            required(self.tokenizer, [phrases])
            return begin(self.tokenizer, prefix)
        except InputError as error:
            raise InputError(f"{path} cannot be transcribed: {error}") from error

    def _check_positions(self, path: Path | str, n_frames: int) -> None:
        n_positions = max(model.config.frames.out_lengths(n_frames) for model in self.engines)
        limit = last_position(*self.engines, source=True)
        if n_positions > limit:
            raise InputError(
                f"{path} cannot be transcribed: the model's learned positions end at {limit}, but "
                f"{n_frames} frames need {n_positions}; cut it into shorter segments (max_seconds)"
            )


def _warn(path: Path | str, found: SegmentedAudio, decoding: SearchConfig) -> None:
    """Name sound in which there is nothing to hear, or less than what the run knows."""
    if found.silent:
        told = "%s is silent, every sample being 0, so its text is blank; if its channels cancel out, take one"
        logger.warning(told, path)
    elif found.seconds < decoding.min_seconds / 2:
        told = "%s lasts %.2f s, but the shortest recording that the run was trained on %.2f; expect errors"
        logger.warning(told, path, found.seconds, decoding.min_seconds)
