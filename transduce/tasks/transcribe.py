"""Sound in, text out."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.batch import bucket, pad_frames
from transduce.data.speech.audio import read_audio, segments
from transduce.data.speech.features import FeatureExtractor
from transduce.data.speech.vectors import VectorReader
from transduce.data.text.sentencepiece_bpe import SentencePieceTokenizer
from transduce.decode.hypothesis import Hypothesis
from transduce.model.config import Frames
from transduce.model.transformer import Transformer
from transduce.tasks.search import Output, SearchConfig, outputs_of, search

logger = logging.getLogger("transduce")

LOOP = 24
"""So many tokens of nothing but repetition are a loop: more than anybody's "zero zero zero" has."""

BLOCK = 4
"""What looped is searched again without any n-gram of so many tokens coming twice."""


@dataclass(frozen=True)
class Sound:
    """A file that was read: start and stop in seconds, and the frames, of every segment; `error` tells why there is none.

    A segment of digital silence has no frames: in constant ones a model hears whatever it likes.
    """

    path: Path
    segments: list[tuple[float, float, Float[Tensor, "_ F"]]]
    error: str = ""

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.segments[-1][1] if self.segments else 0.0


@dataclass(frozen=True)
class Segment:
    """What was said between two moments, in seconds; n best outputs."""

    start: float
    stop: float
    outputs: list[Output]


@dataclass(frozen=True)
class Transcript:
    """A file as text; `error` tells why there is none."""

    path: Path
    segments: list[Segment]
    error: str = ""

    @property
    def text(self) -> str:
        """The best text of every segment, joined by spaces."""
        return " ".join(text for piece in self.segments if (text := piece.outputs[0].text.strip()))


