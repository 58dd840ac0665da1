"""Rules for which tokens may come next, and the constraints of a search, which combine them.

Rules are functions, like transformers' LogitsProcessor; you can add your own.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.config import RulesConfig
from transduce.decode.phrases import Prefix
from transduce.decode.scorer import (
    ModelScorer,
    Prompts,
    Scorer,
    Scores,
    at_least_float32,
    ids_tensor,
    log_sum_exp,
)
from transduce.errors import InputError

Rule = Callable[[Scores, Int[Tensor, "N L"], Sequence[int]], Scores]
"""Changes the scores of tokens, in place or in a copy: to -inf if a token may not come next, or by
some nats. Its arguments:

- scores of the next token of every hypothesis;
- the new tokens of every hypothesis, of equal number;
- numbers of the sentences, each of which has len(tokens) / len(sentences) consecutive rows.
"""


def config_rules(config: RulesConfig, eos_id: int | None, device: torch.device) -> Iterator[Rule]:
    """Yield the rules of a configuration, except those for phrases, which need a vocabulary (see
    `text_rules.forbidden`)."""
    if config.biased_ids:
        bias = torch.tensor([*config.biased_ids.values()], device=device)
        yield partial(add_bias, ids_tensor([*config.biased_ids], device), bias)
    if config.min_length and eos_id is not None:
        yield partial(not_before, config.min_length, ids_tensor([eos_id], device))
    if config.suppress_first:
        yield partial(not_before, 1, ids_tensor(config.suppress_first, device))
    if config.no_repeat_ngram:
        yield partial(no_repeat_ngram, config.no_repeat_ngram)


def add_bias(
    ids: Tensor, bias: Tensor, scores: Tensor, tokens: Tensor, sentences: Sequence[int]
) -> Tensor:
    """Add a bias in nats to the scores of these tokens."""
    scores[:, ids] += bias
    return scores


def not_before(
    n: int, ids: Tensor, scores: Tensor, tokens: Tensor, sentences: Sequence[int]
) -> Tensor:
    """Forbid these tokens before n tokens have been produced."""
    if tokens.size(1) < n:
        scores[:, ids] = -math.inf
    return scores


def no_repeat_ngram(n: int, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
    """Forbid tokens that would repeat an n-gram.

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


