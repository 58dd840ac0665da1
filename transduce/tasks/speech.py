"""Speech in sound: the times of its words, the no-speech probability, and its language."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.config import FeatureConfig, VectorConfig
from transduce.data.speech_batches import positions_needed
from transduce.decode.scorer import at_least_float32
from transduce.engine.select import Engine
from transduce.model.transformer import Memory
from transduce.tasks.base import encoded
from transduce.tasks.outputs import Output, Word, word_spans

LOUD = 0.8
"""Pauses are below this share of the way from loud frames down to quiet ones. Chosen on the
validation part of joined digits, where the median error of a boundary is 43 ms with 0.7, 16 with
0.8 and 8 with 0.9; but there pauses are as quiet as the quietest frame, and rooms are not."""

FrameSpan = tuple[int, int]
"""The first frame or position, and the one after the last."""


@torch.no_grad()
def ctc_words(
    model: Engine,
    tokenizer: Tokenizer,
    features: FeatureConfig | VectorConfig,
    frames: Float[Tensor, "_ F"],
    outputs: Sequence[Output],
    start: float,
) -> list[list[Word]]:
    """The words of several outputs of one sound that begins at `start` seconds, with their times,
    by the CTC head of the model that wrote them.

    If there are fewer positions than CTC needs for the tokens, the confidence is 0 and there are no
    times.

    Raises:
        InputError: the tokenizer has no padding, which is the blank.
    """
    (blank_id,) = tokenizer.required("pad_id")
    logits = model.ctc_logits(encoded(model, [frames]).states)[0].cpu()
    # the 0th coefficient is loudness
    level = frames[:, 0] if isinstance(features, FeatureConfig) else None
    n_frames, per_position = len(frames), model.config.frames.per_position
    timed = []
    for ids in (output.tokens for output in outputs):
        words = word_spans(tokenizer, ids)
        spans = ctc_spans(logits, ids, blank_id=blank_id)
        if not spans:
            timed.append([Word(word, 0.0) for word, _, _ in words])
            continue
        log_probs = ctc_posteriors(logits, ids, spans, blank_id=blank_id).log()
        spikes = [
            (spans[a][0] * per_position, min(n_frames, spans[b - 1][1] * per_position))
            for _, a, b in words
        ]
        moments = [
            [start + _seconds(frame, n_frames, features) for frame in span]
            for span in boundaries(spikes, n_frames, level)
        ]
        timed.append(
            [
                Word(word, min(1.0, float(log_probs[a:b].mean().exp())), *span)
                for (word, a, b), span in zip(words, moments, strict=True)
            ]
        )
    return timed


def _seconds(frame: int, n_frames: int, features: FeatureConfig | VectorConfig) -> float:
    """The beginning of a frame: the middle between its window and the one before."""
    if frame == 0:
        return 0.0
    if frame == n_frames:
        return features.seconds(n_frames)
    return (features.seconds(frame) + features.seconds(frame + 1) - features.seconds(1)) / 2


def boundaries(
    spikes: Sequence[FrameSpan], n_frames: int, level: Float[Tensor, " n"] | None
) -> list[FrameSpan]:
    """The frames of every word, given its CTC spike, which only lies somewhere within the word.

    Words end at the pauses between their spikes, and at the pauses at both ends of the sound. If
    the loudness of frames is not known, words meet in the middle between their spikes.
    """
    if not spikes:
        return []
    gaps = list(pairwise([0, *(frame for spike in spikes for frame in spike), n_frames]))[::2]
    if level is None:
        middles = [(a + (b - a) // 2,) * 2 for a, b in gaps[1:-1]]
        pauses = [(0, 0), *middles, (n_frames, n_frames)]
    else:
        level = level.double()
        quiet, loud = level.quantile(level.new_tensor((0.05, 0.95)), interpolation="lower")
        below = loud - LOUD * (loud - quiet) - level
        pauses = [_pause(below, a, b) for a, b in gaps]
    return [(before[1], after[0]) for before, after in pairwise(pauses)]


def _pause(below: Float[Tensor, " n"], start: int, stop: int) -> FrameSpan:
    """The span in start ... stop with the greatest sum; if no frame is above 0, an empty span at
    the greatest one.

    At an end of the sound, the pause reaches that end.
    """
    total = F.pad(below[start:stop].cumsum(0), (1, 0))
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

    Empty if there are fewer positions than tokens and blanks between equal tokens.
    """
    if not ids or len(logits) < positions_needed(ids):
        return []
    from torchaudio.functional import forced_align, merge_tokens

    log_probs = at_least_float32(logits).log_softmax(-1)
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


