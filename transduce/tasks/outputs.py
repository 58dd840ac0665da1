"""An output and its words: their tokens, their confidence and times, and the source words they were
written from."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import forced_align, merge_tokens

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.config import FeatureConfig, VectorConfig
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.tasks.base import Source, encoded

Span = tuple[str, int, int]
"""A word, its first token, and the one behind its last."""


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of the tokens of a given text."""

    tokens: list[str]
    """The T tokens, readable; the end is one of them where the model predicts it."""
    log_probs: Float[Tensor, " T"]
    """The natural log-probability of each, given the tokens before it, and the source if there is
    one."""

    @property
    def log_prob(self) -> float:
        """The natural log-probability of the text."""
        return float(self.log_probs.double().sum())


def joined(scores: Sequence[TokenScores | None]) -> TokenScores | None:
    """The scores of several texts as those of one; None without scores."""
    known = [each for each in scores if each]
    if not known:
        return None
    return TokenScores(
        [token for each in known for token in each.tokens],
        torch.cat([each.log_probs for each in known]),
    )


@dataclass(frozen=True)
class Word:
    """A word of an output, between white space."""

    text: str
    confidence: float
    """0 ... 1: the geometric mean of the probabilities of its tokens; with times, of their
    probabilities by CTC among all tokens but the blank."""
    start: float | None = None
    """Seconds from the beginning of the sound, where times were asked for."""
    stop: float | None = None

    def later(self, seconds: float) -> "Word":
        """The same word in a sound that begins this many seconds earlier."""
        if self.start is None or self.stop is None:
            return self
        return replace(self, start=self.start + seconds, stop=self.stop + seconds)


