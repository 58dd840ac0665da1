"""Sampling: the next token drawn from the model's distribution, or from the likeliest part of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.hypothesis import Hypothesis, check_bounds, ids_tensor
from transduce.decode.scorer import Scorer


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What becomes of the logits before a token is drawn; the fields apply in the order penalty, temperature, k, p.

    Source: Keskar et al. (2019), CTRL, section 4.1, for the penalty; Fan et al. (2018), Hierarchical neural story
    generation, for top-k; Holtzman et al. (2020), The curious case of neural text degeneration, for the nucleus.
    """

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token and draws nothing."""
    top_k: int = 0
    """Draw among the k likeliest tokens (more where some are equally likely); 0 = off."""
    top_p: float = 1.0
    """Draw among the fewest tokens that have this probability together; 1 = off."""
    repetition_penalty: float = 1.0
    """Logits of tokens that came before, in the prompt or after it, are divided by it, negative ones multiplied."""

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0:
            raise ValueError(
                "temperature and top_k must not be negative (temperature 0 is greedy, top_k 0 is off), but "
                f"temperature={self.temperature} and top_k={self.top_k}"
            )
        if not 0 < self.top_p <= 1 or self.repetition_penalty <= 0:
            raise ValueError(
                "top_p must lie in (0, 1] and repetition_penalty be positive (1 is off, for both), but "
                f"top_p={self.top_p} and repetition_penalty={self.repetition_penalty}"
            )

    def probs(self, logits: Float[Tensor, "N V"], before: Int[Tensor, "N L"]) -> Float[Tensor, "N V"]:
        """What to draw from, in float32 or wider; `before` is every token so far. At temperature 0, all on one token."""
        logits = self._penalised(logits.to(torch.promote_types(logits.dtype, torch.float32)), before)
        if not self.temperature:
            return torch.zeros_like(logits).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
        logits = logits / self.temperature
        if 0 < self.top_k < logits.size(1):
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[:, -1:], -math.inf)
        probs = logits.softmax(-1)
        return probs if self.top_p == 1 else nucleus(probs, self.top_p)

    def next(
        self, logits: Float[Tensor, "N V"], before: Int[Tensor, "N L"], uniform: Float[Tensor, " N"]
    ) -> Int[Tensor, " N"]:
        """One token a row, by that row's number in [0, 1)."""
        if self.temperature:
            return draw(self.probs(logits, before), uniform)
        return self._penalised(logits.to(torch.promote_types(logits.dtype, torch.float32)), before).argmax(-1)

    def _penalised(self, logits: Float[Tensor, "N V"], before: Int[Tensor, "N L"]) -> Float[Tensor, "N V"]:
        if self.repetition_penalty == 1:
            return logits
        old = logits.gather(1, before)
        return logits.scatter(
            1, before, torch.where(old < 0, old * self.repetition_penalty, old / self.repetition_penalty)
        )


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


@torch.inference_mode()
def sample(
    scorer: Scorer,
    *,
    prompts: Int[Tensor, "B P"],
    eos_id: int | None,
    max_lengths: Int[Tensor, " B"],
    rngs: Sequence[np.random.Generator],
    sampling: Sampling = Sampling(),
    suppressed: Sequence[int] = (),
    on_tokens: Callable[[list[int], list[int]], object] | None = None,
) -> list[Hypothesis]:
    """n samples of every sentence, n = len(rngs) / B: sample k of sentence b is number b * n + k of what is returned.

    A sample's random numbers are the first ones of its own generator, one a token: it knows nothing of its neighbours,
    and a longer one begins like the shorter one. Samples that have ended leave the batch.

    Args:
        scorer: one row per sentence; it has seen all of the prompt but the last token.
        prompts: what came before, at least BOS; the repetition penalty counts it.
        eos_id: None: nothing ends before its bound, and no step waits for the device.
        max_lengths: bound on the new tokens of each sentence, EOS included.
        forbidden: ids never produced; the others share their probability.
        on_tokens: called at every step with the numbers of the samples that still run, and the new token of each.

    Returns:
        Hypotheses without scores (nan).

    Raises:
        ValueError: rngs are not n for each sentence, or max_lengths not one bound of at least 1 per sentence.
    """
    check_bounds(scorer.n_sentences, max_lengths)
    if len(rngs) < len(prompts) or len(rngs) % max(len(prompts), 1):
        raise ValueError(f"rngs must be n for every sentence, but there are {len(rngs)} for {len(prompts)} sentences")
    if not rngs:
        return []
    device, suppressed_ids = prompts.device, ids_tensor(suppressed, prompts.device)
    origin = ids_tensor([row * len(prompts) // len(rngs) for row in range(len(rngs))], device)
    bounds: list[int] = max_lengths[origin].tolist()
    uniforms = torch.from_numpy(np.stack([rng.random(max(bounds)) for rng in rngs])).to(device)
    running, found = list(range(len(rngs))), dict[int, Hypothesis]()
    logits, tokens = scorer.step(prompts[:, -1]), prompts
    if len(rngs) > len(prompts):  # the prompt is read once for all of its samples
        _go_on(scorer, origin)
        logits, tokens = logits[origin], tokens[origin]
    for step in range(max(bounds)):
        token = sampling.next(logits.index_fill(1, suppressed_ids, -math.inf), tokens, uniforms[:, step])
        tokens = torch.cat((tokens, token[:, None]), dim=1)
        new = token.tolist() if eos_id is not None or on_tokens else [-1] * len(running)  # the one host sync of a step
        if on_tokens:
            on_tokens(running, new)
        on = [i for i, row in enumerate(running) if new[i] != eos_id and step + 1 < bounds[row]]
        if len(on) < len(running):
            over = sorted(set(range(len(running))) - set(on))
            rows = tokens[ids_tensor(over, device), prompts.size(1) :].tolist()
            found |= {running[i]: _hypothesis(row, eos_id) for i, row in zip(over, rows, strict=True)}
            rest, running = ids_tensor(on, device), [running[i] for i in on]
            tokens, uniforms = tokens[rest], uniforms[rest]
            _go_on(scorer, rest)
        if not running:
            break
        logits = scorer.step(tokens[:, -1])
    return [found[row] for row in range(len(rngs))]


def _go_on(scorer: Scorer, rows: Int[Tensor, " M"]) -> None:
    """With these rows, each a sentence of its own."""
    scorer.reorder(rows)
    scorer.keep(rows)


def _hypothesis(tokens: list[int], eos_id: int | None) -> Hypothesis:
    finished = tokens[-1] == eos_id
    return Hypothesis(tokens[:-1] if finished else tokens, math.nan, math.nan, finished)
