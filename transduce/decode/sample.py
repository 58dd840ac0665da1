"""Sampling from a model's distribution, or from its most probable part; and greedy search."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.beam import Hypothesis
from transduce.decode.config import BeamConfig, SamplingConfig
from transduce.decode.rules import Constraints
from transduce.decode.scorer import (
    Places,
    Prompts,
    Scorer,
    Scores,
    Tokens,
    at_least_float32,
    ids_tensor,
    partition,
    top_k,
)
from transduce.errors import InputError

MIN_TEMPERATURE = 1e-6
"""Lowest temperature: with less, logits would not be finite. With this, all tokens but the most
probable one already have probability 0."""

PLAIN = SamplingConfig()
GREEDY = SamplingConfig(temperature=0.0)


def probabilities(logits: Scores, config: SamplingConfig) -> Scores:
    """The distribution of the next token at a temperature above 0, in float32 or wider."""
    logits = at_least_float32(logits) / max(config.temperature, MIN_TEMPERATURE)
    if 0 < config.top_k < logits.size(1):
        logits = logits.masked_fill(logits < logits.topk(config.top_k).values[:, -1:], -math.inf)
    probs = logits.softmax(-1)
    if config.top_p < 1:
        probs = nucleus(probs, config.top_p)
    if config.min_p:
        unlikely = probs < config.min_p * probs.amax(-1, keepdim=True)
        probs = probs.masked_fill(unlikely, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def next_tokens(logits: Scores, config: SamplingConfig, uniform: Float[Tensor, " N"]) -> Tokens:
    """One token per row, drawn with that row's uniform number in [0, 1)."""
    if config.temperature:
        return draw(probabilities(logits, config), uniform)
    return top_k(logits, logits.new_zeros(len(logits), 1), 1).token[:, 0]


