"""What a search may produce: one set of rules for beam search, greedy search and sampling."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.config import RulesConfig
from transduce.decode.lexicon import Lexicon
from transduce.decode.phrases import Forbidden, Prefix, Required
from transduce.decode.scorer import Scorer, at_least_float32
from transduce.decode.timestamps import Timestamps
from transduce.decode.topk import log_sum_exp
from transduce.errors import InputError

NO_RULES = RulesConfig()

LEAST = -1e4
"""The log-probability of what must come although a model thinks it impossible: not -inf, so that something comes out."""


def ids_tensor(ids: Sequence[int], device: torch.device) -> Int[Tensor, " M"]:
    """Token ids or row numbers on the device of the search."""
    return torch.tensor(ids, dtype=torch.long, device=device)


class Constraints:
    """What one search may produce. A search tells it at every step which hypotheses there are.

    Args:
        max_lengths: bound on the new tokens of each sentence, EOS included, on the device of the search.
        eos_id: None: nothing ends before its bound.
        suppressed: ids never produced, beside those of `rules`.
        prompts: what came before the new tokens; the repetition penalty counts it, and a forbidden phrase may begin there.
        forbidden: what `rules.forbid` says, in tokens.
        prefixes: what each sentence begins with, if it does; no other rule stands against it.
        required: what each sentence must hold, which beam search sees to.
        timestamps: times that come between texts.
        lexicon: the only words that come out, but in a sentence that begins with or must hold something.

    Raises:
        InputError: a bound is below 1.
    """

    def __init__(
        self,
        max_lengths: Int[Tensor, " B"],
        *,
        eos_id: int | None,
        suppressed: Sequence[int] = (),
        rules: RulesConfig = NO_RULES,
        prompts: Int[Tensor, "B P"] | None = None,
        forbidden: Forbidden | None = None,
        prefixes: Sequence[Prefix | None] = (),
        required: Required | None = None,
        timestamps: Timestamps | None = None,
        lexicon: Lexicon | None = None,
    ) -> None:
        if len(max_lengths) and int(max_lengths.min()) < 1:
            raise InputError(
                f"max_lengths must be at least 1, but the least is {int(max_lengths.min())}; "
                "leave empty sentences out of the batch"
            )
        self.max_lengths, self.eos_id, self.rules, self.prompts = max_lengths, eos_id, rules, prompts
        self.forbidden, self.prefixes, self.required = forbidden, prefixes, required
        self.timestamps, self.lexicon = timestamps, lexicon
        self.longest_prefix = max((prefix.longest for prefix in prefixes if prefix), default=0)
        self.suppressed_ids = ids_tensor([*suppressed, *rules.suppress], max_lengths.device)

    def scores(
        self, scorer: Scorer, last: Int[Tensor, " N"], tokens: Int[Tensor, "N L"], sentences: Sequence[int]
    ) -> tuple[Float[Tensor, "N V"], Float[Tensor, " N"]]:
        """Append the last token to every row; scores of the next in float32 or wider, and what to subtract from them.

        The difference is what a token adds to its hypothesis. What is ruled out is -inf; its probability is left to
        nobody, unless the rules renormalize.

        Args:
            tokens: the new tokens of the hypotheses so far.
            sentences: their numbers, each of len(tokens) / len(sentences) neighbouring rows.
        """
        scores = at_least_float32(scorer.step(last))
        self.penalize(scores, tokens, sentences)
        total = scores.new_zeros(len(scores)) if scorer.additive else log_sum_exp(scores)
        self.rule_out(scores, tokens, sentences)
        return scores, log_sum_exp(scores) if self.rules.renormalize else total

    def penalize(self, scores: Float[Tensor, "N V"], tokens: Int[Tensor, "N L"], sentences: Sequence[int]) -> None:
        """Divide, in place, the logits of tokens that came before by the repetition penalty, and multiply negative ones.

        Of a scorer that is additive these are log-probabilities. See `scores` for the arguments.
        """
        if (penalty := self.rules.repetition_penalty) != 1:
            before = self._since_prompt(tokens, sentences)
            old = scores.gather(1, before)
            scores.scatter_(1, before, torch.where(old < 0, old * penalty, old / penalty))

    def rule_out(self, scores: Float[Tensor, "N V"], tokens: Int[Tensor, "N L"], sentences: Sequence[int]) -> None:
        """Set to -inf, in place, what may not come next. See `scores` for the arguments.

        A hypothesis that the rules leave no token may end, whatever they say of its end.

        Raises:
            InputError: a hypothesis has no token left, and there is no EOS.
        """
        eos, rules = self.eos_id, self.rules
        too_short = eos is not None and tokens.size(1) < rules.min_length
        first = rules.suppress_first if tokens.size(1) == 0 else ()
        own = first or self.timestamps or self.lexicon
        narrow = too_short or rules.no_repeat_ngram or rules.suppress or self.forbidden or own
        free = scores.clone() if tokens.size(1) < self.longest_prefix else None
        ending = scores[:, eos].clone() if narrow and eos is not None else None
        scores.index_fill_(1, self.suppressed_ids, -math.inf)
        if too_short:
            scores[:, eos] = -math.inf
        if first:
            scores.index_fill_(1, ids_tensor(first, scores.device), -math.inf)
        if rules.no_repeat_ngram:
            suppress_repeats(scores, tokens, rules.no_repeat_ngram)
        if self.forbidden:
            ruled_out = self.forbidden.ruled_out(self._since_prompt(tokens, sentences).tolist())
            scores.masked_fill_(ruled_out.to(scores.device), -math.inf)
        if self.timestamps:
            self.timestamps.rule_out(scores, tokens)
        if self.lexicon:
            self._keep_to_words(self.lexicon, scores, tokens, sentences)
        if narrow:
            self._let_end(scores, ending, tokens.size(1), len(sentences))
        if free is not None:
            self._force(scores, free, tokens, sentences)

    def _keep_to_words(self, lexicon: Lexicon, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        """Rule out what leads to no word of the lexicon, in the sentences of which nothing else is wanted."""
        n_rows = len(tokens) // max(1, len(sentences))
        rows = [
            n_rows * i + row
            for i, sentence in enumerate(sentences)
            for row in range(n_rows)
            if not (self.prefixes and self.prefixes[sentence])
            and not (self.required and self.required.totals[sentence])
        ]
        if rows:
            which = ids_tensor(rows, scores.device)
            ruled_out = torch.zeros_like(scores, dtype=torch.bool)
            ruled_out[which] = lexicon.ruled_out(tokens[which].tolist()).to(scores.device)
            scores.masked_fill_(ruled_out, -math.inf)

    def _force(self, scores: Tensor, free: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        """Leave the rows that are in their prefix nothing else; `free` has the scores without any rule."""
        n_rows = len(tokens) // len(sentences)
        for row, own in enumerate(tokens.tolist()):
            prefix = self.prefixes[sentences[row // n_rows]]
            following = prefix.next(own) if prefix else None
            if following is not None:
                ids = ids_tensor(following, scores.device)
                kept = scores[row, ids]
                scores[row] = -math.inf
                scores[row, ids] = free[row, ids].clamp_min(LEAST) if bool((kept == -math.inf).all()) else kept

    def _let_end(self, scores: Tensor, ending: Tensor | None, n_tokens: int, n_sentences: int) -> None:
        """Let the rows that have no token left end with the score that they had for it."""
        stuck = scores.amax(dim=1) == -math.inf
        if ending is not None:
            scores[:, self.eos_id] = torch.where(stuck, ending.clamp_min(LEAST), scores[:, self.eos_id])
        elif bool(stuck.view(n_sentences, -1).all(dim=1).any()):
            raise InputError(
                f"the rules must leave a token to go on with, but after {n_tokens} tokens they leave none, and no EOS "
                f"can end the text; loosen no_repeat_ngram={self.rules.no_repeat_ngram}, or suppress and forbid less"
            )

    def _since_prompt(self, tokens: Int[Tensor, "N L"], sentences: Sequence[int]) -> Int[Tensor, "N M"]:
        """The new tokens of every row behind its prompt."""
        if self.prompts is None:
            return tokens
        prompts = self.prompts[ids_tensor(sentences, tokens.device)]
        return torch.cat((prompts.repeat_interleave(len(tokens) // len(sentences), dim=0), tokens), dim=1)


def length_bounds(lengths: Int[Tensor, " B"], ratio: float, extra: int, *, limit: int) -> Int[Tensor, " B"]:
    """The most tokens that may come out of sources of these lengths: ratio * length + extra, but never above `limit`."""
    return ((lengths * ratio).long() + extra).clamp(max=limit)


def suppress_repeats(scores: Float[Tensor, "N V"], tokens: Int[Tensor, "N L"], n: int) -> None:
    """Set to -inf, in place, the tokens that would complete an n-gram that `tokens` already holds.

    Source: Paulus et al. (2018), A deep reinforced model for abstractive summarization, section 2.5 (there n = 3).
    """
    length = tokens.size(1)
    if length < n:
        return
    grams = tokens.unfold(1, n, 1)  # (N, L - n + 1, n)
    begun = (grams[:, :, :-1] == tokens[:, None, length - n + 1 :]).all(dim=-1)
    loss = torch.zeros_like(begun, dtype=scores.dtype).masked_fill_(begun, -math.inf)
    scores.scatter_add_(1, grams[:, :, -1], loss)
