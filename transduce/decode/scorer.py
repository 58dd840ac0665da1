"""Scorers, which score the next token of every active hypothesis by one model or several together;
and the best tokens of many rows, in C++ on a CPU without sorting or copying the scores."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.errors import InputError
from transduce.kernels import compute, library

Tokens = Int[Tensor, " N"]
"""One token of every row."""
Scores = Float[Tensor, "N V"]
"""The score of every next token of every row."""
Prompts = Int[Tensor, "B P"]
"""The tokens before the output of each sentence."""
Places = Int[Tensor, " M"]
"""Indices of rows, sentences or tokens."""


@runtime_checkable
class Scorer(Protocol):
    """Scores the next tokens of N = B * beams rows; a sentence's rows are consecutive.

    Search begins with one row per sentence, N = B, and widens to beams with its first `reorder`.
    """

    n_sentences: int
    """B, the sentences still being searched."""
    additive: bool
    """True: the score of a hypothesis is the sum of the scores of its tokens. False: `step` returns
    logits, which search normalizes."""

    def step(self, tokens: Tokens) -> Scores:
        """Append one token to every row; returns scores of the next, which search may overwrite."""

    def reorder(self, rows: Places) -> None:
        """Let row m continue from the tokens of row rows[m]; rows may repeat or be left out."""

    def keep(self, sentences: Places) -> None:
        """Continue with these sentences only. Their rows were already chosen by `reorder`."""


def ids_tensor(ids: Sequence[int], device: torch.device) -> Places:
    """Token ids or row numbers on the device of the search."""
    return torch.tensor(ids, dtype=torch.long, device=device)


def partition(flags: Sequence[bool]) -> tuple[list[int], list[int]]:
    """The indices whose flag is True, and the others."""
    return [i for i, flag in enumerate(flags) if flag], [
        i for i, flag in enumerate(flags) if not flag
    ]


def at_least_float32(scores: Float[Tensor, "*N V"]) -> Float[Tensor, "*N V"]:
    """The same scores in float32 or wider."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


class ModelScorer:
    """The scorer of one model; a step costs one position.

    Args:
        model: a Transformer or an engine; it needs `decoder_states`, `project` and `new_cache`.
        memory: the encoder's output for B sentences, for a model with an encoder. The first step
            projects it into the cache and releases it.
        prompts: B rows of one length. The first step reads them instead of the tokens it is given;
            None: it reads the first tokens of the search. A language model that is combined with a
            translation model gets its own BOS in this way.

    Raises:
        InputError: there is neither a memory nor a prompt.
    """

    additive = False

    def __init__(self, model: Any, memory: Any = None, *, prompts: Prompts | None = None) -> None:
        if memory is None and prompts is None:
            raise InputError(
                "a model's scores need its memory, its prompts or both, but memory=None and "
                "prompts=None"
            )
        self.model = model
        self.memory = memory
        self.prompts = prompts
        self.cache = model.new_cache()
        self.n_sentences = len(memory.states if prompts is None else prompts)

    def step(self, tokens: Tokens) -> Scores:
        """Logits of the next token; only the last position is projected to the vocabulary."""
        new = tokens[:, None] if self.prompts is None else self.prompts
        states = self.model.decoder_states(new, memory=self.memory, cache=self.cache)
        self.memory = self.prompts = None
        logits: Scores = self.model.project(states[:, -1])
        return logits

    def reorder(self, rows: Places) -> None:
        self.cache.reorder(rows)

    def keep(self, sentences: Places) -> None:
        self.cache.keep(sentences)
        self.n_sentences = len(sentences)