def with_prompt(
    prompts: Prompts | None, tokens: Int[Tensor, "N L"], sentences: Sequence[int]
) -> Int[Tensor, "N M"]:
    """The prompt of every row, followed by its new tokens."""
    if prompts is None:
        return tokens
    rows = prompts[ids_tensor(sentences, tokens.device)]
    return torch.cat((rows.repeat_interleave(len(tokens) // len(sentences), dim=0), tokens), dim=1)


STEP = 0.02
"""Seconds between consecutive timestamp tokens."""
FIRST = 50
"""The last timestamp token that may come first: a text begins within a second."""


@dataclass(frozen=True)
class Timestamps:
    """The rule that timestamp tokens come in pairs around segments of text, and never decrease.

    Args:
        timestamp_begin_id: the timestamp token of 0 seconds. Those of later times follow it; the
            token before it means "no timestamps".
        eos_id: the id of EOS; text tokens have lower ids.

    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision,
    section 4.5; the rules are those of its code.
    """

    timestamp_begin_id: int
    eos_id: int

    def __call__(self, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        """Set the scores of tokens that may not follow to -inf, in place; see `Rule`."""
        zero = self.timestamp_begin_id
        scores[:, zero - 1] = -math.inf
        if tokens.size(1) == 0:
            scores[:, :zero] = -math.inf
            scores[:, zero + FIRST + 1 :] = -math.inf
            return scores
        times = tokens >= zero
        last = times[:, -1]
        # the timestamp that begins an output counts as a pair
        paired = last & (times[:, -2] if tokens.size(1) > 1 else True)
        ids = torch.arange(scores.size(1), device=scores.device)
        # a pair is followed by text; a single timestamp, by its partner or EOS
        forbidden = paired[:, None] & (ids >= zero) | (last & ~paired)[:, None] & (
            ids < self.eos_id
        )
        earliest = tokens.where(times, zero - 1).amax(dim=1) + (paired | ~last)
        forbidden |= (ids >= zero) & (ids < earliest[:, None])
        scores.masked_fill_(forbidden, -math.inf)
        # only a timestamp may follow if all of them together are more probable than any text token
        likelier = scores[:, zero:].logsumexp(dim=1) > scores[:, :zero].amax(dim=1)
        scores[:, :zero] = scores[:, :zero].masked_fill(likelier[:, None], -math.inf)
        return scores

    def segments(self, tokens: list[int]) -> Iterator[tuple[float, float | None, list[int]]]:
        """Yield start, end (seconds; None: the end of the audio) and tokens of each segment."""
        start = 0.0
        text = list[int]()
        for token in tokens:
            if token < self.timestamp_begin_id:
                text.append(token)
                continue
            seconds = (token - self.timestamp_begin_id) * STEP
            if text:
                yield start, seconds, text
            start, text = seconds, []
        if text:
            yield start, None, text


NO_RULES = RulesConfig()

LEAST = -1e4
"""The log-probability of required tokens that a model finds impossible: not -inf, so that a search
finds an output."""


@dataclass
class Constraints:
    """What one search may produce; a search calls `scores` at every step with its hypotheses.

    Raises:
        InputError: a bound is below 1.
    """

    max_lengths: Int[Tensor, " B"]
    """Bound on the new tokens of each sentence, EOS included, on the device of the search."""
    eos_id: int | None = field(kw_only=True)
    """None: outputs end only at their bound."""
    suppressed: Sequence[int] = ()
    """Ids of special tokens, which are never produced."""
    config: RulesConfig = NO_RULES
    prompts: Prompts | None = None
    """The tokens before the new ones, which the repetition penalty counts."""
    rules: Sequence[Rule] = ()
    """Further rules, applied after those of `config`."""
    prefixes: Sequence[Prefix | None] = ()
    """The required beginning of each output, if it has one, which no rule can prevent."""

    def __post_init__(self) -> None:
        if len(self.max_lengths) and int(self.max_lengths.min()) < 1:
            raise InputError(
                f"max_lengths must be at least 1, but the least is {int(self.max_lengths.min())}; "
                "leave empty sentences out of the batch"
            )
        device = self.max_lengths.device
        self.rules = [*config_rules(self.config, self.eos_id, device), *self.rules]
        self.longest_prefix = max((prefix.longest for prefix in self.prefixes if prefix), default=0)
        self.suppressed_ids = ids_tensor((*self.suppressed, *self.config.suppress), device)

    def engine_scorer(self, scorer: Scorer) -> ModelScorer | None:
        """The scorer, if its model is an engine that can run all steps of a search, and no step
        needs Python for a rule, a prefix or further scores."""
        by_step = self.rules or self.longest_prefix or self.config.repetition_penalty != 1
        if by_step or self.config.renormalize or type(scorer) is not ModelScorer:
            return None
        return scorer if getattr(scorer.model, "searches", False) else None

    def scores(
        self,
        scores: Scores,
        tokens: Int[Tensor, "N L"],
        sentences: Sequence[int],
        *,
        normalize: bool,
    ) -> tuple[Scores, Float[Tensor, " N"]]:
        """The scores under all rules, and their normalizer.

        Scores minus normalizer is what a token adds to its hypothesis. Forbidden tokens have -inf;
        the others are renormalized only if `config.renormalize`. See `Rule` for the other
        arguments.

        Args:
            normalize: whether the scores are logits; if not, their normalizer is 0.
        """
        scores = self.penalize(scores, tokens, sentences)
        normalizer = scores.new_zeros(len(scores))
        if normalize:
            normalizer = log_sum_exp(at_least_float32(scores))
        scores = self.rule_out(scores, tokens, sentences)
        if self.config.renormalize:  # the clamp is for a hypothesis whose tokens are all forbidden
            least = torch.finfo(scores.dtype).min
            normalizer = log_sum_exp(at_least_float32(scores)).clamp_min(least)
        return scores, normalizer

    def penalize(self, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        """Divide the logits of tokens that occurred before by the penalty; multiply negative ones.

        With an additive scorer, they are log-probabilities. See `Rule` for the arguments.

        Source: Keskar et al. (2019), CTRL, section 4.1.
        """
        penalty = self.config.repetition_penalty
        if penalty == 1:
            return scores
        before = with_prompt(self.prompts, tokens, sentences)
        old = scores.gather(1, before)
        return scores.scatter_(1, before, torch.where(old < 0, old * penalty, old / penalty))

    def rule_out(self, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        """Scores under all other rules; see `Rule` for the arguments.

        If the rules forbid every token of a hypothesis, it may end, even if they forbid EOS.

        Raises:
            InputError: the rules forbid every token of all hypotheses of a sentence, and there is
                no EOS.
        """
        free = scores.clone() if tokens.size(1) < self.longest_prefix else None
        ending = scores[:, self.eos_id].clone() if self.rules and self.eos_id is not None else None
        scores.index_fill_(1, self.suppressed_ids, -math.inf)
        for rule in self.rules:
            scores = rule(scores, tokens, sentences)
        if self.rules:
            self._let_end(scores, ending, tokens.size(1), len(sentences))
        if free is not None:
            self._force(scores, free, tokens, sentences)
        return scores

    def _let_end(
        self, scores: Tensor, ending: Tensor | None, n_tokens: int, n_sentences: int
    ) -> None:
        """Allow EOS in rows whose tokens are all forbidden, with its score before all rules."""
        stuck = scores.amax(dim=1) == -math.inf
        if ending is not None:
            scores[:, self.eos_id] = torch.where(
                stuck, ending.clamp_min(LEAST), scores[:, self.eos_id]
            )
        elif bool(stuck.view(n_sentences, -1).all(dim=1).any()):
            raise InputError(
                f"the rules must leave a token to go on with, but after {n_tokens} tokens they "
                "leave none, and no EOS can end the text; loosen "
                f"no_repeat_ngram={self.config.no_repeat_ngram}, or suppress and forbid less"
            )

    def _force(
        self, scores: Tensor, free: Tensor, tokens: Tensor, sentences: Sequence[int]
    ) -> None:
        """In rows inside their prefix, allow only its tokens; `free` has scores without rules."""
        n_rows = len(tokens) // len(sentences)
        for row, written in enumerate(tokens.tolist()):
            prefix = self.prefixes[sentences[row // n_rows]]
            following = prefix.next(written) if prefix else None
            if following is not None:
                ids = ids_tensor(following, scores.device)
                ruled = scores[row, ids]
                impossible = bool((ruled == -math.inf).all())
                scores[row] = -math.inf
                scores[row, ids] = free[row, ids].clamp_min(LEAST) if impossible else ruled
