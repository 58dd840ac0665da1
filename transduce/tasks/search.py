"""How to search, and the search itself: from what flows into a model to the token ids that come out."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.beam import beam_search
from transduce.decode.config import RulesConfig
from transduce.decode.constraints import LEAST, Constraints, length_bounds
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.joint import combined
from transduce.decode.phrases import Prefix, Required
from transduce.decode.sample import Sampler, Sampling
from transduce.decode.scorer import ModelScorer, Scorer
from transduce.decode.shortlist import Shortlist, ShortlistScorer
from transduce.decode.timestamps import Timestamps
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.model.transformer import Memory
from transduce.tasks.config import SearchConfig
from transduce.tasks.coverage import CoverageScorer
from transduce.tasks.lexicon import lexicon
from transduce.tasks.phrases import forbidden
from transduce.tasks.words import TokenScores, Word, WordAlignment

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
    no_speech_prob: float | None = None
    """How likely it is that nobody speaks, where that was asked for and can be measured; see no_speech.py."""


@dataclass(frozen=True)
class LanguageModel:
    """What judges texts alone, beside the models that write them (shallow fusion)."""

    begin: Callable[[int], Scorer]
    """The scorer of so many texts at their beginning."""
    max_length: int = sys.maxsize
    """How many tokens a text may have."""


def model_scorers(
    model: Engine,
    memory: Memory,
    tokenizer: Tokenizer,
    ctc_weight: float = 0.0,
    prompts: Int[Tensor, "B P"] | None = None,
    *,
    least: float = -math.inf,
) -> list[tuple[float, Scorer]]:
    """What judges the outputs of one encoder-decoder model, with weights that sum to 1: attention, and CTC beside it.

    Args:
        prompts: what attention has before every output, where that is more than BOS; CTC knows nothing of it.
        least: the least log-probability that CTC gives a token.

    Raises:
        InputError: ctc_weight is not 0, but the model has no CTC head, or the tokenizer no padding to be its blank.
    """
    found: list[tuple[float, Scorer]] = [(1 - ctc_weight, ModelScorer(model, memory, prompts=prompts))]
    if ctc_weight:
        eos, blank = tokenizer.required("eos_id", "pad_id")
        ctc = CTCPrefixScorer(model.ctc_logits(memory.states), memory.lengths, eos_id=eos, blank_id=blank, least=least)
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
    coverage: Sequence[CoverageScorer] = (),
    ends: Callable[[int, int], bool] | None = None,
) -> list[list[Hypothesis]]:
    """The n hypotheses of every sentence that follow its prompt, best first in beam search.

    Args:
        scorers: pairs of weight and scorer (see decode/joint.py), all with B sentences.
        config: its beam and length penalty; not what `constraints` says.
        sampling: how to draw, where beam_size is 1 or `config.sample`, with log-probabilities then; else the likeliest.
        rngs, ends: n for every sentence, to draw with; where a hypothesis ends besides, if it is sampled (see Sampler).
        coverage: those of the scorers that know the coverage, where beam search shall use it: the mean of theirs.
    """
    scorer = combined(scorers)
    if constraints.required and config.sample:
        raise InputError("samples know no required phrases, but sample=True; leave one of them out")
    if not config.sample and (config.beam_size > 1 or constraints.required):
        how: dict[str, Any] = {"beam_size": config.beam_size, "alpha": config.alpha, "n_best": config.n_candidates}
        how |= {"groups": config.beam_groups, "diversity": config.diversity}
        how |= {"length_offset": config.length_offset, "early_stopping": config.early_stopping}
        how["finished_first"] = config.at_max_length == "finished_first"
        if coverage:
            how["coverage"] = lambda: (
                config.coverage_penalty * torch.stack([each.coverage() for each in coverage]).mean(dim=0)
            )
        return beam_search(scorer, prompts, constraints, **how)
    alpha = config.alpha if sampling is None or config.sample else None
    drawn = sampling or Sampling(temperature=0.0)
    sampler = Sampler(scorer, prompts, constraints, sampling=drawn, rngs=rngs, alpha=alpha, offset=config.length_offset)
    sampler.ends = ends
    found = sampler.run()
    n = max(1, len(found) // max(1, len(prompts)))
    return [found[start : start + n] for start in range(0, len(found), n)]


def shared(n: int, scorers: Iterable[tuple[float, Scorer]]) -> list[tuple[float, Scorer]]:
    """The scorers of an ensemble of n models: each model has the weight 1 / n."""
    return [(weight / n, scorer) for weight, scorer in scorers]


@torch.inference_mode()
def search_sources(
    models: Sequence[Engine],
    source: Shaped[Tensor, "B S *F"],
    lengths: Int[Tensor, " B"],
    config: SearchConfig,
    tokenizer: Tokenizer,
    *,
    prefixes: Sequence[Prefix | None] = (),
    required: Required | None = None,
    shortlist: Shortlist | None = None,
    words: tuple[str, ...] = (),
    lm: LanguageModel | None = None,
    rngs: Sequence[np.random.Generator] = (),
) -> list[list[Hypothesis]]:
    """The n best hypotheses that encoder-decoder models have for every source, best first, or samples as they are drawn.

    Args:
        models: several are an ensemble: what a token adds to a hypothesis is the mean of their log-probabilities.
        tokenizer: that of the target, which says what begins and ends a text.
        prefixes: what each output begins with, if anything.
        required: what each output must hold. Bounds on the length leave room for it and for prefixes, but max_length.
        shortlist: what the tokens of a source may become, for a search by one model whose configuration wants that.
        words: the only ones that come out where `config.words` is "known", but with a prefix or required phrases.
        lm: what has the weight `config.lm_weight` beside the models, which have 1 together.
        rngs: `config.rngs` of every source, to draw with.

    Raises:
        InputError: CTC is to be heard, but the model has no CTC head, or the tokenizer no padding to be its blank; or a
            language model, or known words, but there is none.
    """
    if config.words == "known" and not words:
        raise InputError(
            "words=known needs the lexicon of a run of speech to text, but this run has none; write words into its lexicon.txt, one in "
            "each line, or say words=any"
        )
    if config.lm_weight and lm is None:
        raise InputError(
            f"lm_weight needs a language model, but lm_weight={config.lm_weight} and none is loaded; name one with --lm, or "
            "td.load(RUN, lm=...)"
        )
    (eos,) = tokenizer.required("eos_id")
    prompt = beginning(tokenizer, config)
    memories = [model.encode(source.to(model.device), lengths.to(model.device)) for model in models]
    source_lengths = memories[0].lengths
    assert source_lengths is not None
    limit = min(last_position(*models) - len(prompt) + 1, config.max_length or sys.maxsize)
    if limit < 1:
        raise InputError(f"begin_with must leave room for an output, but it has {len(prompt)} tokens; take fewer")
    if lm is not None and config.lm_weight:
        limit = min(limit, lm.max_length)
    bounds = length_bounds(source_lengths, config.length_ratio, config.length_extra, limit=limit)
    if any(prefixes) or required:
        held = required.totals if required else [0] * len(bounds)
        begun = [prefix.longest if prefix else 0 for prefix in prefixes] or [0] * len(bounds)
        room = bounds.new_tensor([1 + sum(pair) for pair in zip(begun, held, strict=True)])
        bounds = torch.maximum(bounds, room).clamp_max(limit)
    if shortlist is not None:
        source = source.to(models[0].device)
        return _search_shortlist(models[0], memories[0], source, bounds, config, tokenizer, shortlist)
    starts = bounds.new_tensor(prompt).expand(len(bounds), -1)
    check_suppressed(config, tokenizer)
    told: dict[str, Any] = {"rules": config, "prompts": starts, "forbidden": forbidden(tokenizer, config.forbid)}
    told |= {"prefixes": prefixes, "required": required, "timestamps": timestamps(tokenizer, config)}
    told["lexicon"] = lexicon(tokenizer, words) if config.words == "known" else None
    constraints = Constraints(bounds, eos_id=eos, suppressed=tokenizer.suppressed, **told)
    least = LEAST if any(prefixes) or required else -math.inf  # CTC finds impossible what is too long for a sound
    scorers, coverage = list[tuple[float, Scorer]](), list[CoverageScorer]()
    for model, memory in zip(models, memories, strict=True):
        own = model_scorers(model, memory, tokenizer, config.ctc_weight, starts, least=least)
        if config.coverage_penalty and config.beam_size > 1 and not config.sample and own[0][0]:
            coverage.append(CoverageScorer(model, memory, starts))
            own[0] = own[0][0], coverage[-1]
        scorers += shared(len(models), own)
    if lm is not None and config.lm_weight:
        scorers.append((config.lm_weight, lm.begin(len(bounds))))
    sampling = (
        Sampling(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p) if config.sample else None
    )
    return search(scorers, starts, constraints, config, sampling=sampling, rngs=rngs, coverage=coverage)


def _search_shortlist(
    model: Engine,
    memory: Memory,
    source: Int[Tensor, "B S"],
    bounds: Int[Tensor, " B"],
    config: SearchConfig,
    tokenizer: Tokenizer,
    shortlist: Shortlist,
) -> list[list[Hypothesis]]:
    """The same over the few tokens that this batch may need, in whose numbers the search is done."""
    assert memory.lengths is not None
    bos, eos = tokenizer.required("bos_id", "eos_id")
    ids, allowed = shortlist.choose(source, memory.lengths)
    scorer = ShortlistScorer(model, memory, ids, allowed, model.projection(ids))
    names: list[int] = ids.tolist()
    own = {name: i for i, name in enumerate(names)}
    starts = bounds.new_full((len(bounds), 1), own[bos])
    suppressed = [own[i] for i in tokenizer.suppressed if i in own]
    constraints = Constraints(bounds, eos_id=own[eos], suppressed=suppressed, rules=config, prompts=starts)
    found = search([(1.0, scorer)], starts, constraints, config)
    return [[replace(h, tokens=[names[token] for token in h.tokens]) for h in each] for each in found]


def timestamps(tokenizer: Tokenizer, config: SearchConfig) -> Timestamps | None:
    """The rules of times, if they are to come out.

    Raises:
        InputError: the model knows none.
    """
    if not config.timestamps:
        return None
    if tokenizer.timestamp_begin_id is None:
        raise InputError(
            "timestamps come from tokens of time, as an imported Whisper has them, but this model has none; leave them out, "
            "or ask for the times of words (--word-times) where the run has a CTC head"
        )
    (eos,) = tokenizer.required("eos_id")
    return Timestamps(tokenizer.timestamp_begin_id, eos)


def beginning(tokenizer: Tokenizer, config: SearchConfig) -> list[int]:
    """What stands before every output: the tokens that `config.begin_with` names, or BOS and what opens every text.

    Raises:
        InputError: one of them is no token of this vocabulary.
    """
    names = config.begin_with.split()
    if not names:
        tokenizer.with_eos(())  # which refuses to write in no language
        times = timestamps(tokenizer, config)
        return [
            i
            for i in (*tokenizer.required("bos_id"), *tokenizer.opening)
            if not times or i != times.timestamp_begin_id - 1
        ]
    known = {name: i for i, name in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise InputError(
                f"begin_with takes tokens of the vocabulary, but {name!r} is none; "
                + (f"did you mean {near[0]!r}?" if near else "leave it out")
            )
    return [known[name] for name in names]


def check_suppressed(rules: RulesConfig, tokenizer: Tokenizer) -> None:
    """Raise InputError if an id to suppress is none of this vocabulary, or marks the end of more than a beginning."""
    wrong = [i for i in rules.suppress if i >= tokenizer.vocab_size or i == tokenizer.eos_id]
    wrong += [i for i in rules.suppress_first if i >= tokenizer.vocab_size]
    if wrong:
        raise InputError(
            f"suppress takes ids of 0 to {tokenizer.vocab_size - 1} except that of the end, but it has {wrong[0]}; leave "
            "it out"
        )


def last_position(*models: Engine, source: bool = False) -> int:
    """How many positions a sequence may have in all of these models: learned ones end, others do not.

    Args:
        source: of the encoder, not of the decoder.
    """
    wholes = [model.config for model in models]
    configs = [each.of(each.encoder if source or each.decoder is None else each.decoder) for each in wholes]
    return min([config.max_positions for config in configs if config.positions == "learned"], default=sys.maxsize)


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
