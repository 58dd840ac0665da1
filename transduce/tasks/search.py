"""How to search, and the search itself: from what flows into a model to the token ids that come out."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from transduce.data.batch import bucket
from transduce.data.text.tokenizers import Tokenizer
from transduce.decode.beam import beam_search
from transduce.decode.constraints import Constraints, length_bounds
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.joint import combined
from transduce.decode.sample import Sampler, Sampling
from transduce.decode.scorer import ModelScorer, Scorer
from transduce.model.transformer import Memory, Transformer
from transduce.tasks.config import SearchConfig
from transduce.tasks.words import TokenScores, Word, WordAlignment

FoundT = TypeVar("FoundT")


GREEDY = SearchConfig(beam_size=1)


@dataclass(frozen=True)
class Output:
    """One text that came out."""

    text: str
    log_prob: float = 0.0
    """Natural; nan where the search did not compute it."""
    score: float = 0.0
    """What ranked it."""
    tokens: list[int] = field(default_factory=list)
    finished: bool = True
    """False: cut at the bound on its length."""
    token_scores: TokenScores | None = None
    """Of the tokens and, if finished, the end, where they were asked for: those of attention, without CTC or a language model."""
    words: list[Word] = field(default_factory=list)
    """With their confidence, where scores of tokens or times of words were asked for."""
    alignment: WordAlignment | None = None
    """Which source words its words were written from, where that was asked for."""


@dataclass(frozen=True)
class LanguageModel:
    """What judges texts alone, beside the models that write them (shallow fusion)."""

    begin: Callable[[int], Scorer]
    """The scorer of so many texts at their beginning."""
    max_length: int = sys.maxsize
    """How many tokens a text may have."""


def model_scorers(
    model: Transformer, memory: Memory, tokenizer: Tokenizer, ctc_weight: float = 0.0
) -> list[tuple[float, Scorer]]:
    """What judges the outputs of one encoder-decoder model, with weights that sum to 1: attention, and CTC beside it.

    Raises:
        ValueError: ctc_weight is not 0, but the model has no CTC head, or the tokenizer no padding to be its blank.
    """
    found: list[tuple[float, Scorer]] = [(1 - ctc_weight, ModelScorer(model, memory))]
    if ctc_weight:
        eos, blank = tokenizer.required("eos_id", "pad_id")
        ctc = CTCPrefixScorer(model.ctc_logits(memory.states), memory.lengths, eos_id=eos, blank_id=blank)
        found.append((ctc_weight, ctc))
    return found


def search(
    scorers: Sequence[tuple[float, Scorer]],
    prompts: Int[Tensor, "B P"],
    constraints: Constraints,
    config: SearchConfig,
    *,
    sampling: Sampling | None = None,
    rngs: Sequence[np.random.Generator] = (),
) -> list[list[Hypothesis]]:
    """The n hypotheses of every sentence that follow its prompt, best first in beam search.

    Args:
        scorers: pairs of weight and scorer (see decode/joint.py), all with B sentences.
        config: its beam and length penalty; not what `constraints` says.
        sampling: how to draw, where beam_size is 1 or `config.sample`, and only in that case with log-probabilities;
            without it, the likeliest token is taken each time.
        rngs: n for every sentence, to draw with.
    """
    scorer = combined(scorers)
    if config.beam_size > 1 and not config.sample:
        return beam_search(
            scorer,
            prompts,
            constraints,
            beam_size=config.beam_size,
            alpha=config.alpha,
            n_best=config.n_candidates,
            groups=config.beam_groups,
            diversity=config.diversity,
        )
    alpha = config.alpha if sampling is None or config.sample else None
    sampling = sampling or Sampling(temperature=0.0)
    found = Sampler(scorer, prompts, constraints, sampling=sampling, rngs=rngs, alpha=alpha).run()
    n = max(1, len(found) // max(1, len(prompts)))
    return [found[start : start + n] for start in range(0, len(found), n)]


@torch.inference_mode()
def shared(n: int, scorers: Iterable[tuple[float, Scorer]]) -> list[tuple[float, Scorer]]:
    """The scorers of an ensemble of n models: each model has the weight 1 / n."""
    return [(weight / n, scorer) for weight, scorer in scorers]


def search_sources(
    models: Sequence[Transformer],
    source: Shaped[Tensor, "B S *F"],
    lengths: Int[Tensor, " B"],
    config: SearchConfig,
    tokenizer: Tokenizer,
    lm: LanguageModel | None = None,
    rngs: Sequence[np.random.Generator] = (),
) -> list[list[Hypothesis]]:
    """The n best hypotheses that encoder-decoder models have for every source, best first, or samples as they are drawn.

    Args:
        models: several are an ensemble: what a token adds to a hypothesis is the mean of their log-probabilities.
        tokenizer: that of the target, which says what begins and ends a text.
        lm: what has the weight `config.lm_weight` beside the models, which have 1 together.
        rngs: `config.rngs` of every source, to draw with.

    Raises:
        ValueError: CTC is to be heard, but the model has no CTC head, or the tokenizer no padding to be its blank; or a
            language model, but there is none.
    """
    if config.lm_weight and lm is None:
        raise ValueError(
            f"lm_weight needs a language model, but lm_weight={config.lm_weight} and none is loaded; name one with --lm, or "
            "td.load(RUN, lm=...)"
        )
    bos, eos = tokenizer.required("bos_id", "eos_id")
    memories = [model.encode(source.to(model.device), lengths.to(model.device)) for model in models]
    assert memories[0].lengths is not None
    limit = min(last_position(*models), lm.max_length if lm and config.lm_weight else sys.maxsize)
    bounds = length_bounds(memories[0].lengths, config.length_ratio, config.length_extra, limit=limit)
    starts, ngram = bounds.new_full((len(bounds), 1), bos), config.no_repeat_ngram
    constraints = Constraints(bounds, eos_id=eos, suppressed=tokenizer.suppressed, no_repeat_ngram=ngram)
    pairs = zip(models, memories, strict=True)
    scorers = [each for pair in pairs for each in model_scorers(*pair, tokenizer, config.ctc_weight)]
    scorers = shared(len(models), scorers)
    if lm is not None and config.lm_weight:
        scorers.append((config.lm_weight, lm.begin(len(bounds))))
    sampling = (
        Sampling(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p) if config.sample else None
    )
    return search(scorers, starts, constraints, config, sampling=sampling, rngs=rngs)


def last_position(*models: Transformer) -> int:
    """How many positions a sequence may have in all of these models: learned ones end, others do not."""
    configs = [model.config for model in models]
    return min([config.max_positions for config in configs if config.positions == "learned"], default=sys.maxsize)


def in_batches(
    lengths: Sequence[int], batch_tokens: int, work: Callable[[list[int]], Sequence[FoundT]]
) -> Iterator[tuple[int, FoundT]]:
    """Do some work for rows of different lengths, batch by batch; yield each row's number and what was found for it.

    Args:
        batch_tokens: bound on rows * longest of a batch.
        work: from the numbers of the rows of a batch to what is found for them, in that order.
    """
    if lengths:
        for batch in reversed(bucket(np.array(lengths)[:, None], batch_tokens)):  # longest first: memory peaks early
            rows: list[int] = batch.tolist()
            yield from zip(rows, work(rows), strict=True)


def outputs_of(tokenizer: Tokenizer, hypotheses: list[Hypothesis], n_best: int) -> list[Output]:
    """Texts of one line each. There are always n_best, the last one repeated: n lines in, n * n_best lines out."""
    found = [
        Output(one_line(text), h.log_prob, h.score, h.tokens, h.finished)
        for text, h in zip(tokenizer.decode([h.tokens for h in hypotheses]), hypotheses, strict=True)
    ]
    return found + found[-1:] * (n_best - len(found))


def one_line(text: str) -> str:
    """The text without line breaks, which bytes could spell."""
    return text.replace("\n", " ").replace("\r", " ")


def check_list(given: object, rule: str) -> None:
    """Raise ValueError where one string or path was given instead of a list; `rule` says who takes a list of what."""
    if isinstance(given, str | Path):
        raise ValueError(f"{rule}, but got one string; use [{str(given)[:20]!r}]")