class Transcriber:
    """A list of sound files in, as many texts out, in the same order."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: SentencePieceTokenizer,
        feature_extractor: FeatureExtractor | VectorReader,
        decoding: SearchConfig | None = None,
    ) -> None:
        self.model, self.tokenizer, self.feature_extractor = model, tokenizer, feature_extractor
        self.decoding = decoding or SearchConfig()
        """How to search where nothing else is said."""

    def __call__(self, paths: Sequence[Path | str], decoding: SearchConfig | None = None) -> list[str]:
        """What is said in every file.

        Raises:
            ValueError: one of them cannot be used; `transcribe` goes on with the others.
        """
        transcripts = self.transcribe(paths, decoding)
        for transcript in transcripts:
            if transcript.error:
                raise ValueError(transcript.error)
        return [transcript.text for transcript in transcripts]

    def transcribe(
        self,
        paths: Sequence[Path | str],
        decoding: SearchConfig | None = None,
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[Transcript]:
        """Every file with its segments; a file that cannot be used has an error instead.

        Args:
            progress: called with the number of segments each batch has finished, and of all there are.
        """
        if isinstance(paths, str | Path):
            raise ValueError(f"transcribe takes a list of files, but got one name; use [{str(paths)!r}]")
        decoding = decoding or self.decoding
        return self.transcripts(list(self.read(paths, decoding.max_seconds)), decoding, progress=progress)

    def read(self, paths: Sequence[Path | str], max_seconds: float) -> Iterator[Sound]:
        """One file after the other, each when it is asked for, cut into segments of at most `max_seconds`.

        A file of nothing but digital silence is named by a warning.
        """
        for path in map(Path, paths):
            try:
                sound = Sound(path, self._frames(path, max_seconds))
            except ValueError as error:
                sound = Sound(path, [], str(error))
            if sound.segments and not any(len(frames) for _, _, frames in sound.segments):
                told = "%s is silent, every sample being 0, so its text is blank; if its channels cancel out, take one"
                logger.warning(told, path)
            yield sound

    def transcripts(
        self, sounds: Sequence[Sound], decoding: SearchConfig, *, progress: Callable[[int, int], object] | None = None
    ) -> list[Transcript]:
        """What `transcribe` makes of files that were read; the text of a silent segment is blank."""
        heard = [(sound.path, start, frames) for sound in sounds for start, _, frames in sound.segments if len(frames)]
        names = [f"{path} from {start:.1f} s" for path, start, _ in heard]
        tell = (lambda n: progress(n, len(heard))) if progress else None
        outputs = iter(self.decode([frames for _, _, frames in heard], decoding, names=names, progress=tell))
        blank = [Output("")] * decoding.n_best
        transcripts = []
        for sound in sounds:
            found = [Segment(start, stop, next(outputs) if len(f) else blank) for start, stop, f in sound.segments]
            transcripts.append(Transcript(sound.path, found, sound.error))
        return transcripts

    def decode(
        self,
        frames: Sequence[Float[Tensor, "_ F"]],
        decoding: SearchConfig,
        *,
        names: Sequence[str] = (),
        progress: Callable[[int], object] | None = None,
    ) -> list[list[Output]]:
        """The n best texts of every utterance, in order.

        What loops, or does not end before the length bound, is searched once more with repetition blocked; a warning
        tells how many, and which.

        Args:
            names: of the utterances, for the warning.
        """
        outputs: list[list[Output]] = [[] for _ in frames]
        looped: list[int] = []
        if not frames:
            return outputs
        encoder = self.model.config.encoder
        assert encoder is not None and isinstance(encoder.input, Frames)
        lengths = np.array([len(each) for each in frames])
        for batch in reversed(bucket(lengths[:, None], decoding.batch_tokens * encoder.input.stack)):
            rows = batch.tolist()
            found = self._search([frames[row] for row in rows], decoding)
            looping = [i for i, hypotheses in enumerate(found) if not decoding.no_repeat_ngram and loops(hypotheses[0])]
            if looping:
                again = self._search([frames[rows[i]] for i in looping], replace(decoding, no_repeat_ngram=BLOCK))
                for i, hypotheses in zip(looping, again, strict=True):
                    found[i] = hypotheses
                    looped.append(rows[i])
            for row, hypotheses in zip(rows, found, strict=True):
                outputs[row] = outputs_of(self.tokenizer, hypotheses, decoding.n_best)
            if progress:
                progress(len(rows))
        if looped:
            which = ", ".join([names[i] for i in sorted(looped)][:5]) if names else ""
            logger.warning(
                "%d of %d utterances came out as a loop, or without an end, and were searched again with repetition "
                "blocked%s%s",
                len(looped),
                len(frames),
                ": " * bool(which) + which,
                ", ..." * (len(looped) > 5),
            )
        return outputs

    def _search(self, frames: list[Float[Tensor, "_ F"]], decoding: SearchConfig) -> list[list[Hypothesis]]:
        source, lengths = pad_frames(frames)
        return search(self.model, source.to(self.model.device, self.dtype), lengths, decoding)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.model.parameters()).dtype

    def _frames(self, path: Path, longest: float) -> list[tuple[float, float, Float[Tensor, "S F"]]]:
        """Start and stop in seconds, and the frames, of every segment of a file; no frames of digital silence.

        Raises:
            ValueError: the file cannot be used; the message names it.
        """
        if isinstance(self.feature_extractor, VectorReader):
            vectors = self.feature_extractor(path)
            found = [(0.0, len(vectors) * self.feature_extractor.config.hop, vectors)]
        else:
            rate = self.feature_extractor.config.sample_rate
            waveform = read_audio(path, rate)
            try:
                found = [
                    (start / rate, stop / rate, _heard(self.feature_extractor, waveform[start:stop]))
                    for start, stop in segments(waveform, rate, longest)
                ]
            except ValueError as error:
                raise ValueError(f"{path} cannot be transcribed: {error}") from error
        self._check_length(path, max(len(vectors) for _, _, vectors in found))
        return found

    def _check_length(self, path: Path, n_frames: int) -> None:
        config = self.model.config
        assert config.encoder is not None and isinstance(config.encoder.input, Frames)
        n_positions = -(-n_frames // config.encoder.input.stack)
        if config.positions == "learned" and n_positions > config.max_positions:
            raise ValueError(
                f"{path} cannot be transcribed: the model's learned positions end at {config.max_positions}, but "
                f"{n_frames} frames need {n_positions}; cut it into shorter segments (max_seconds)"
            )


def _heard(feature_extractor: FeatureExtractor, waveform: Float[Tensor, " n"]) -> Float[Tensor, "S F"]:
    frames = feature_extractor(waveform)
    return frames if waveform.any() else frames[:0]


def loops(hypothesis: Hypothesis) -> bool:
    """Did the search not end by itself, or does a span come three times in a row or more, LOOP tokens in all?"""
    tokens = hypothesis.tokens
    return not hypothesis.finished or any(
        _longest_repetition(tokens, period) >= max(3 * period, LOOP) for period in range(1, len(tokens) // 3 + 1)
    )


def _longest_repetition(tokens: list[int], period: int) -> int:
    """The most tokens in a row of which each is the one `period` before it; 0 where there is none."""
    longest = run = 0
    for before, token in zip(tokens, tokens[period:], strict=False):
        run = run + 1 if token == before else 0
        longest = max(longest, run)
    return longest + period if longest else 0