@dataclass(frozen=True)
class WordAlignment:
    """The source word that each word of an output was written from."""

    source: list[str]
    """The words of the source, as its tokens spell them."""
    target: list[str]
    pairs: list[tuple[int, int]]
    """The number of a source word and that of a target word, one pair for every target word, in
    their order."""
    layer: int | None = None
    """The decoder's layer, from 0, whose attention this is; None of a text in parts, which may have
    several."""

    def __str__(self) -> str:
        """As Pharaoh writes it: 0-0 1-2."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)

    def followed_by(self, other: "WordAlignment") -> "WordAlignment":
        """The alignment of this text and another one after it, as one."""
        pairs = [
            (source + len(self.source), target + len(self.target)) for source, target in other.pairs
        ]
        return WordAlignment(
            self.source + other.source, self.target + other.target, self.pairs + pairs
        )


@dataclass(frozen=True)
class Output:
    """One text that came out."""

    text: str
    log_prob: float = 0.0
    """Natural; nan where the search did not compute it."""
    score: float = 0.0
    """What ranked it."""
    tokens: list[int] = field(default_factory=list)
    finished: bool = True
    """False: cut at the bound on its length."""
    token_scores: TokenScores | None = None
    """Of the tokens and, if finished, the end, where they were asked for: those of attention,
    without CTC or a language model."""
    words: list[Word] = field(default_factory=list)
    """With their confidence, where scores of tokens or times of words were asked for."""
    alignment: WordAlignment | None = None
    """Which source words its words were written from, where that was asked for."""
    no_speech_prob: float | None = None
    """How likely it is that nobody speaks, where that was asked for and can be measured; see
    `sound.no_speech_probs`."""


def word_alignment(
    weights: Float[Tensor, "L T S"], source: Sequence[Span], target: Sequence[Span]
) -> WordAlignment:
    """Every target word with the source word of the greatest weight.

    Weights are summed over the tokens of a source word, and averaged over those of a target word;
    the end of the source has none. Of the layers, the one is taken whose greatest weights are the
    highest in the mean, as layers that align have few large weights.

    Args:
        weights: cross-attention of every layer, the mean of its heads.
        source, target: the words and their tokens, see `word_spans`.
    """
    words = [word for word, _, _ in source], [word for word, _, _ in target]
    if not source or not target:
        return WordAlignment(*words, [])
    by_target = torch.stack([weights[:, a:b].mean(dim=1) for _, a, b in target], dim=1)
    by_word = torch.stack([by_target[:, :, a:b].sum(dim=2) for _, a, b in source], dim=2)
    layer = int(by_word.amax(dim=2).mean(dim=1).argmax())
    pairs = [(place, n) for n, place in enumerate(by_word[layer].argmax(dim=1).tolist())]
    return WordAlignment(*words, pairs, layer)


def word_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Span]:
    """The words that these tokens spell, with their tokens.

    A token without a text, such as a space alone or an end, belongs to the word after it, if there
    is one. A token that spells the end of a word and the beginning of the next belongs to both.
    """
    spans: list[list[int]] = []
    before: list[str] = []
    first = 0
    for stop, text in enumerate(tokenizer.beginnings(ids), start=1):
        words = text.split()
        if not words or words == before:
            continue
        last = len(before) - 1
        if last >= 0 and len(spans) == len(before) < len(words) and words[last] != before[last]:
            spans[last][1] = stop  # it also ends the word before
        spans += [[first, stop] for _ in range(len(words) - len(spans))]
        spans[len(words) - 1][1] = stop
        before = words
        first = stop
    (text,) = tokenizer.decode([ids])
    return [(word, start, stop) for word, (start, stop) in zip(text.split(), spans, strict=False)]


def words_of_text(
    tokenizer: Tokenizer, ids: Sequence[int], log_probs: Float[Tensor, " T"]
) -> list[Word]:
    """The words of a text with their confidence, by the log-probabilities of its tokens."""
    return [
        Word(word, min(1.0, float(log_probs[start:stop].double().mean().exp())))
        for word, start, stop in word_spans(tokenizer, ids)
    ]


def with_scores(tokenizer: Tokenizer, output: Output, scores: TokenScores) -> Output:
    """The same output with the log-probabilities of its tokens and the confidence of its words."""
    return replace(
        output, token_scores=scores, words=words_of_text(tokenizer, output.tokens, scores.log_probs)
    )


LOUD = 0.8
"""Pauses are below this share of the way from loud frames down to quiet ones. Chosen on the
validation part of joined digits, where the median error of a boundary is 43 ms with 0.7, 16 with
0.8 and 8 with 0.9; but there pauses are as quiet as the quietest frame, and rooms are not."""

FrameSpan = tuple[int, int]
"""The first frame or position, and the one behind the last."""


class CTCAligner:
    """Aligns transcripts with their sound by the CTC head of the model that wrote them.

    Raises:
        InputError: the model has no CTC head, or the tokenizer no padding to be its blank.
    """

    def __init__(
        self, model: Engine, tokenizer: Tokenizer, features: FeatureConfig | VectorConfig
    ) -> None:
        if not model.config.ctc:
            raise InputError(
                "times of words come from a CTC head, but this model has none; leave them out, or "
                "train with --model.ctc "
                "and --ctc-weight 0.5"
            )
        (self.blank_id,) = tokenizer.required("pad_id")
        self.model = model
        self.tokenizer = tokenizer
        self.features = features

    def with_words(self, frames: Source, outputs: list[Output]) -> list[Output]:
        """The outputs of one sound with their words, in seconds from its beginning."""
        words = self(frames, [output.tokens for output in outputs])
        return [replace(output, words=each) for output, each in zip(outputs, words, strict=True)]

    @torch.no_grad()
    def __call__(self, frames: Source, transcripts: Sequence[Sequence[int]]) -> list[list[Word]]:
        """The words of several transcripts of one sound, without their ends.

        Where there are fewer positions than CTC needs for the tokens, the confidence is 0 and there
        are no times.
        """
        assert isinstance(frames, Tensor)
        logits = self.model.ctc_logits(encoded(self.model, [frames]).states)[0].cpu()
        # the 0th coefficient is loudness
        level = frames[:, 0] if isinstance(self.features, FeatureConfig) else None
        return [self._words(ids, logits, len(frames), level) for ids in transcripts]

    def _words(
        self,
        ids: Sequence[int],
        logits: Float[Tensor, "S V"],
        n_frames: int,
        level: Float[Tensor, " n"] | None,
    ) -> list[Word]:
        words = word_spans(self.tokenizer, ids)
        spans = ctc_spans(logits, ids, blank_id=self.blank_id)
        if not spans:
            return [Word(word, 0.0) for word, _, _ in words]
        log_probs = ctc_posteriors(logits, ids, spans, blank_id=self.blank_id).log()
        per_position = self.model.config.frames.per_position
        spikes = [
            (spans[a][0] * per_position, min(n_frames, spans[b - 1][1] * per_position))
            for _, a, b in words
        ]
        timed = []
        for (word, a, b), (start, stop) in zip(
            words, boundaries(spikes, n_frames, level), strict=True
        ):
            confidence = min(1.0, float(log_probs[a:b].mean().exp()))
            timed.append(
                Word(
                    word, confidence, self._seconds(start, n_frames), self._seconds(stop, n_frames)
                )
            )
        return timed

    def _seconds(self, frame: int, n_frames: int) -> float:
        """The beginning of a frame: the middle between its window and the one before."""
        if frame == 0:
            return 0.0
        if frame == n_frames:
            return self.features.seconds(n_frames)
        return frame * self.features.hop + (self.features.seconds(1) - self.features.hop) / 2


def boundaries(
    spikes: Sequence[FrameSpan], n_frames: int, level: Float[Tensor, " n"] | None
) -> list[FrameSpan]:
    """The frames of every word, given the spike of CTC, which is but some place within its word.

    Words end in the pauses between their spikes, and at the ends of the sound's own pauses. Where
    the loudness of frames is not known, words meet in the middle between their spikes.
    """
    if not spikes:
        return []
    gaps = list(pairwise([0, *(frame for spike in spikes for frame in spike), n_frames]))[::2]
    if level is None:
        middles = [(a + (b - a) // 2,) * 2 for a, b in gaps[1:-1]]
        pauses = [(0, 0), *middles, (n_frames, n_frames)]
    else:
        ranked = level.double().sort().values
        quiet, loud = (float(ranked[int(share * (len(ranked) - 1))]) for share in (0.05, 0.95))
        below = loud - LOUD * (loud - quiet) - level.double()
        pauses = [_pause(below, a, b) for a, b in gaps]
    return [(before[1], after[0]) for before, after in pairwise(pauses)]


def _pause(below: Float[Tensor, " n"], start: int, stop: int) -> FrameSpan:
    """The frames of start ... stop with the greatest sum, or the greatest one if none is above 0.

    At an end of the sound, the pause reaches that end.
    """
    total = torch.nn.functional.pad(below[start:stop].cumsum(0), (1, 0))
    if start == 0:
        return 0, int(total.argmax())
    if stop == len(below):
        return start + int(total.argmin()), stop
    gains = total - total.cummin(0).values
    if gains.max() <= 0:
        quietest = start + int(below[start:stop].argmax()) if stop > start else start
        return quietest, quietest
    last = int(gains.argmax())
    return start + int(total[: last + 1].argmin()), start + last


def ctc_spans(
    logits: Float[Tensor, "S V"], ids: Sequence[int], *, blank_id: int
) -> list[FrameSpan]:
    """The positions of each token in the most probable CTC path of a text.

    None at all where there are fewer positions than tokens and blanks between equal ones.
    """
    if not ids or len(logits) < len(ids) + sum(a == b for a, b in pairwise(ids)):
        return []
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    targets = torch.tensor([list(ids)], device=logits.device)
    (path,), (scores,) = forced_align(log_probs[None], targets, blank=blank_id)
    return [(span.start, span.end) for span in merge_tokens(path, scores, blank=blank_id)]


def ctc_posteriors(
    logits: Float[Tensor, "S V"], ids: Sequence[int], spans: Sequence[FrameSpan], *, blank_id: int
) -> Float[Tensor, " T"]:
    """The probability of each token among all but the blank, summed up to the middles between it
    and its neighbours."""
    probs = logits.double().softmax(-1)
    middles = [(before[1] + after[0] + 1) // 2 for before, after in pairwise(spans)]
    parts = [probs[a:b].sum(dim=0) for a, b in pairwise([0, *middles, len(probs)])]
    return torch.stack(
        [
            part[token] / (part.sum() - part[blank_id])
            for part, token in zip(parts, ids, strict=True)
        ]
    )
