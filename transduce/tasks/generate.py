"""Text generation from prompts with a decoder-only model."""

from collections import defaultdict
from collections.abc import Generator as Pieces, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.data.base_tokenizer import TextStream, Tokenizer
from transduce.data.language import encode_text
from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import RulesConfig
from transduce.decode.phrases import Prefix, vocabulary
from transduce.decode.rules import Constraints
from transduce.decode.sample import Sampler
from transduce.decode.scorer import ModelScorer, Prompts, Scorer, combined
from transduce.errors import InputError, logger
from transduce.model.transformer import Transformer
from transduce.tasks.base import Task, check_list, check_positions, last_position, token_log_probs
from transduce.tasks.config import GenerationConfig
from transduce.tasks.outputs import Output, TokenScores, with_scores
from transduce.tasks.search import check_suppressed, phrase_rules


class Generator(Task):
    """Continues a prompt, or each prompt in a list, in the same order."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, decoding: GenerationConfig | None = None
    ) -> None:
        config = model.config
        if config.encoder is not None or config.decoder is None:
            raise InputError(
                "a generator takes a decoder-only model, but this model has an encoder; use "
                "td.load(directory)"
            )
        if config.vocab_size < tokenizer.vocab_size:
            raise InputError(
                f"the model must have every id of its tokenizer, but it has {config.vocab_size} "
                f"and the tokenizer {tokenizer.vocab_size}"
            )
        super().__init__(model, tokenizer)
        self.decoding = decoding or GenerationConfig()
        """The run's own configuration. Its rules apply where the config of a call has their
        defaults; a setting of the call, such as repetition_penalty=1.0, takes precedence."""
        unused = range(tokenizer.vocab_size, config.vocab_size)
        self.suppressed = (*tokenizer.suppressed, *unused)
        """Ids without a text: special tokens, and rows that only pad the embedding."""

    @overload
    def __call__(
        self, prompts: str, config: GenerationConfig | None = None, **settings: Any
    ) -> str: ...
    @overload
    def __call__(
        self, prompts: Sequence[str], config: GenerationConfig | None = None, **settings: Any
    ) -> list[str]: ...
    def __call__(
        self,
        prompts: str | Sequence[str],
        config: GenerationConfig | None = None,
        **settings: Any,
    ) -> str | list[str]:
        """The first continuation of a prompt, or of each prompt in a list; see `generate`."""
        if isinstance(prompts, str):
            return self([prompts], config, **settings)[0]
        return [texts[0].text for texts in self.generate(prompts, config, **settings)]

    def generate(
        self,
        prompts: Sequence[str],
        config: GenerationConfig | None = None,
        *,
        first_prompt: int = 0,
        first_text: int = 0,
        stop: Sequence[str] = (),
        token_scores: bool = False,
        **settings: Any,
    ) -> list[list[Output]]:
        """Write n continuations of every prompt; text k of prompt i only depends on (model, prompt,
        seed, i, k).

        An empty prompt is BOS, or a line break if there is no BOS. A prompt that does not fit into
        the learned positions keeps its last tokens, so that max_length new ones have room, but at
        least half of the positions; a text ends where the positions end. Both cause a warning.
        Log-probability and score of outputs are nan except in beam search.

        Args:
            first_prompt: the number of prompts[0], if these are a part of all prompts.
            first_text: the number of each prompt's first text, among all its texts.
            stop: stop strings; the first that occurs ends a text, as its last part; they may span
                tokens.
            token_scores: give outputs the log-probabilities of their tokens, at temperature 1, and
                the confidence of their words.
            settings: fields of GenerationConfig that replace those of `config` and of the run.

        Raises:
            InputError: `stop` is given for beam search, which has no final text before its end.
        """
        check_list(prompts, "generate takes a list of prompts", of_text=True)
        config = self._merged(config, settings)
        if stop and config.beam_size > 1:
            raise InputError(f"stop needs sampling, but beam_size={config.beam_size}; set it to 1")
        rows = [self._prompt(prompt, config) for prompt in prompts]
        outputs: list[list[Output]] = [[] for _ in prompts]

        def search(batch: tuple[list[int], range]) -> list[list[Hypothesis]]:
            numbers, samples = batch
            some = [rows[i] for i in numbers]
            if config.beam_size > 1:
                return beam_search(*self._start(some, config), config.beam)
            rngs = [config.rng(first_prompt + i, first_text + k) for i in numbers for k in samples]
            return self._sampler(some, config, rngs, stop).run()

        for (numbers, _), hypotheses in self._map_parallel([*_batches(rows, config)], search):
            for i, best in zip(numbers, hypotheses, strict=True):
                outputs[i] += [self._output(rows[i], h, stop, token_scores) for h in best]
        return outputs

    def stream(
        self,
        prompt: str,
        config: GenerationConfig | None = None,
        *,
        prompt_number: int = 0,
        text_number: int = 0,
        stop: Sequence[str] = (),
        **settings: Any,
    ) -> Pieces[str, None, Output]:
        """Yield one continuation of a prompt piece by piece; the pieces together are the text of
        `generate`.

        Bytes of an incomplete character are held back. Closing the generator stops the search. It
        returns the complete output.

        Args:
            prompt_number: i of (model, prompt, seed, i, k), which the text depends on.
            text_number: its k.
            stop: stop strings, as in `generate`.
            settings: fields of GenerationConfig, as in `generate`.

        Raises:
            InputError: beam search is set, which has no final text before its end.
        """
        config = self._merged(config, settings)
        if config.beam_size > 1:
            raise InputError(
                f"streaming needs sampling, but beam_size={config.beam_size}; set it to 1, or use "
                "generate"
            )
        row = self._prompt(prompt, config)
        sampler = self._sampler([row], config, [config.rng(prompt_number, text_number)], stop)
        text = row.text(self.tokenizer, stop)
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

        A text begins with BOS if the tokenizer has one; otherwise the first token is given and not
        predicted. If EOS differs from BOS, it is predicted at the end of every line that is not
        blank, and of a text of blank lines. In an ensemble, a token's log-probability is the mean
        over the models.

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

    def scorer(self, ids: Prompts) -> Scorer:
        """The scorer of the tokens after these prompts."""
        weight = 1 / len(self.engines)
        return combined([(weight, ModelScorer(model, prompts=ids)) for model in self.engines])

    def _merged(
        self, config: GenerationConfig | None, settings: dict[str, Any]
    ) -> GenerationConfig:
        """The configuration of a call, with the run's own rules where it has none; `settings` take
        precedence over both."""
        if config is None:
            return self.decoding.changed(**settings)
        own = {
            rule.name: getattr(self.decoding, rule.name)
            for rule in fields(RulesConfig)
            if getattr(config, rule.name) == rule.default and rule.name not in settings
        }
        return replace(config, **own).changed(**settings)

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

    @torch.no_grad()
    def _output(
        self, prompt: "Prompt", h: Hypothesis, stop: Sequence[str], token_scores: bool
    ) -> Output:
        """The output of a hypothesis, with scores of its tokens if requested."""
        text = prompt.text(self.tokenizer, stop).add(h.tokens, last=True)
        output = Output(text, h.log_prob, h.score, h.tokens, h.finished)
        if not token_scores:
            return output
        end = [self.tokenizer.eos_id] * output.finished
        ids = torch.tensor([*prompt.ids, *output.tokens, *end], device=self.model.device)
        return with_scores(self.tokenizer, output, self._token_scores(ids, len(prompt.ids)))

    def _start(
        self, prompts: Sequence["Prompt"], config: GenerationConfig
    ) -> tuple[Scorer, Prompts, Constraints]:
        """The start of a search: the scorer and the ids of these prompts, and the constraints on
        what follows them; the last new token needs no position."""
        ids = torch.tensor([prompt.ids for prompt in prompts], device=self.model.device)
        check_suppressed(config, self.model.vocab_size, self.tokenizer.eos_id)
        limit = last_position(*self.engines)
        bound = limit + 1 - ids.size(1)
        if bound < config.max_length:
            logger.warning("texts end after %d tokens at most (max_positions=%d)", bound, limit)
        rules = phrase_rules(self.tokenizer, config, ids, [()] * len(ids), self.model.vocab_size)
        constraints = Constraints(
            ids.new_full((len(ids),), min(bound, config.max_length)),
            eos_id=self.tokenizer.eos_id,
            suppressed=self.suppressed,
            config=config,
            prompts=ids,
            rules=[*rules, *self.rules],
            prefixes=[prompt.space for prompt in prompts],
        )
        return self.scorer(ids), ids, constraints

    def _sampler(
        self,
        prompts: Sequence["Prompt"],
        config: GenerationConfig,
        rngs: Sequence[np.random.Generator],
        stop: Sequence[str],
    ) -> Sampler:
        """The sampler of n texts of every prompt, which end at the stop strings."""
        check_list(stop, "stop takes a list of strings", of_text=True)
        if "" in stop:
            raise InputError("a stop string must have a character, but one is empty; leave it out")
        sampler = Sampler(*self._start(prompts, config), config, rngs)
        if stop:
            texts = [prompts[i].text(self.tokenizer, stop) for i in sampler.sentences]

            def ends(row: int, token: int) -> bool:
                texts[row].add([token])
                return texts[row].stopped

            sampler.ends = ends
        return sampler

    def _prompt(self, prompt: str, config: GenerationConfig) -> "Prompt":
        ids = self.encode(prompt, config.max_length)
        (text,) = self.tokenizer.decode([ids])
        if not prompt[-1:].isspace() or text[-1:].isspace() or not prompt.strip():
            return Prompt(ids)
        written = self.tokenizer.surfaces[ids[-1]].endswith(b" ")
        return Prompt(ids, Prefix(vocabulary(self.tokenizer), [], b"" if written else b" "))

    def encode(self, prompt: str, max_length: int = 1) -> list[int]:
        """Ids of a prompt; if it is too long, as many of its last ids as have room, with a
        warning."""
        ids = self.encode_uncut(prompt)
        limit = last_position(*self.engines)
        if len(ids) <= limit:
            return ids
        n = max(limit // 2, limit + 1 - max_length, 1)
        logger.warning(
            "a prompt of %d tokens was cut to its last %d (max_positions=%d)", len(ids), n, limit
        )
        return ids[-n:]

    def encode_uncut(self, prompt: str) -> list[int]:
        """Ids of a prompt of any length, at least one; with BOS if texts begin with it.

        Raises:
            InputError: it is no text that UTF-8 can encode, or this vocabulary cannot spell it.
        """
        check_list([prompt], "a prompt is text", of_text=True)
        (ids,) = self.tokenizer.encode([prompt])
        start = self.tokenizer.bos_id
        if self.tokenizer.opening:
            ids = [*self.tokenizer.opening, *ids]
        # GPT-2's END only stands between texts
        elif start is not None and (not ids or start != self.tokenizer.eos_id):
            ids = [start, *ids]
        if not ids:
            (ids,) = self.tokenizer.encode(["\n"])
        return ids


class Prompt(NamedTuple):
    """The encoded prompt of one or more texts."""

    ids: list[int]
    space: Prefix | None = None
    """The space at its end if the text of the ids leaves it out, as SentencePiece's does: the
    continuation begins with a new word."""

    def text(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> TextStream:
        """A stream for the text after it."""
        return TextStream(tokenizer, self.ids, space=self.space is not None, stop=stop)


def _batches(
    prompts: Sequence[Prompt], config: GenerationConfig
) -> Iterator[tuple[list[int], range]]:
    """The numbers of prompts of one length, as a cache has one length, and the numbers of their
    texts."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, prompt in enumerate(prompts):
        by_length[len(prompt.ids)].append(i)
    texts = range(config.n if config.beam_size == 1 else 1)
    rows_per_prompt = max(config.beam_size, min(len(texts), config.batch_size))
    size = max(1, config.batch_size // rows_per_prompt)
    for _, same in sorted(by_length.items()):
        for start in range(0, len(same), size):
            for first in range(0, len(texts), config.batch_size):
                yield same[start : start + size], texts[first : first + config.batch_size]
