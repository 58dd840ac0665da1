"""When the words of an output were said, and how sure CTC is of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import forced_align

from transduce.data.config import FeatureConfig, VectorConfig
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.tasks.search import Output
from transduce.tasks.states import Source, encoded
from transduce.tasks.words import Word, word_spans

LOUD = 0.8
"""How far below the loud frames a pause between two words begins: this share of the way to the quiet ones. Chosen on the
validation part of joined digits, where the median error of a boundary is 43 ms with 0.7, 16 with 0.8 and 8 with 0.9; but
there pauses are as quiet as the quietest place, and rooms are not."""


class CTCAligner:
    """The words of transcripts, by the CTC head of the model that wrote them.

    Raises:
        InputError: the model has no CTC head, or the tokenizer no padding to be its blank.
    """

    def __init__(self, model: Engine, tokenizer: Tokenizer, features: FeatureConfig | VectorConfig) -> None:
        if not model.config.ctc:
            raise InputError(
                "times of words come from a CTC head, but this model has none; leave them out, or train with --model.ctc "
                "and --ctc-weight 0.5"
            )
        (self.blank_id,) = tokenizer.required("pad_id")
        self.model, self.tokenizer, self.features = model, tokenizer, features

    def with_words(self, frames: Source, outputs: list[Output]) -> list[Output]:
        """The outputs for one sound, each with its words; their seconds begin with the sound."""
        words = self(frames, [output.tokens for output in outputs])
        return [replace(output, words=own) for output, own in zip(outputs, words, strict=True)]

    @torch.no_grad()
    def __call__(self, frames: Source, rows: Sequence[Sequence[int]]) -> list[list[Word]]:
        """The words of several transcripts of one sound, without their ends.

        Where there are fewer positions than CTC needs for the tokens, the confidence is 0 and there are no times.
        """
        assert isinstance(frames, Tensor)
        logits = self.model.ctc_logits(encoded(self.model, [frames]).states)[0].cpu()
        level = frames[:, 0] if isinstance(self.features, FeatureConfig) else None  # the 0th coefficient is loudness
        return [self._words(ids, logits, len(frames), level) for ids in rows]

    def _words(
        self, ids: Sequence[int], logits: Float[Tensor, "S V"], n_frames: int, level: Float[Tensor, " n"] | None
    ) -> list[Word]:
        spans, words = ctc_spans(logits, ids, blank_id=self.blank_id), word_spans(self.tokenizer, ids)
        if not spans or not words:
            return [Word(word, 0.0) for word, _, _ in words]
        shares, stack = (
            ctc_posteriors(logits, ids, spans, blank_id=self.blank_id).log(),
            self.model.config.frames.per_position,
        )
        spikes = [(spans[a][0] * stack, min(n_frames, spans[b - 1][1] * stack)) for _, a, b in words]
        return [
            Word(word, min(1.0, float(shares[a:b].mean().exp())), *(self._seconds(frame, n_frames) for frame in frames))
            for (word, a, b), frames in zip(words, boundaries(spikes, n_frames, level), strict=True)
        ]

    def _seconds(self, before: int, n_frames: int) -> float:
        """When the frame begins that has so many before it: in the middle between the windows on either side."""
        if before in (0, n_frames):
            return self.features.seconds(n_frames) if before else 0.0
        return before * self.features.hop + (self.features.seconds(1) - self.features.hop) / 2


def boundaries(
    spikes: Sequence[tuple[int, int]], n_frames: int, level: Float[Tensor, " n"] | None
) -> list[tuple[int, int]]:
    """The first frame of every word, and the one behind its last; a spike of CTC is but some place within its word.

    Between two spikes the pause is the stretch that lies furthest below the loudness LOUD in sum, or, if nothing does,
    the quietest frame; so are the pauses before the first and behind the last spike, which begin and end the sound.
    Where nobody knows how loud frames are, words meet in the middle between their spikes.
    """
    gaps = list(zip([0, *(b for _, b in spikes)], [*(a for a, _ in spikes), n_frames], strict=True))
    if level is None:
        pauses = [(0, 0), *((a + (b - a) // 2,) * 2 for a, b in gaps[1:-1]), (n_frames, n_frames)]
    else:
        ranked = level.double().sort().values
        quiet, loud = (float(ranked[int(share * (len(ranked) - 1))]) for share in (0.05, 0.95))
        below = loud - LOUD * (loud - quiet) - level.double()
        pauses = [_pause(below, a, b) for a, b in gaps]
    return [(before[1], after[0]) for before, after in pairwise(pauses)]


def _pause(below: Float[Tensor, " n"], start: int, stop: int) -> tuple[int, int]:
    """The stretch of start ... stop with the greatest sum; at an end of the sound it reaches that end."""
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


def ctc_spans(logits: Float[Tensor, "S V"], ids: Sequence[int], *, blank_id: int) -> list[tuple[int, int]]:
    """Where CTC's likeliest path for these tokens writes each: its first position, and the one behind its last.

    None at all where there are fewer positions than tokens and blanks between equal ones.
    """
    if not ids or len(logits) < len(ids) + sum(a == b for a, b in pairwise(ids)):
        return []
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    path, _ = forced_align(log_probs[None], torch.tensor([list(ids)], device=logits.device), blank=blank_id)
    spans: list[tuple[int, int]] = []
    before = blank_id
    for position, token in enumerate(path[0].tolist()):
        if token not in (blank_id, before):
            spans.append((position, position))
        if token != blank_id:
            spans[-1] = (spans[-1][0], position + 1)
        before = token
    return spans


def ctc_posteriors(
    logits: Float[Tensor, "S V"], ids: Sequence[int], spans: Sequence[tuple[int, int]], *, blank_id: int
) -> Float[Tensor, " T"]:
    """Each token's share in the probability of all that is not blank, summed from the middle between it and the token
    before it to the middle between it and the one behind it."""
    probs = logits.double().softmax(-1)
    middles = [(a[1] + b[0] + 1) // 2 for a, b in pairwise(spans)]
    parts = [probs[a:b].sum(dim=0) for a, b in zip([0, *middles], [*middles, len(probs)], strict=True)]
    return torch.stack([part[token] / (part.sum() - part[blank_id]) for part, token in zip(parts, ids, strict=True)])
