"""Search by encoder-decoder models: from sources to hypotheses, and from these to outputs."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.beam import beam_search
from transduce.decode.config import RulesConfig
from transduce.decode.constraints import LEAST, Constraints
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.phrases import forbidden, lexicon
from transduce.decode.required import Required, required
from transduce.decode.rules import Rule, Timestamps
from transduce.decode.sample import GREEDY as GREEDY_SAMPLING, Sampler
from transduce.decode.scorer import CoverageScorer, ModelScorer, Scorer, combined
from transduce.decode.shortlist import Shortlist, ShortlistScorer
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.model.transformer import Memory
from transduce.score.measures import minimum_bayes_risk
from transduce.tasks.config import SearchConfig
from transduce.tasks.request import Request, Resources
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
    """Of the tokens and, if finished, the end, where they were asked for: those of attention,
    without CTC or a language model."""
    words: list[Word] = field(default_factory=list)
    """With their confidence, where scores of tokens or times of words were asked for."""
    alignment: WordAlignment | None = None
    """Which source words its words were written from, where that was asked for."""
    no_speech_prob: float | None = None
    """How likely it is that nobody speaks, where that was asked for and can be measured; see
    no_speech.py."""


@torch.inference_mode()
def search_sources(
    models: Sequence[Engine],
    source: Shaped[Tensor, "B S *F"],
    lengths: Int[Tensor, " B"],
    config: SearchConfig,
    tokenizer: Tokenizer,
    requests: Sequence[Request],
    resources: Resources,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of encoder-decoder models for every source, best first, or samples as
    they are drawn.

    Args:
        models: several are an ensemble: what a token adds to a hypothesis is the mean of their
            log-probabilities.
        tokenizer: that of the target.
        requests: of every source. Bounds on the length leave room for prefixes and required
            phrases, but max_length.

    Raises:
        InputError: CTC has a weight, but the model has no CTC head, or the tokenizer no padding to
            be its blank; or the search lacks a language model, or known words.
    """
    resources.check(config)
    prompt = beginning(tokenizer, config)
    memories = [model.encode(source.to(model.device), lengths.to(model.device)) for model in models]
    phrases = required(tokenizer, [request.require for request in requests])
    limit = min(last_position(*models) - len(prompt) + 1, config.max_length or sys.maxsize)
    if limit < 1:
        raise InputError(
            f"begin_with must leave room for an output, but it has {len(prompt)} tokens; take fewer"
        )
    if resources.lm and config.lm_weight:
        limit = min(limit, resources.lm.max_length)
    bounds = _length_bounds(memories[0], config, limit, requests, phrases)
    if config.shortlist and resources.shortlist:
        ids = source.to(models[0].device)
        return _search_shortlist(
            models[0], memories[0], ids, bounds, config, tokenizer, resources.shortlist
        )
    check_suppressed(config, tokenizer)
    prompts = bounds.new_tensor(prompt).expand(len(bounds), -1)
    constraints = Constraints(
        bounds,
        eos_id=tokenizer.required("eos_id")[0],
        suppressed=tokenizer.suppressed,
        config=config,
        prompts=prompts,
        rules=_rules(tokenizer, config, prompts, requests, resources.words),
        prefixes=[request.prefix for request in requests],
    )
    # CTC finds impossible what is too long for a sound
    must_come = phrases or any(request.prefix for request in requests)
    least = LEAST if must_come else -math.inf
    scorers = list[tuple[float, Scorer]]()
    for model, memory in zip(models, memories, strict=True):
        weighted = model_scorers(model, memory, tokenizer, config, prompts, least)
        scorers += [(weight / len(models), scorer) for weight, scorer in weighted]
    if resources.lm and config.lm_weight:
        scorers.append((config.lm_weight, resources.lm.begin(len(bounds))))
    rngs = [rng for each in requests for rng in config.rngs(each.number, each.part)]
    return _search(scorers, prompts, constraints, config, phrases, rngs)