def nucleus(probs: Scores, top_p: float) -> Scores:
    """Keep the fewest tokens that have the probability top_p together, and renormalize."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered  # probability of all more probable tokens
    before[:, 0] = -1.0  # the first token stays, whatever the rounding
    inside = torch.zeros_like(probs).scatter(1, index, ordered.masked_fill(before >= top_p, 0.0))
    return inside / inside.sum(-1, keepdim=True)


def draw(probs: Scores, uniform: Float[Tensor, " N"]) -> Tokens:
    """The first token of each row whose cumulative probability exceeds `uniform`."""
    up_to = probs.double().cumsum(-1)
    total = up_to[:, -1:].contiguous()
    level = torch.minimum(
        uniform.double()[:, None] * total, total.nextafter(torch.zeros_like(total))
    )
    return torch.searchsorted(up_to, level, right=True)[:, 0]


@dataclass
class Sampler:
    """n samples of every sentence, token by token; at temperature 0, greedy search.

    `run` returns them all. To stream tokens, call `step` while any hypothesis is `running`.

    A sample takes the first random numbers of its own generator, one per token: so it does not
    depend on its neighbours, and a longer sample begins like a shorter one. Hypotheses that have
    ended leave the batch.

    Raises:
        InputError: there are not n rngs for each sentence.
    """

    scorer: Scorer
    """One row per sentence; it has seen all of the prompt but the last token."""
    prompts: Prompts
    """The tokens before the output, at least BOS."""
    constraints: Constraints
    """The probability of suppressed tokens is distributed among the others; without EOS, no step
    waits for the device."""
    sampling: SamplingConfig = PLAIN
    rngs: Sequence[np.random.Generator] = ()
    """n for every sentence: hypothesis k of sentence b uses number b * n + k. At temperature 0 none
    are needed."""
    score: BeamConfig | None = None
    """The length penalty of the score. None: neither score nor log_prob is computed, which saves
    one pass over the vocabulary per step. log_prob is that of the scorer's own distribution, with
    the repetition penalty, and renormalized if the rules say so."""
    ends: Callable[[int, int], bool] | None = None
    """Called with the number of a hypothesis and its new token; returns whether it ends there."""

    def __post_init__(self) -> None:
        n_sentences, self.n_prompt = self.prompts.shape
        n_rows = len(self.rngs) if self.sampling.temperature else n_sentences
        if n_rows < n_sentences or n_rows % max(n_sentences, 1):
            raise InputError(
                f"rngs must be n for every sentence, but there are {len(self.rngs)} for "
                f"{n_sentences} sentences"
            )
        self.device = self.prompts.device
        self.tokens = self.prompts
        self.sentences = [row * n_sentences // n_rows for row in range(n_rows)]
        """The sentence of each running hypothesis."""
        self.bounds: list[int] = self.constraints.max_lengths[self.sentences].tolist()
        longest = max(self.bounds, default=0)
        uniforms = np.zeros((n_rows, longest))
        if self.sampling.temperature:
            uniforms = np.array([rng.random(longest) for rng in self.rngs])
        self.uniforms = torch.from_numpy(uniforms).to(self.device)
        start = 0.0 if self.score else math.nan
        self.log_prob = torch.full((n_rows,), start, dtype=torch.float32, device=self.device)
        self.running = list(range(n_rows))
        """The numbers of the hypotheses that have not ended."""
        self.ended: list[tuple[list[int], Tensor, Tensor]] = []

    @torch.inference_mode()
    def step(self) -> Int[Tensor, " A"]:
        """Draw one more token for every hypothesis that was `running` before, and return them."""
        logits = self.scorer.step(self.tokens[:, -1])
        if len(logits) < len(self.running):  # the prompt is read once for all of its samples
            rows = ids_tensor(self.sentences, self.device)
            self._select(rows)
            logits = logits[rows]
            self.tokens = self.tokens[rows]
        new = self.tokens[:, self.n_prompt :]
        n_new = new.size(1)
        normalize = self.score is not None and not self.scorer.additive
        logits, normalizer = self.constraints.scores(
            logits, new, self.sentences, normalize=normalize
        )
        token = next_tokens(logits, self.sampling, self.uniforms[:, n_new])
        self.tokens = torch.cat((self.tokens, token[:, None]), dim=1)
        if self.score is not None:
            self.log_prob = self.log_prob + (logits.gather(1, token[:, None])[:, 0] - normalizer)
        eos_id = self.constraints.eos_id
        # the one host sync
        ended = [False] * len(token) if eos_id is None else (token == eos_id).tolist()
        if self.ends:
            new_tokens = zip(ended, self.running, token.tolist(), strict=True)
            ended = [end or self.ends(row, one) for end, row, one in new_tokens]
        flags = [
            end or n_new + 1 == self.bounds[row]
            for end, row in zip(ended, self.running, strict=True)
        ]
        if any(flags):
            self._retire(*partition(flags))
        return token

    def _retire(self, done: list[int], running: list[int]) -> None:
        """Remove the hypotheses that are done from the batch."""
        out, rest = ids_tensor(done, self.device), ids_tensor(running, self.device)
        numbers = [self.running[i] for i in done]
        self.ended.append((numbers, self.tokens[out, self.n_prompt :], self.log_prob[out]))
        self.running = [self.running[i] for i in running]
        self.sentences = [self.sentences[i] for i in running]
        self.tokens = self.tokens[rest]
        self.log_prob = self.log_prob[rest]
        self.uniforms = self.uniforms[rest]
        self._select(rest)

    def _select(self, rows: Places) -> None:
        """Continue with these rows of the scorer, each as a sentence of its own."""
        self.scorer.reorder(rows)
        self.scorer.keep(rows)

    def _let_engine_finish(self) -> None:
        """Run all further steps in one call of the engine, if none of them needs Python."""
        rules = self.constraints
        by_engine = rules.engine_scorer(self.scorer)
        if by_engine is None or self.ends or self.sampling.temperature or not self.running:
            return
        new = self.tokens[:, self.n_prompt :]
        rest = by_engine.model.greedy(
            self.tokens[:, -1],
            rules.max_lengths[self.sentences] - new.size(1),
            by_engine.cache,
            eos_id=-1 if rules.eos_id is None else rules.eos_id,
            suppressed=rules.suppressed_ids,
            log_prob=self.log_prob if self.score else None,
        )
        self.ended.append((self.running, torch.cat((new, rest), dim=1), self.log_prob))
        self.running = []

    def run(self) -> list[list[Hypothesis]]:
        """Step until all hypotheses have ended; returns n hypotheses of every sentence, in order.
        Scores that were not computed are nan."""
        while self.running:
            self.step()
            self._let_engine_finish()
        penalties = self.score or BeamConfig(alpha=0.0)
        hypotheses: dict[int, Hypothesis] = {}
        for rows, tokens, log_prob in self.ended:
            for row, ids, value in zip(rows, tokens.tolist(), log_prob.tolist(), strict=True):
                ids = ids[: self.bounds[row]]
                finished = self.constraints.eos_id in ids
                out = ids[: ids.index(self.constraints.eos_id)] if finished else ids
                n = len(out) + finished
                score = value / penalties.length_penalty(n)
                hypotheses[row] = Hypothesis(out, value, score, finished)
        n_samples = len(hypotheses) // max(len(self.prompts), 1)
        samples = (hypotheses[row] for row in sorted(hypotheses))
        return [list(islice(samples, n_samples)) for _ in self.prompts]
