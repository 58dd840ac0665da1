"""What a search may produce: one set of rules for beam search, greedy search and sampling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.config import RulesConfig
from transduce.decode.phrases import Prefix
from transduce.decode.rules import Rule, config_rules, ids_tensor, penalize_repetition
from transduce.decode.scorer import Scorer, Scores, Tokens, at_least_float32
from transduce.decode.topk import log_sum_exp
from transduce.errors import InputError

NO_RULES = RulesConfig()

LEAST = -1e4
"""The log-probability of what must come although a model thinks it impossible: not -inf, so that
something comes out."""


@dataclass
class Constraints:
    """What one search may produce. A search tells it at every step which hypotheses there are.

    Raises:
        InputError: a bound is below 1.
    """

    max_lengths: Int[Tensor, " B"]
    """Bound on the new tokens of each sentence, EOS included, on the device of the search."""
    eos_id: int | None = field(kw_only=True)
    """None: nothing ends before its bound."""
    suppressed: Sequence[int] = ()
    """Ids of special tokens, which are never produced."""
    config: RulesConfig = NO_RULES
    prompts: Int[Tensor, "B P"] | None = None
    """The tokens before the new ones, which the repetition penalty counts."""
    rules: Sequence[Rule] = ()
    """Further rules, applied behind those of `config`."""
    prefixes: Sequence[Prefix | None] = ()
    """What each sentence begins with, if it does; no rule stands against it."""

    def __post_init__(self) -> None:
        if len(self.max_lengths) and int(self.max_lengths.min()) < 1:
            raise InputError(
                f"max_lengths must be at least 1, but the least is {int(self.max_lengths.min())}; "
                "leave empty sentences out of the batch"
            )
        device = self.max_lengths.device
        self.rules = [*config_rules(self.config, self.eos_id, device), *self.rules]
        self.longest_prefix = max((prefix.longest for prefix in self.prefixes if prefix), default=0)
        self.suppressed_ids = ids_tensor(self.suppressed, device)

    def scores(
        self, scorer: Scorer, last: Tokens, tokens: Int[Tensor, "N L"], sentences: Sequence[int]
    ) -> tuple[Scores, Float[Tensor, " N"]]:
        """Append the last token to every row; scores of the next, and their normalizer.

        The difference is what a token adds to its hypothesis. Forbidden tokens have -inf; the
        others are not renormalized unless the rules say so. See `Rule` for the arguments.
        """
        scores = self.penalize(at_least_float32(scorer.step(last)), tokens, sentences)
        normalizer = scores.new_zeros(len(scores)) if scorer.additive else log_sum_exp(scores)
        scores = self.rule_out(scores, tokens, sentences)
        return scores, log_sum_exp(scores) if self.config.renormalize else normalizer

    def penalize(self, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        """Scores under the repetition penalty; see `Rule` for the arguments."""
        penalty = self.config.repetition_penalty
        if penalty == 1:
            return scores
        return penalize_repetition(penalty, self.prompts, scores, tokens, sentences)

    def rule_out(self, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> Tensor:
        """Scores under all other rules; see `Rule` for the arguments.

        A hypothesis without any token left may end, whatever the rules say of its end.

        Raises:
            InputError: a hypothesis has no token left, and there is no EOS.
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
        """Let the rows without any token left end with their score of the end before all rules."""
        stuck = scores.amax(dim=1) == -math.inf
        if ending is not None:
            scores[:, self.eos_id] = torch.where(
                stuck, ending.clamp_min(LEAST), scores[:, self.eos_id]
            )
        elif bool(stuck.view(n_sentences, -1).all(dim=1).any()):
            raise InputError(
                f"the rules must leave a token to go on with, but after {n_tokens} tokens they "
                "leave none, and no EOS "
                f"can end the text; loosen no_repeat_ngram={self.config.no_repeat_ngram}, or "
                "suppress and forbid less"
            )

    def _force(
        self, scores: Tensor, free: Tensor, tokens: Tensor, sentences: Sequence[int]
    ) -> None:
        """Leave rows inside of their prefix its tokens; `free` has the scores without rules."""
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