SMOOTHED = 7
"""Width of the median filter over attention, in positions, as in openai-whisper."""


def attention_starts(weights: Float[Tensor, "H T S"]) -> list[int]:
    """The position at which each of T tokens begins, by dynamic time warping over attention: the
    cheapest path through tokens and positions that skips none.

    Args:
        weights: cross-attention of the heads that follow the sound.
    Source: openai-whisper, timing.py.
    """
    std, mean = torch.std_mean(weights.double(), dim=1, keepdim=True, correction=0)
    shares = ((weights - mean) / std).nan_to_num()
    if shares.size(2) > SMOOTHED // 2:
        shares = F.pad(shares, (SMOOTHED // 2,) * 2, mode="reflect")
        shares = shares.unfold(2, SMOOTHED, 1).median(dim=-1).values
    costs = -shares.mean(dim=0).cpu().numpy()
    n_tokens, n_positions = costs.shape
    totals = np.full((n_tokens + 1, n_positions + 1), np.inf)
    totals[0, 0] = 0
    for row, cost in enumerate(costs):
        # a path comes from the token before, or goes on to the right
        before = np.minimum(totals[row, :-1], totals[row, 1:])
        cumulative = cost.cumsum()
        totals[row + 1, 1:] = cumulative + np.minimum.accumulate(before - cumulative + cost)
    starts = [0] * n_tokens
    token, position = n_tokens, n_positions
    while token > 0:
        starts[token - 1] = position - 1
        corner = totals[token - 1, position - 1]
        above = totals[token - 1, position]
        left = totals[token, position - 1]
        token -= int(min(corner, above) < left)
        position -= int(min(corner, left) <= above)
    return starts


def detects_speech(model: Engine, tokenizer: Tokenizer) -> bool:
    """Whether the model has a no-speech token, as Whisper has, or a CTC head."""
    return tokenizer.no_speech_id is not None or model.config.ctc


@torch.no_grad()
def no_speech_prob(
    model: Engine, tokenizer: Tokenizer, states: Float[Tensor, "S D"] | None
) -> float | None:
    """The no-speech probability of a sound; 1 without frames, None if the model has neither a CTC
    head nor a no-speech token.

    For Whisper it is the probability of the no-speech token after the first token of the prompt.
    For other models it is 1 - q^(1/n), where n tokens are the greedy output of the CTC head, and q
    is the CTC probability of these tokens over all alignments; 1 if the greedy path is all blank.

    Args:
        states: the encoder's states; None without frames.
    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision,
    section 4.5.
    """
    if states is None:
        return 1.0
    if not detects_speech(model, tokenizer):
        return None
    batch = states[None].to(model.device)
    if tokenizer.no_speech_id is not None:
        return float(_first_logits(model, tokenizer, batch).softmax(-1)[tokenizer.no_speech_id])
    (blank_id,) = tokenizer.required("pad_id")
    log_probs = at_least_float32(model.ctc_logits(batch)[0]).cpu().log_softmax(-1)
    ids = log_probs.argmax(-1).unique_consecutive()
    ids = ids[ids != blank_id]
    if not len(ids):
        return 1.0
    sizes = torch.tensor(len(log_probs)), torch.tensor(len(ids))
    log_prob = -F.ctc_loss(log_probs, ids, *sizes, blank=blank_id, reduction="sum")
    return -float((log_prob / len(ids)).expm1())


def _first_logits(
    model: Engine, tokenizer: Tokenizer, states: Float[Tensor, "1 S D"]
) -> Float[Tensor, " V"]:
    """The logits after the first token, by which a Whisper predicts the language or no speech."""
    bos = torch.tensor([tokenizer.required("bos_id")], device=model.device)
    decoded = model.decoder_states(bos, memory=Memory(states, None))
    return at_least_float32(model.project(decoded))[0, 0]


@torch.no_grad()
def detect_language(model: Engine, tokenizer: Tokenizer, frames: Float[Tensor, "_ F"]) -> str:
    """The most probable language of speech, by the language tokens of a Whisper.

    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision,
    section 2.3.
    """
    logits = _first_logits(model, tokenizer, encoded(model, [frames]).states)
    return max(tokenizer.languages, key=lambda name: logits[tokenizer.languages[name]])