def combined(scorers: Sequence[tuple[float, Scorer]]) -> Scorer:
    """The weighted sum of log-probabilities as one scorer; weight 0 is not computed.

    Equal weights that sum to 1 make an ensemble: the geometric mean of its members' probabilities.
    1 - w for attention and w for CTC is joint CTC/attention search, where CTC keeps attention from
    skipping and repeating. A model at 1 and a language model at less is shallow fusion. One scorer
    at 1 is returned as it is.

    Args:
        scorers: pairs of weight and scorer, of one vocabulary and of the same sentences.

    Raises:
        InputError: a weight is negative, all are 0, or the scorers' numbers of sentences differ.
    Source: Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech
    recognition; Gulcehre et al. (2015), On using monolingual corpora in neural machine translation,
    section 4.1, for shallow fusion.
    """
    weights = [weight for weight, _ in scorers]
    sizes = [scorer.n_sentences for _, scorer in scorers]
    if not any(weights) or min(weights) < 0:
        raise InputError(
            "weights of scorers must not be negative, and at least one must be positive, but they "
            f"are {weights}"
        )
    if len(set(sizes)) > 1:
        raise InputError(f"scorers must have the same sentences, but they have {sizes} sentences")
    parts = [(weight, scorer) for weight, scorer in scorers if weight]
    weight, scorer = parts[0]
    return scorer if len(parts) == 1 and weight == 1 else JointScorer(parts)


class JointScorer:
    """The weighted sum of several scorers; `combined` makes it and checks its parts."""

    additive = True

    def __init__(self, parts: Sequence[tuple[float, Scorer]]) -> None:
        self.parts = parts
        self.n_sentences = parts[0][1].n_sentences

    def step(self, tokens: Tokens) -> Scores:
        """Append one token to every row; returns the weighted sum of log-probabilities of the
        next."""
        parts = []
        for weight, scorer in self.parts:
            scores = at_least_float32(scorer.step(tokens))
            parts.append(weight * (scores if scorer.additive else scores.log_softmax(-1)))
        return torch.stack(parts).sum(dim=0)

    def reorder(self, rows: Places) -> None:
        for _, scorer in self.parts:
            scorer.reorder(rows)

    def keep(self, sentences: Places) -> None:
        for _, scorer in self.parts:
            scorer.keep(sentences)
        self.n_sentences = len(sentences)


class Continuations(NamedTuple):
    """Tokens that may continue the hypotheses of every sentence, best first."""

    log_prob: Float[Tensor, "A n"]
    """That of the hypothesis with the token; -inf if there are fewer than n."""
    token: Int[Tensor, "A n"]
    parent: Int[Tensor, "A n"]
    """The hypothesis that the token continues."""


def log_sum_exp(logits: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """log of the sum of exp(logits) of every row; log_softmax is the logits minus it."""
    if in_cpp(logits):
        out = logits.new_empty(len(logits))
        compute("log_sum_exp", logits, *logits.shape, out)
        return out
    return logits.logsumexp(-1)


def top_k(scores: Float[Tensor, "N V"], offset: Float[Tensor, "A K"], n: int) -> Continuations:
    """The n largest of scores + offset among the K rows of every sentence, largest first.

    The order of equal ones does not depend on the other sentences.

    Args:
        offset: added to the scores of row b * K + k.
    """
    n_sentences, n_rows = offset.shape
    vocab_size = scores.size(1)
    if in_cpp(scores):
        values = scores.new_empty(n_sentences, n)
        tokens, rows = (torch.empty(n_sentences, n, dtype=torch.long) for _ in range(2))
        compute(
            "top_k",
            scores,
            offset.to(scores.dtype).contiguous(),
            n_sentences,
            n_rows,
            vocab_size,
            n,
            values,
            tokens,
            rows,
        )
        return Continuations(values, tokens, rows)
    if n == n_rows == 1:
        value, token = scores.max(-1, keepdim=True)  # the first of equal ones
        return Continuations(value + offset, token, torch.zeros_like(token))
    total = (scores.view(n_sentences, n_rows, vocab_size) + offset[:, :, None]).flatten(1)
    if total.size(1) < n:  # in the first steps with a tiny vocabulary
        total = torch.nn.functional.pad(total, (0, n - total.size(1)), value=-math.inf)
    values, index = total.topk(n)
    return Continuations(values, index % vocab_size, (index // vocab_size).clamp_max(n_rows - 1))


def in_cpp(scores: Tensor) -> bool:
    """Whether the kernels in C++ can read these scores."""
    fits = scores.device.type == "cpu" and scores.dtype == torch.float32 and scores.is_contiguous()
    return fits and library() is not None
