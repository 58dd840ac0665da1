"""Search by encoder-decoder models: from sources to hypotheses, and from these to outputs."""

import math
import sys
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.batch import pad_frames
from transduce.data.glossary import at_word
from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import RulesConfig
from transduce.decode.ctc import CTCPrefixScorer
from transduce.decode.phrases import Required, required
from transduce.decode.rules import LEAST, Constraints, Rule, Timestamps
from transduce.decode.sample import GREEDY as GREEDY_SAMPLING, Sampler
from transduce.decode.scorer import ModelScorer, Prompts, Scorer, combined
from transduce.decode.text_rules import biased, by_sentence, forbidden, lexicon
from transduce.errors import InputError, logger
from transduce.model.transformer import Memory, Transformer
from transduce.tasks.base import (
    LanguageModel,
    Request,
    Source,
    Task,
    encoded,
    last_position,
)
from transduce.tasks.config import AUTO, SearchConfig
from transduce.tasks.formats import one_line
from transduce.tasks.outputs import Output

GREEDY = SearchConfig(beam_size=1)


class SearchTask(Task):
    """A task of encoder-decoder models that search for outputs; several models are an ensemble, in
    which a token's log-probability is the mean over the models."""

    lexicon: tuple[str, ...] = ()
    """The words that may be written if `decoding.words` is "known"."""
    lm: LanguageModel | None = None
    """A language model for shallow fusion, used if `decoding.lm_weight` is not 0."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, decoding: SearchConfig | None
    ) -> None:
        super().__init__(model, tokenizer)
        self.decoding = decoding or SearchConfig()
        """The search configuration of calls that give no other."""

    @torch.inference_mode()
    def _search(
        self,
        sources: Sequence[Source],
        requests: Sequence[Request],
        config: SearchConfig,
        states: Sequence[Float[Tensor, "_ D"]] = (),
        *,
        scored: bool = True,
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses of a batch of sources, best first, or samples as they are drawn.

        Args:
            requests: one for every source. All length bounds but max_length leave room for prefixes
                and required phrases.
            states: the states of the first encoder, if they are already computed.
            scored: if False, scores and log-probabilities may be nan.

        Raises:
            InputError: ctc_weight is not 0, but the model has no CTC head, or the tokenizer no
                padding as the blank; or a language model or a lexicon is missing.
        """
        self._check(config, requests)
        memories = [encoded(model, sources) for model in self.engines[bool(states) :]]
        if states:
            rows, lengths = (each.to(self.engine.device) for each in pad_frames(states))
            memories.insert(0, Memory(rows, lengths))
        prompt = decoder_prompt(self.tokenizer, config)
        phrases = required(self.tokenizer, [request.require for request in requests])
        limit = self._limit(config, len(prompt))
        prompts = torch.tensor(prompt, device=self.engine.device).expand(len(requests), -1)
        constraints = self._constraints(memories[0], config, limit, prompts, requests, phrases)
        # CTC gives no probability to outputs that are too long for a sound
        least = [LEAST if each.has_text else -math.inf for each in requests]
        scorer = self._scorer(memories, prompts, config, least)
        if phrases or not (config.sample or config.beam_size == 1):
            hypotheses = beam_search(scorer, prompts, constraints, config, required=phrases)
        else:
            sampling = config if config.sample else GREEDY_SAMPLING
            rngs = [rng for each in requests for rng in config.rngs(each.number, each.part)]
            score = config if scored else None
            hypotheses = Sampler(scorer, prompts, constraints, sampling, rngs, score=score).run()
        if n := sum(not best.finished and len(best.tokens) >= limit for best, *_ in hypotheses):
            logger.warning("%d outputs were cut after %d tokens, as positions end there", n, limit)
        return hypotheses

    def _check(self, config: SearchConfig, requests: Sequence[Request]) -> None:
        """Raise InputError if the search lacks a part, or its settings exclude one another."""
        check_suppressed(config, self.model.vocab_size, self.tokenizer.eos_id)
        has_text = any(each.has_text for each in requests)
        if self.tokenizer.writes_phones and (config.forbid or has_text):
            raise InputError(
                "prefixes, forbidden and required phrases need tokens that spell text, but the "
                "tokens of this run are phones; leave them out"
            )
        if config.sample and any(request.require for request in requests):
            raise InputError(
                "sampling cannot require phrases, but sample=True; leave one of them out"
            )
        if config.ctc_weight and not all(engine.config.ctc for engine in self.engines):
            raise InputError(
                "ctc_weight needs a CTC head for the output text, but "
                f"ctc_weight={config.ctc_weight} and the run, or one of them, has none; leave it "
                "out"
            )
        if config.words == "known" and not self.lexicon:
            raise InputError(
                "words=known needs the lexicon of a run of speech to text, but this run has none; "
                "write words into its lexicon.txt, one in each line, or say words=any"
            )
        if config.lm_weight and self.lm is None:
            raise InputError(
                f"lm_weight needs a language model, but lm_weight={config.lm_weight} and none is "
                "loaded; name one with --lm, or td.load(RUN, lm=...)"
            )

    def _limit(self, config: SearchConfig, n_prompt: int) -> int:
        """The most tokens of an output for which there are positions, also in a language model."""
        limit = last_position(*self.engines) - n_prompt + 1
        if limit < 1:
            raise InputError(
                f"begin_with must leave room for an output, but it has {n_prompt} tokens; take "
                "fewer"
            )
        if self.lm and config.lm_weight:
            limit = min(limit, self.lm.max_length)
        if config.min_length >= limit:
            raise InputError(
                f"an output may have {limit} tokens, EOS included, as positions end there, but "
                f"min_length={config.min_length}; take a smaller one"
            )
        return limit

    def _constraints(
        self,
        memory: Memory,
        config: SearchConfig,
        limit: int,
        prompts: Prompts,
        requests: Sequence[Request],
        phrases: Required | None,
    ) -> Constraints:
        """The constraints on outputs: length bounds with room for prefixes, phrases and min_length;
        rules; and prefixes."""
        assert memory.lengths is not None
        bounds = (memory.lengths * config.length_ratio).long() + config.length_extra
        totals = phrases.totals if phrases else [0] * len(requests)
        least = [
            1 + max(config.min_length, total + (each.prefix.longest if each.prefix else 0))
            for each, total in zip(requests, totals, strict=True)
        ]
        bounds = torch.maximum(bounds, bounds.new_tensor(least))
        return Constraints(
            bounds.clamp(max=min(limit, config.max_length or sys.maxsize)),
            eos_id=self.tokenizer.required("eos_id")[0],
            suppressed=self.tokenizer.suppressed,
            config=config,
            prompts=prompts,
            rules=self._rules(config, prompts, requests),
            prefixes=[request.prefix for request in requests],
        )

    def _scorer(
        self, memories: Sequence[Memory], prompts: Tensor, config: SearchConfig, least: list[float]
    ) -> Scorer:
        """The weighted sum of attention, CTC and a language model.

        Args:
            prompts: the decoder's tokens before every output; CTC ignores them.
            least: the least log-probability that CTC gives a token, for each sentence.
        """
        scorers = list[tuple[float, Scorer]]()
        weight = config.ctc_weight
        for model, memory in zip(self.engines, memories, strict=True):
            attention = ModelScorer(model, memory, prompts=prompts)
            scorers.append(((1 - weight) / len(memories), attention))
            if weight:
                eos, blank = self.tokenizer.required("eos_id", "pad_id")
                logits = model.ctc_logits(memory.states)
                ctc = CTCPrefixScorer(
                    logits, memory.lengths, eos_id=eos, blank_id=blank, least=least
                )
                scorers.append((weight / len(memories), ctc))
        if self.lm and config.lm_weight:
            scorers.append((config.lm_weight, self.lm.begin(len(prompts))))
        return combined(scorers)

    def _rules(
        self, config: SearchConfig, prompts: Tensor, requests: Sequence[Request]
    ) -> list[Rule]:
        """The rules that need a tokenizer."""
        rules = phrase_rules(self.tokenizer, config, prompts, [each.bias for each in requests])
        if times := timestamps(self.tokenizer, config):
            rules.append(times)
        if config.words == "known":
            words = (*self.lexicon, *dict(config.glossary).values())
            known = lexicon(self.tokenizer, words)
            rules.append(by_sentence([None if each.has_text else known for each in requests]))
        return [*rules, *self.rules]


