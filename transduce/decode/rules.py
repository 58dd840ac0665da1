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
    """The rules of a configuration; those of phrases need a vocabulary (`Forbidden`)."""
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