def model_scorers(
    model: Engine,
    memory: Memory,
    tokenizer: Tokenizer,
    config: SearchConfig,
    prompts: Tensor,
    least: float,
) -> list[tuple[float, Scorer]]:
    """The scorers of one encoder-decoder model, with weights that sum to 1: attention, and CTC
    beside it.

    Args:
        prompts: the tokens of attention before every output; CTC ignores them.
        least: the least log-probability that CTC gives a token.

    Raises:
        InputError: ctc_weight is not 0, but the model has no CTC head, or the tokenizer no padding
            to be its blank.
    """
    weight = config.ctc_weight
    attention = ModelScorer(model, memory, prompts=prompts)
    if config.coverage_penalty and config.beam_size > 1 and not config.sample and weight < 1:
        assert model.config.decoder is not None
        layer = max(0, model.config.decoder.n_layers - 2)  # that of `Alignment.mean`
        attention = CoverageScorer(model, memory, prompts, layer=layer)
    if not weight:
        return [(1.0, attention)]
    eos, blank = tokenizer.required("eos_id", "pad_id")
    logits = model.ctc_logits(memory.states)
    ctc = CTCPrefixScorer(logits, memory.lengths, eos_id=eos, blank_id=blank, least=least)
    return [(1 - weight, attention), (weight, ctc)]


def _search(
    scorers: Sequence[tuple[float, Scorer]],
    prompts: Int[Tensor, "B P"],
    constraints: Constraints,
    config: SearchConfig,
    phrases: Required | None = None,
    rngs: Sequence[np.random.Generator] = (),
) -> list[list[Hypothesis]]:
    """The n hypotheses of every sentence that follow its prompt, best first in beam search."""
    scorer = combined(scorers)
    if phrases and config.sample:
        raise InputError("samples know no required phrases, but sample=True; leave one of them out")
    if config.sample or (config.beam_size == 1 and not phrases):
        sampling = config if config.sample else GREEDY_SAMPLING
        sampler = Sampler(scorer, prompts, constraints, sampling=sampling, rngs=rngs, score=config)
        return sampler.run_by_sentence()
    covering = [scorer for _, scorer in scorers if isinstance(scorer, CoverageScorer)]

    def coverage() -> Float[Tensor, " N"]:
        return torch.stack([each.coverage() for each in covering]).mean(dim=0)

    return beam_search(
        scorer,
        prompts,
        constraints,
        replace(config, n_best=config.n_candidates),
        required=phrases,
        coverage=coverage if covering else None,
    )


def _length_bounds(
    memory: Memory,
    config: SearchConfig,
    limit: int,
    requests: Sequence[Request],
    phrases: Required | None,
) -> Int[Tensor, " B"]:
    """The most tokens of each output, with room for prefixes and phrases."""
    assert memory.lengths is not None
    bounds = (memory.lengths * config.length_ratio).long() + config.length_extra
    fixed = [1 + each.prefix.longest if each.prefix else 1 for each in requests]
    totals = phrases.totals if phrases else [0] * len(fixed)
    least = bounds.new_tensor([n + total for n, total in zip(fixed, totals, strict=True)])
    return torch.maximum(bounds, least).clamp(max=limit)


def _rules(
    tokenizer: Tokenizer,
    config: SearchConfig,
    prompts: Tensor,
    requests: Sequence[Request],
    words: tuple[str, ...],
) -> list[Rule]:
    """The rules that need a tokenizer."""
    rules: list[Rule] = []
    if config.forbid:
        rules.append(forbidden(tokenizer, config.forbid).rule(prompts))
    if times := timestamps(tokenizer, config):
        rules.append(times)
    if config.words == "known":
        free = {i for i, request in enumerate(requests) if request.has_text}
        rules.append(lexicon(tokenizer, words).rule(free=free))
    return rules


def _search_shortlist(
    model: Engine,
    memory: Memory,
    source: Int[Tensor, "B S"],
    bounds: Int[Tensor, " B"],
    config: SearchConfig,
    tokenizer: Tokenizer,
    shortlist: Shortlist,
) -> list[list[Hypothesis]]:
    """A search over the few tokens that this batch may need, by their numbers among these."""
    assert memory.lengths is not None
    ids, allowed = shortlist.choose(source, memory.lengths)
    names: list[int] = ids.tolist()
    bos, eos = map(names.index, tokenizer.required("bos_id", "eos_id"))
    prompts = bounds.new_full((len(bounds), 1), bos)
    suppressed = [i for i, name in enumerate(names) if name in tokenizer.suppressed]
    constraints = Constraints(
        bounds, eos_id=eos, suppressed=suppressed, config=config, prompts=prompts
    )
    scorer = ShortlistScorer(model, memory, ids, allowed)
    hypotheses = _search([(1.0, scorer)], prompts, constraints, config)
    return [
        [replace(h, tokens=[names[token] for token in h.tokens]) for h in each]
        for each in hypotheses
    ]