def phrase_rules(
    tokenizer: Tokenizer,
    config: RulesConfig,
    prompts: Prompts,
    bias: Sequence[Sequence[tuple[str, float]]],
    size: int = 0,
) -> list[Rule]:
    """The rules of phrases that are forbidden or biased.

    Args:
        bias: phrases of each sentence and their bias, in addition to those of the configuration.
        size: of the vocabulary, if not the tokenizer's.
    """
    ruled_out = forbidden(tokenizer, config.forbid, size) if config.forbid else None
    biases = [biased(tokenizer, (*config.biased_phrases, *own), size) for own in bias]
    both = ([ruled_out] * len(bias), prompts), (biases, None)
    return [by_sentence(rules, before) for rules, before in both if any(rules)]


def bias_of(terms: Iterable[str], bonus: float) -> tuple[tuple[str, float], ...]:
    """A bias for each term as a phrase that begins a word; none if terms are required."""
    return () if bonus == math.inf else tuple((at_word(term), bonus) for term in terms)


def timestamps(tokenizer: Tokenizer, config: SearchConfig) -> Timestamps | None:
    """The rules of timestamp tokens, if timestamps are requested.

    Raises:
        InputError: the model has no timestamp tokens.
    """
    if not config.timestamps:
        return None
    if tokenizer.timestamp_begin_id is None:
        raise InputError(
            "timestamps need timestamp tokens, as an imported Whisper has them, but this model has "
            "none; leave them out, or request the times of words (--word-times) if the run has a "
            "CTC head"
        )
    (eos,) = tokenizer.required("eos_id")
    return Timestamps(tokenizer.timestamp_begin_id, eos)


