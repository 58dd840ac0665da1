"""Rules for the next token: functions, as transformers' LogitsProcessor; add your own."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.decode.config import RulesConfig
from transduce.decode.scorer import Places, Scores


@runtime_checkable
class Rule(Protocol):
    """Set the scores of tokens to -inf that may not come next, in place or in a copy.

    Args:
        scores: of the next token of every hypothesis.
        tokens: the new tokens of every hypothesis, of equal number.
        sentences: numbers of the sentences, each of which has len(tokens) / len(sentences)
            neighbouring rows.
    """

    def __call__(
        self, scores: Scores, tokens: Int[Tensor, "N L"], sentences: Sequence[int]
    ) -> Scores: ...


def config_rules(config: RulesConfig, eos_id: int | None, device: torch.device) -> list[Rule]:
    """The rules of a configuration; those of phrases need a vocabulary (`forbidden`)."""
    rules: list[Rule] = []
    if config.suppress:
        rules.append(partial(suppress, ids_tensor(config.suppress, device)))
    if config.min_length and eos_id is not None:
        rules.append(partial(min_length, config.min_length, eos_id))
    if config.suppress_first:
        rules.append(partial(suppress_first, ids_tensor(config.suppress_first, device)))
    if config.no_repeat_ngram:
        rules.append(partial(no_repeat_ngram, config.no_repeat_ngram))
    return rules


def suppress(ids: Tensor, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
    """These tokens never come."""
    return scores.index_fill_(1, ids, -math.inf)


def suppress_first(ids: Tensor, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
    """These tokens do not come first."""
    return scores if tokens.size(1) else suppress(ids, scores, tokens, sentences)


def min_length(
    n: int, eos_id: int, scores: Tensor, tokens: Tensor, sentences: Sequence[int]
) -> Tensor:
    """The end comes behind n tokens or more."""
    if tokens.size(1) < n:
        scores[:, eos_id] = -math.inf
    return scores


def no_repeat_ngram(n: int, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
    """No n-gram comes twice.

    Source: Paulus et al. (2018), A deep reinforced model for abstractive summarization, section 2.5
    (there n = 3).
    """
    length = tokens.size(1)
    if length < n:
        return scores
    grams = tokens.unfold(1, n, 1)  # (N, L - n + 1, n)
    begun = (grams[:, :, :-1] == tokens[:, None, length - n + 1 :]).all(dim=-1)
    loss = torch.zeros_like(begun, dtype=scores.dtype).masked_fill_(begun, -math.inf)
    return scores.scatter_add_(1, grams[:, :, -1], loss)


def penalize_repetition(
    penalty: float, prompts: Tensor | None, scores: Tensor, tokens: Tensor, sentences: Sequence[int]
) -> Tensor:
    """Divide the logits of tokens that came before by the penalty, and multiply negative ones.

    Of an additive scorer these are log-probabilities.

    Source: Keskar et al. (2019), CTRL, section 4.1.
    """
    before = behind_prompt(prompts, tokens, sentences)
    old = scores.gather(1, before)
    return scores.scatter_(1, before, torch.where(old < 0, old * penalty, old / penalty))


def behind_prompt(
    prompts: Int[Tensor, "B P"] | None, tokens: Int[Tensor, "N L"], sentences: Sequence[int]
) -> Int[Tensor, "N M"]:
    """The new tokens of every row behind its prompt."""
    if prompts is None:
        return tokens
    rows = prompts[ids_tensor(sentences, tokens.device)]
    return torch.cat((rows.repeat_interleave(len(tokens) // len(sentences), dim=0), tokens), dim=1)


def ids_tensor(ids: Sequence[int], device: torch.device) -> Places:
    """Token ids or row numbers on the device of the search."""
    return torch.tensor(ids, dtype=torch.long, device=device)


def partition(flags: Sequence[bool]) -> tuple[list[int], list[int]]:
    """The places with a flag, and those without."""
    return [i for i, flag in enumerate(flags) if flag], [
        i for i, flag in enumerate(flags) if not flag
    ]


STEP = 0.02
"""Seconds from one token of time to the next."""
FIRST = 50
"""The last token of time that may come first: a text begins within a second."""


class Timestamps:
    """The rule that tokens of time come in pairs, around every segment of text, and never go back.

    Args:
        timestamp_begin_id: the token of 0 seconds. Tokens of later times follow it; the one before
            it stands for none.
        eos_id: the end; tokens of text have lower ids.

    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision,
    section 4.5; rules of its program.
    """

    def __init__(self, timestamp_begin_id: int, eos_id: int) -> None:
        self.timestamp_begin_id = timestamp_begin_id
        self.eos_id = eos_id

    def __call__(self, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        """Set to -inf, in place, the tokens that may not follow; see `Rule`."""
        zero = self.timestamp_begin_id
        scores[:, zero - 1] = -math.inf
        if tokens.size(1) == 0:
            scores[:, :zero] = -math.inf
            scores[:, zero + FIRST + 1 :] = -math.inf
            return scores
        times = tokens >= zero
        last = times[:, -1]
        paired = last & (
            times[:, -2] if tokens.size(1) > 1 else True
        )  # the one that begins a text counts as a pair
        ids = torch.arange(scores.size(1), device=scores.device)
        # behind a pair comes text; behind one time alone, its other one or the end
        forbidden = paired[:, None] & (ids >= zero) | (last & ~paired)[:, None] & (
            ids < self.eos_id
        )
        earliest = tokens.where(times, zero - 1).amax(dim=1) + (paired | ~last)
        forbidden |= (ids >= zero) & (ids < earliest[:, None])
        scores.masked_fill_(forbidden, -math.inf)
        # a time where all of them together are likelier than any text
        likelier = scores[:, zero:].logsumexp(dim=1) > scores[:, :zero].amax(dim=1)
        scores[:, :zero] = scores[:, :zero].masked_fill(likelier[:, None], -math.inf)
        return scores

    def segments(self, tokens: list[int]) -> list[tuple[float, float | None, list[int]]]:
        """Start, end (seconds; None: that of the sound) and tokens of each segment of text."""
        segments: list[tuple[float, float | None, list[int]]] = []
        start = 0.0
        text = list[int]()
        for token in tokens:
            if token < self.timestamp_begin_id:
                text.append(token)
                continue
            seconds = (token - self.timestamp_begin_id) * STEP
            if text:
                segments.append((start, seconds, text))
            start, text = seconds, []
        return [*segments, (start, None, text)] if text else segments
