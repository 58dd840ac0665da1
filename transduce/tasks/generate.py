"""A prompt in, what follows it out: a decoder alone as something one calls."""

import logging
from collections import defaultdict
from collections.abc import Callable, Generator as Pieces, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import overload

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.language import encode_text
from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import RulesConfig
from transduce.decode.phrases import Prefix, vocabulary
from transduce.decode.rules import Constraints
from transduce.decode.sample import Sampler
from transduce.decode.scorer import ModelScorer, Scorer, combined
from transduce.errors import InputError
from transduce.model.config import Tokens
from transduce.model.transformer import Transformer
from transduce.tasks.base import Task, check_list, check_positions, last_position, token_log_probs
from transduce.tasks.config import GenerationConfig
from transduce.tasks.outputs import Output, TextStream, TokenScores, with_scores
from transduce.tasks.search import check_suppressed, phrase_rules

logger = logging.getLogger("transduce")


class Generator(Task):
    """A prompt in, or a list of prompts, as many texts out, in the same order."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, decoding: GenerationConfig | None = None
    ) -> None:
        config = model.config
        if config.encoder is not None or config.decoder is None:
            raise InputError(
                "a generator takes a decoder alone, but this model has an encoder; use "
                "td.load(directory)"
            )
        assert isinstance(config.decoder.input, Tokens)
        if config.decoder.input.vocab_size < tokenizer.vocab_size:
            raise InputError(
                "the model must have every id of its tokenizer, but it has "
                f"{config.decoder.input.vocab_size} and the tokenizer {tokenizer.vocab_size}"
            )
        super().__init__(model, tokenizer)
        self.decoding = decoding or GenerationConfig()
        """The run's own. Its rules hold where a call leaves them at their defaults."""
        self.suppressed = (
            *tokenizer.suppressed,
            *range(tokenizer.vocab_size, config.decoder.input.vocab_size),
        )
        """Ids without a text: special ones, and rows that only fill up the table."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is a sequence of str
        self, prompts: str, config: GenerationConfig | None = None
    ) -> str: ...
    @overload
    def __call__(
        self, prompts: Sequence[str], config: GenerationConfig | None = None
    ) -> list[str]: ...
    def __call__(
        self, prompts: str | Sequence[str], config: GenerationConfig | None = None
    ) -> str | list[str]:
        """The first text that follows a prompt, or each prompt in a list."""
        if isinstance(prompts, str):
            return self([prompts], config)[0]
        return [texts[0].text for texts in self.generate(prompts, config)]

    def generate(
        self,
        prompts: Sequence[str],
        config: GenerationConfig | None = None,
        *,
        first_prompt: int = 0,
        first_text: int = 0,
        stop: Sequence[str] = (),
        token_scores: bool = False,
    ) -> list[list[Output]]:
        """n texts after every prompt; text k of prompt i depends on (model, prompt, seed, i, k)
        alone.

        An empty prompt is BOS, or a line break where there is none. A prompt beyond the learned
        positions keeps its last tokens, so that max_length new ones have room, but at least half of
        the positions; where these end, so does the text. Both with a warning. Log-probability and
        score of outputs are nan unless a beam search found them.

        Args:
            first_prompt: the number of prompts[0], where these are a part of all prompts.
            first_text: the number of each prompt's first text, among all its texts.
            stop: strings, the first of which ends a text, as its last part; they may span tokens.
            token_scores: give outputs the log-probabilities of their tokens, without any
                temperature, and the confidence of their words.

        Raises:
            InputError: beam search and `stop`, as a beam knows no text before its end.
        """
        check_list(prompts, "generate takes a list of prompts", of_text=True)
        config = self._with_rules(config)
        rows = [self.encode(prompt, config.max_length) for prompt in prompts]
        spaces = list(map(self._lost_space, prompts))
        outputs: list[list[Output]] = [[] for _ in prompts]

        def search(batch: tuple[list[int], range]) -> list[list[Hypothesis]]:
            numbers, samples = batch
            rngs = [config.rng(first_prompt + i, first_text + k) for i in numbers for k in samples]
            return self._search(
                [rows[i] for i in numbers], [spaces[i] for i in numbers], config, rngs, stop
            )

        batches = list(_batches([len(row) for row in rows], config))
        for (numbers, _), hypotheses in self._at_once(batches, search):
            for i, best in zip(numbers, hypotheses, strict=True):
                text = partial(TextStream, self.tokenizer, rows[i], spaces[i] is not None, stop)
                outputs[i] += [_output(text(), h) for h in best]
        if token_scores:
            for row, some in zip(rows, outputs, strict=True):
                some[:] = [self._scored(row, output) for output in some]
        return outputs

    def stream(
        self,
        prompt: str,
        config: GenerationConfig | None = None,
        *,
        prompt_number: int = 0,
        text_number: int = 0,
        stop: Sequence[str] = (),
    ) -> Pieces[str, None, Output]:
        """One text after a prompt, piece by piece as it comes; together they are that of
        `generate`.

        Bytes that are no character yet are held back. Closing the generator stops the search. It
        returns the whole output.

        Args:
            prompt_number: i of (model, prompt, seed, i, k), which the text depends on.
            text_number: its k.
            stop: strings, each of which ends the text, as its last part.

        Raises:
            InputError: beam search, which knows no text before its end.
        """
        config = self._with_rules(config)
        if config.beam_size > 1:
            raise InputError(
                f"a text comes piece by piece if it is sampled, but beam_size={config.beam_size}; "
                "set it to 1, or use generate"
            )
        row = self.encode(prompt, config.max_length)
        space = self._lost_space(prompt)
        rng = config.rng(prompt_number, text_number)
        sampler = self._sampler([row], [space], config, [rng], stop)
        text = TextStream(self.tokenizer, row, space is not None, stop)
        tokens: list[int] = []
        pieces: list[str] = []
        finished = False
        while sampler.running:
            token = int(sampler.step())
            finished = token == self.tokenizer.eos_id
            new = [] if finished else [token]
            tokens += new
            if piece := text.add(new, last=not sampler.running):
                pieces.append(piece)
                yield piece
        return Output("".join(pieces), tokens=tokens, finished=finished)

    @torch.no_grad()
    def score(self, texts: Sequence[str]) -> list[TokenScores]:
        """Log-probabilities of the tokens of each text, made as for training (`encode_text`).

        BOS stands first where the tokenizer has one; without one, the first token is given and not
        predicted. Where EOS is another one, it is predicted at the end of every line that is not
        blank, and of a text of blank lines. In an ensemble, a token's log-probability is the mean
        of those that the models give it.

        Raises:
            InputError: a text is longer than learned positions; `measure_perplexity` takes windows
                of it.
        """
        check_list(texts, "score takes a list of texts", of_text=True)
        scores = []
        ends = [i for i in (self.tokenizer.bos_id, self.tokenizer.eos_id) if i is not None]
        for number, text in enumerate(texts, start=1):
            encoded = encode_text(self.tokenizer, text).tolist() or ends
            ids = torch.tensor(encoded, dtype=torch.int64, device=self.model.device)
            check_positions(f"text {number}", len(ids) - 1, self.engines)
            scores.append(
                self._token_scores(ids, 1) if len(ids) > 1 else TokenScores([], torch.empty(0))
            )
        return scores

    def scorer(self, ids: Int[Tensor, "B P"]) -> Scorer:
        """The scorer of the tokens after these prompts."""
        weight = 1 / len(self.engines)
        return combined([(weight, ModelScorer(model, prompts=ids)) for model in self.engines])

    def _with_rules(self, config: GenerationConfig | None) -> GenerationConfig:
        """The configuration of a call, with the run's own rules where it has none."""
        if config is None:
            return self.decoding
        own = {
            rule.name: getattr(self.decoding, rule.name)
            for rule in fields(RulesConfig)
            if getattr(config, rule.name) == rule.default
        }
        return replace(config, **own)

    def _token_scores(self, ids: Int[Tensor, " T"], first: int) -> TokenScores:
        """The scores of the tokens from `first` on, each given those before it."""
        tokens = ids[first:]
        log_probs = [
            token_log_probs(model, model.decoder_states(ids[None, :-1])[0, first - 1 :], tokens)
            for model in self.engines
        ]
        return TokenScores(
            self.tokenizer.tokens(tokens.tolist()), torch.stack(log_probs).mean(dim=0).cpu()
        )

    def _search(
        self,
        prompts: Sequence[list[int]],
        spaces: Sequence[Prefix | None],
        config: GenerationConfig,
        rngs: Sequence[np.random.Generator],
        stop: Sequence[str],
    ) -> list[list[Hypothesis]]:
        """What follows prompts of one length."""
        if config.beam_size == 1:
            return self._sampler(prompts, spaces, config, rngs, stop).run()
        if stop:
            raise InputError(
                f"stop ends texts that are sampled, but beam_size={config.beam_size}; set it to 1"
            )
        ids = torch.tensor(prompts, device=self.model.device)
        constraints = self._constraints(ids, spaces, config)
        return beam_search(self.scorer(ids), ids, constraints, config.beam)

    @torch.no_grad()
    def _scored(self, prompt: list[int], output: Output) -> Output:
        """The output with scores of its tokens."""
        end = [self.tokenizer.eos_id] * output.finished
        ids = torch.tensor([*prompt, *output.tokens, *end], device=self.model.device)
        return with_scores(self.tokenizer, output, self._token_scores(ids, len(prompt)))

    def _constraints(
        self, ids: Int[Tensor, "B P"], spaces: Sequence[Prefix | None], config: GenerationConfig
    ) -> Constraints:
        """What may follow these prompts; the last new token needs no position."""
        check_suppressed(config, self.tokenizer)
        limit = last_position(*self.engines)
        bound = limit + 1 - ids.size(1)
        if bound < config.max_length:
            logger.warning("texts end after %d tokens at most (max_positions=%d)", bound, limit)
        rules = phrase_rules(self.tokenizer, config, ids, [()] * len(ids), self.model.vocab_size)
        return Constraints(
            ids.new_full((len(ids),), min(bound, config.max_length)),
            eos_id=self.tokenizer.eos_id,
            suppressed=self.suppressed,
            config=config,
            prompts=ids,
            rules=[*rules, *self.rules],
            prefixes=spaces,
        )

    def _sampler(
        self,
        prompts: Sequence[list[int]],
        spaces: Sequence[Prefix | None],
        config: GenerationConfig,
        rngs: Sequence[np.random.Generator],
        stop: Sequence[str],
    ) -> Sampler:
        """The sampler of n texts of every prompt, which end at the stop strings."""
        check_list(stop, "stop takes a list of strings", of_text=True)
        if "" in stop:
            raise InputError("a stop string must have a character, but one is empty; leave it out")
        ids = torch.tensor(prompts, device=self.model.device)
        constraints = self._constraints(ids, spaces, config)
        sampler = Sampler(self.scorer(ids), ids, constraints, config, rngs)
        if stop:
            texts = [
                TextStream(self.tokenizer, prompts[i], spaces[i] is not None)
                for i in sampler.sentences
            ]
            sampler.ends = ends_with(stop, texts)
        return sampler

    def encode(self, prompt: str, max_length: int = 1) -> list[int]:
        """Ids of a prompt, or as many of its last ones as have room, with a warning."""
        ids = self.encode_uncut(prompt)
        limit = last_position(*self.engines)
        if len(ids) <= limit:
            return ids
        n = max(limit // 2, limit + 1 - max_length, 1)
        logger.warning(
            "a prompt of %d tokens was cut to its last %d (max_positions=%d)", len(ids), n, limit
        )
        return ids[-n:]

    def _lost_space(self, prompt: str) -> Prefix | None:
        """The space at the end of a prompt where tokens leave it out, as those of SentencePiece do:
        a text behind it begins with a new word."""
        (ids,) = self.tokenizer.encode([prompt])
        if not ids or prompt[-1] != " " or self.tokenizer.surfaces[ids[-1]].endswith(b" "):
            return None
        return Prefix(vocabulary(self.tokenizer), [], b" ")

    def encode_uncut(self, prompt: str) -> list[int]:
        """Ids of a prompt of any length, with BOS where texts begin with it: at least one."""
        (ids,) = self.tokenizer.encode([prompt])
        start = self.tokenizer.bos_id
        if self.tokenizer.opening:
            ids = [*self.tokenizer.opening, *ids]
        # GPT-2's only stands between texts
        elif start is not None and (not ids or start != self.tokenizer.eos_id):
            ids = [start, *ids]
        if not ids:
            (ids,) = self.tokenizer.encode(["\n"])
        return ids


def _output(text: TextStream, h: Hypothesis) -> Output:
    return Output(text.add(h.tokens, last=True), h.log_prob, h.score, h.tokens, h.finished)


def ends_with(stop: Sequence[str], texts: Sequence[TextStream]) -> Callable[[int, int], bool]:
    """A function of a row and its next token: whether its text holds one of the strings then."""
    longest = max(map(len, stop))
    tails = [""] * len(texts)

    def ends(row: int, token: int) -> bool:
        tails[row] = tails[row][-longest:] + texts[row].add([token])
        return any(each in tails[row] for each in stop)

    return ends


def _batches(lengths: Sequence[int], config: GenerationConfig) -> Iterator[tuple[list[int], range]]:
    """Prompts of one length, as a cache has one length, and which of their n texts."""
    prompts: dict[int, list[int]] = defaultdict(list)
    for i, length in enumerate(lengths):
        prompts[length].append(i)
    texts = range(config.n if config.beam_size == 1 else 1)
    beside = max(config.beam_size, min(len(texts), config.batch_size))
    size = max(1, config.batch_size // beside)
    for _, same in sorted(prompts.items()):
        for start in range(0, len(same), size):
            for first in range(0, len(texts), config.batch_size):
                yield same[start : start + size], texts[first : first + config.batch_size]
