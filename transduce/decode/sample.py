"""Sampling: the next token drawn from the model's distribution, or from its likeliest part, or the likeliest alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.config import SamplingConfig
from transduce.decode.constraints import Constraints, ids_tensor
from transduce.decode.hypothesis import Hypothesis, length_penalty
from transduce.decode.scorer import Scorer, at_least_float32
from transduce.decode.topk import likeliest, log_sum_exp
from transduce.errors import InputError

COLDEST = 1e-6
"""Logits divided by less would not be finite; by this, all but the likeliest token have no probability left."""


@dataclass(frozen=True, kw_only=True)
class Sampling(SamplingConfig):
    """How a token is drawn from logits that were changed as the configuration says."""

    @classmethod
    def of(cls, config: SamplingConfig) -> "Sampling":
        """Drawing as this configuration, or one with more fields, says."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(SamplingConfig)})

    def probs(self, logits: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """What to draw from at a temperature above 0, in float32 or wider."""
        logits = at_least_float32(logits) / max(self.temperature, COLDEST)
        if 0 < self.top_k < logits.size(1):
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[:, -1:], -math.inf)
        probs = logits.softmax(-1)
        return probs if self.top_p == 1 else nucleus(probs, self.top_p)

    def next(self, logits: Float[Tensor, "N V"], uniform: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
        """One token a row, by that row's number in [0, 1)."""
        if self.temperature:
            return draw(self.probs(logits), uniform)
        return likeliest(logits, logits.new_zeros(len(logits), 1), 1)[1][:, 0]


def nucleus(probs: Float[Tensor, "N V"], top_p: float) -> Float[Tensor, "N V"]:
    """The fewest tokens that have the probability top_p together, at their old ratios; of equal ones, the first."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered  # of the likelier tokens
    before[:, 0] = -1.0  # rounding never leaves none
    kept = torch.zeros_like(probs).scatter(1, index, ordered.masked_fill(before >= top_p, 0.0))
    return kept / kept.sum(-1, keepdim=True)


def draw(probs: Float[Tensor, "N V"], uniform: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """The first token of each row up to which the probabilities exceed `uniform`, never one of probability 0."""
    up_to = probs.double().cumsum(-1)
    total = up_to[:, -1:].contiguous()
    level = torch.minimum(uniform.double()[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(up_to, level, right=True)[:, 0]


class Sampler:
    """n hypotheses of every sentence, token by token; at temperature 0 it is greedy search, and n = 1.

    `run` gives them all. One that wants tokens as they come calls `step` while any hypothesis is `running`.

    A sample's random numbers are the first ones of its own generator, one a token: it knows nothing of its neighbours,
    and a longer one begins like the shorter one. Hypotheses that have ended leave the batch.

    Args:
        scorer: one row per sentence; it has seen all of the prompt but the last token.
        prompts: what came before, at least BOS.
        constraints: suppressed tokens leave their probability to the others; without an EOS no step waits for the device.
        rngs: n for every sentence: hypothesis k of sentence b is number b * n + k. None is needed at temperature 0.
        alpha: exponent of the length penalty in the score, whose `offset` it has. None: neither log_prob, which is of the scorer's own
            distribution (under the repetition penalty), nor score is computed, which saves one pass over the vocabulary
            a step.

    Raises:
        InputError: rngs are not n for each sentence.
    """

    def __init__(
        self,
        scorer: Scorer,
        prompts: Int[Tensor, "B P"],
        constraints: Constraints,
        *,
        sampling: Sampling = Sampling(),
        rngs: Sequence[np.random.Generator] = (),
        alpha: float | None = None,
        offset: float = 5.0,
    ) -> None:
        rows = range(len(rngs) if sampling.temperature else len(prompts))
        if len(rows) < len(prompts) or len(rows) % max(len(prompts), 1):
            raise InputError(
                f"rngs must be n for every sentence, but there are {len(rngs)} for {len(prompts)} sentences"
            )
        self.scorer, self.constraints, self.sampling = scorer, constraints, sampling
        self.alpha, self.offset = alpha, offset
        self.ends: Callable[[int, int], bool] | None = None
        """Called with the number of a hypothesis and its new token: whether it ends there."""
        self.device, self.tokens, self.n_given = prompts.device, prompts, prompts.size(1)
        self.sentences = [row * len(prompts) // len(rows) for row in rows]
        """That of each hypothesis that goes on."""
        self.bounds: list[int] = constraints.max_lengths[self.sentences].tolist()
        longest = max(self.bounds, default=0)
        numbers = [rng.random(longest) for rng in rngs] if sampling.temperature else np.zeros((len(rows), longest))
        self.uniforms = torch.from_numpy(np.array(numbers)).to(self.device)
        self.log_prob = torch.full((len(rows),), math.nan if alpha is None else 0.0, device=self.device)
        self.running = list(rows)
        """The numbers of the hypotheses that go on."""
        self.ended: list[tuple[list[int], Tensor, Tensor]] = []

    @torch.inference_mode()
    def step(self) -> Int[Tensor, " A"]:
        """One more token of every hypothesis that was `running` before this call."""
        logits = self.scorer.step(self.tokens[:, -1])
        if len(logits) < len(self.running):  # the prompt is read once for all of its samples
            origin = ids_tensor(self.sentences, self.device)
            self._go_on(origin)
            logits, self.tokens = logits[origin], self.tokens[origin]
        scored, new = self.alpha is not None, self.tokens[:, self.n_given :]
        n_new = new.size(1)
        self.constraints.penalize(logits, new, self.sentences)
        total = log_sum_exp(at_least_float32(logits)) if scored and not self.scorer.additive else 0.0
        self.constraints.rule_out(logits, new, self.sentences)
        token = self.sampling.next(logits, self.uniforms[:, n_new])
        self.tokens = torch.cat((self.tokens, token[:, None]), dim=1)
        if scored:
            self.log_prob = self.log_prob + (logits.gather(1, token[:, None])[:, 0] - total)
        eos_id = self.constraints.eos_id
        ended = [False] * len(token) if eos_id is None else (token == eos_id).tolist()  # the one host sync
        if ends := self.ends:
            new_tokens = zip(ended, self.running, token.tolist(), strict=True)
            ended = [end or ends(row, one) for end, row, one in new_tokens]
        self._end([end or n_new + 1 == self.bounds[row] for end, row in zip(ended, self.running, strict=True)])
        return token

    def _end(self, over: list[bool]) -> None:
        """Let the hypotheses that are over leave the batch."""
        if not any(over):
            return
        out, on = ([i for i, flag in enumerate(over) if flag is want] for want in (True, False))
        rows, rest = ids_tensor(out, self.device), ids_tensor(on, self.device)
        self.ended.append(([self.running[i] for i in out], self.tokens[rows, self.n_given :], self.log_prob[rows]))
        self.running, self.sentences = [self.running[i] for i in on], [self.sentences[i] for i in on]
        self.tokens, self.log_prob, self.uniforms = self.tokens[rest], self.log_prob[rest], self.uniforms[rest]
        self._go_on(rest)

    def _go_on(self, rows: Int[Tensor, " M"]) -> None:
        """Go on with these rows of the scorer, each as a sentence of its own."""
        self.scorer.reorder(rows)
        self.scorer.keep(rows)

    def run(self) -> list[Hypothesis]:
        """Step until all have ended; hypotheses in order, without scores (nan) where none were asked for."""
        while self.running:
            self.step()
        found: dict[int, Hypothesis] = {}
        for rows, tokens, log_prob in self.ended:
            for row, ids, value in zip(rows, tokens.tolist(), log_prob.tolist(), strict=True):
                finished = ids[-1] == self.constraints.eos_id
                score = value / length_penalty(len(ids), self.alpha or 0.0, self.offset)
                found[row] = Hypothesis(ids[:-1] if finished else ids, value, score, finished)
        return [found[row] for row in sorted(found)]