def timestamps(tokenizer: Tokenizer, config: SearchConfig) -> Timestamps | None:
    """The rules of times, if they are to come out.

    Raises:
        InputError: the model knows none.
    """
    if not config.timestamps:
        return None
    if tokenizer.timestamp_begin_id is None:
        raise InputError(
            "timestamps come from tokens of time, as an imported Whisper has them, but this model "
            "has none; leave them out, "
            "or ask for the times of words (--word-times) where the run has a CTC head"
        )
    (eos,) = tokenizer.required("eos_id")
    return Timestamps(tokenizer.timestamp_begin_id, eos)


def beginning(tokenizer: Tokenizer, config: SearchConfig) -> list[int]:
    """What stands before every output: the tokens that `config.begin_with` names, or BOS and what
    opens every text.

    Raises:
        InputError: one of them is no token of this vocabulary.
    """
    names = config.begin_with.split()
    if not names:
        tokenizer.with_eos(())  # which refuses to write in no language
        ids = [*tokenizer.required("bos_id"), *tokenizer.opening]
        times = timestamps(tokenizer, config)
        return [i for i in ids if not times or i != times.timestamp_begin_id - 1]
    known = {name: i for i, name in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    for name in names:
        if name not in known:
            raise InputError(
                f"begin_with takes tokens of the vocabulary, but {name!r} is none; leave it out"
            )
    return [known[name] for name in names]


def check_suppressed(rules: RulesConfig, tokenizer: Tokenizer) -> None:
    """Raise InputError if an id to suppress is none of this vocabulary, or marks the end of more
    than a beginning."""
    ids = range(tokenizer.vocab_size)
    unknown = [i for i in rules.suppress if i not in ids or i == tokenizer.eos_id]
    unknown += [i for i in rules.suppress_first if i not in ids]
    if unknown:
        raise InputError(
            f"suppress takes ids of 0 to {tokenizer.vocab_size - 1} except that of the end, but it "
            f"has {unknown[0]}; leave it out"
        )


def last_position(*models: Engine, source: bool = False) -> int:
    """How many positions a sequence may have in all of these models: learned ones end, others do
    not.

    Args:
        source: of the encoder, not of the decoder.
    """
    limit = sys.maxsize
    for model in models:
        encoder, decoder = model.config.encoder, model.config.decoder
        config = model.config.for_stack(encoder if source or decoder is None else decoder)
        if config.positions == "learned":
            limit = min(limit, config.max_positions)
    return limit


def outputs_of(
    tokenizer: Tokenizer, hypotheses: list[Hypothesis], config: SearchConfig
) -> list[Output]:
    """The candidates of one source, texts of one line each.

    There are always as many, the last one repeated: n lines in, n * n_best lines out.
    """
    outputs = [
        Output(one_line(text), h.log_prob, h.score, h.tokens, h.finished)
        for text, h in zip(
            tokenizer.decode([h.tokens for h in hypotheses]), hypotheses, strict=True
        )
    ]
    return outputs + outputs[-1:] * (config.n_candidates - len(outputs))


def chosen(outputs: list[Output], config: SearchConfig) -> list[Output]:
    """The n_best of the outputs of one source, as they are, or those of the highest expected
    `config.mbr`."""
    if config.mbr == "none":
        return outputs
    if not config.sample:
        outputs = list({tuple(output.tokens): output for output in outputs}.values())
    ranked = minimum_bayes_risk(
        [output.text for output in outputs],
        [output.log_prob for output in outputs],
        config.mbr,
        sampled=config.sample,
    )
    best = [replace(outputs[i], score=score) for i, score in ranked]
    return (best + best[-1:] * config.n_best)[: config.n_best]


def one_line(text: str) -> str:
    """The text without line breaks, which bytes could spell."""
    return text.replace("\n", " ").replace("\r", " ")