def decoder_prompt(tokenizer: Tokenizer, config: SearchConfig) -> list[int]:
    """The decoder's prompt: the tokens that `config.begin_with` names, or BOS and the tokenizer's
    `opening`.

    Raises:
        InputError: one of them is not in this vocabulary, or a language is named, too.
    """
    if config.target_language == AUTO:
        raise InputError(
            "the language must be known here, but target_language=auto, which is for transcribing "
            "alone; name it"
        )
    if names := config.begin_with.split():
        if config.target_language and tokenizer.languages:
            raise InputError(
                f"begin_with names the language among its tokens, but it is {config.begin_with!r}, "
                f"and target_language={config.target_language}; leave one of them out, in the "
                "run's config.json, too"
            )
        known = tokenizer.token_ids
        if unknown := [name for name in names if name not in known]:
            raise InputError(
                f"begin_with takes tokens of the vocabulary, but {unknown[0]!r} is not one; leave "
                "it out"
            )
        ids = [known[name] for name in names]
    else:
        tokenizer.with_eos(())  # raises an error if a language must be named
        ids = [*tokenizer.required("bos_id"), *tokenizer.opening]
    times = timestamps(tokenizer, config)
    return [i for i in ids if not times or i != times.timestamp_begin_id - 1]


def check_suppressed(rules: RulesConfig, vocab_size: int, eos_id: int | None) -> None:
    """Raise InputError if an id to suppress or to bias is not in this vocabulary, or if EOS is to
    be suppressed at every position."""
    ids = range(vocab_size)
    unknown = [i for i in rules.suppress if i not in ids or i == eos_id]
    unknown += [i for i in (*rules.suppress_first, *rules.biased_ids) if i not in ids]
    if unknown:
        raise InputError(
            f"suppress and logit_bias take ids from 0 to {vocab_size - 1} (suppress without EOS), "
            f"but one has {unknown[0]}; leave it out"
        )


def outputs_of(
    tokenizer: Tokenizer, hypotheses: list[Hypothesis], config: SearchConfig
) -> list[Output]:
    """The outputs of one source, texts of one line each.

    There are always n_best; the last one is repeated if there are fewer: n lines in, n * n_best
    lines out.
    """
    outputs = [
        Output(one_line(text), h.log_prob, h.score, h.tokens, h.finished)
        for text, h in zip(
            tokenizer.decode([h.tokens for h in hypotheses]), hypotheses, strict=True
        )
    ]
    return outputs + outputs[-1:] * (config.n_best - len(outputs))
