"""A prompt in, what follows it out: a decoder alone as something one calls."""

import logging
from collections.abc import Generator as Pieces, Iterator, Sequence
from dataclasses import fields, replace
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.language import encode_text
from transduce.decode.config import RulesConfig
from transduce.decode.constraints import Constraints
from transduce.decode.joint import combined
from transduce.decode.sample import Sampler, Sampling
from transduce.decode.scorer import ModelScorer, Scorer
from transduce.errors import InputError
from transduce.model.config import Tokens
from transduce.model.transformer import Transformer
from transduce.tasks.config import GenerationConfig
from transduce.tasks.inputs import check_list
from transduce.tasks.phrases import forbidden
from transduce.tasks.search import Output, check_suppressed, last_position, search, shared
from transduce.tasks.seq2seq import scored
from transduce.tasks.states import Task, check_positions, token_log_probs
from transduce.tasks.words import TokenScores

logger = logging.getLogger("transduce")

TAIL = 16
"""Tokens from which on bytes are cut into the same characters, whatever stood before them: at least as many bytes."""


class Generator(Task):
    """A list of prompts in, as many texts out, in the same order."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, decoding: GenerationConfig | None = None) -> None:
        config = model.config
        if config.encoder is not None or config.decoder is None:
            raise InputError("a generator takes a decoder alone, but this model has an encoder; use td.load(directory)")
        assert isinstance(config.decoder.input, Tokens)
        if config.decoder.input.vocab_size < tokenizer.vocab_size:
            raise InputError(
                "the model must have every id of its tokenizer, but "
                f"it has {config.decoder.input.vocab_size} and the tokenizer {tokenizer.vocab_size}"
            )
        super().__init__(model, tokenizer)
        self.decoding = decoding or GenerationConfig()
        """How the run goes on where nothing else is said. The rules in it hold where a call leaves them at their defaults."""
        self.suppressed = (*tokenizer.suppressed, *range(tokenizer.vocab_size, config.decoder.input.vocab_size))
        """Ids that have no text: special ones, and rows that only fill the table up."""

    def __call__(self, prompts: Sequence[str], config: GenerationConfig | None = None) -> list[str]:
        """What follows every prompt: the first text of each."""
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
        """n texts of every prompt, without the prompt. Text k of prompt i depends on (model, prompt, seed, i, k) alone.

        An empty prompt is a beginning: BOS, or, where the vocabulary has none, a line break. A prompt that learned
        positions cannot hold together with max_length new tokens keeps its last ones, if by itself it fills more than
        all positions, and half of them at least; where the positions end, so does the text. Both with a warning.

        Args:
            first_prompt: the number of prompts[0], where these are a part of all prompts.
            first_text: the number of each prompt's first text, where these are a part of all its texts.
            stop: strings, each of which ends a text, which holds it then; they may span tokens.
            token_scores: give every output the log-probabilities of its tokens, as the model has them without any
                temperature, and the confidence of its words.

        Returns:
            Outputs whose log-probability and score are nan unless a beam search found them.

        Raises:
            InputError: beam search and `stop`, as a beam knows no text before its end.
        """
        check_list(prompts, "generate takes a list of prompts", of_text=True)
        config = self._own(config)
        if stop and config.beam_size > 1:
            raise InputError(f"stop ends texts that are sampled, but beam_size={config.beam_size}; set it to 1")
        rows = [self.encode(prompt, config.max_length) for prompt in prompts]
        outputs: list[list[Output]] = [[] for _ in prompts]
        for numbers, samples in _batches([len(row) for row in rows], config):
            ids = torch.tensor([rows[i] for i in numbers], device=self.model.device)
            rngs = [config.rng(first_prompt + i, first_text + k) for i in numbers for k in samples]
            ends = self._ends([rows[i] for i in numbers for _ in samples], stop)
            sampling, constraints = Sampling.of(config), self._constraints(ids, config)
            hypotheses = search(
                self.scorers(ids), ids, constraints, config.search, sampling=sampling, rngs=rngs, ends=ends
            )
            for i, found in zip(numbers, hypotheses, strict=True):
                for h in found:
                    text = TextStream(self.tokenizer, rows[i]).add(h.tokens, last=True)
                    output = Output(text, h.log_prob, h.score, h.tokens, h.finished)
                    outputs[i].append(self._scored(rows[i], output) if token_scores else output)
        self._warn(outputs, config, stop)
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
        """One text that follows a prompt, piece by piece as it comes; together they are what `generate` gives.

        Bytes that are no character yet are held back. Whoever stops asking stops the search. What the generator returns
        behind the last piece is the whole output.

        Args:
            prompt_number: i of (model, prompt, seed, i, k), which the text depends on.
            text_number: its k.
            stop: strings, each of which ends the text, which holds it then.

        Raises:
            InputError: beam search, which knows no text before its end.
        """
        config = self._own(config)
        if config.beam_size > 1:
            raise InputError(
                f"a text comes piece by piece if it is sampled, but beam_size={config.beam_size}; set it to 1, or use "
                "generate"
            )
        row, tokens, pieces = self.encode(prompt, config.max_length), list[int](), list[str]()
        text, ids = TextStream(self.tokenizer, row), torch.tensor([row], device=self.model.device)
        scorer, constraints = combined(self.scorers(ids)), self._constraints(ids, config)
        rngs = [config.rng(prompt_number, text_number)]
        sampler = Sampler(scorer, ids, constraints, sampling=Sampling.of(config), rngs=rngs)
        sampler.ends = self._ends([row], stop)
        while sampler.running:
            token = int(sampler.step())
            new = [] if (finished := token == self.tokenizer.eos_id) else [token]
            tokens += new
            if piece := text.add(new, last=not sampler.running):
                pieces.append(piece)
                yield piece
        output = Output("".join(pieces), tokens=tokens, finished=finished)
        self._warn([[output]], config, stop)
        return output

    @torch.no_grad()
    def score(self, texts: Sequence[str]) -> list[TokenScores]:
        """How likely each text is, token by token; it is made tokens as it is for training (`encode_text`).

        BOS stands first where the tokenizer has one; without one, the first token is given and not predicted. Where EOS
        is another one, it is predicted at the end of every line. In an ensemble, a token's log-probability is the mean of
        those that the models give it.

        Raises:
            InputError: a text is longer than learned positions; `measure_perplexity` takes windows of it.
        """
        check_list(texts, "score takes a list of texts", of_text=True)
        found = []
        for number, text in enumerate(texts, start=1):
            ids = torch.from_numpy(encode_text(self.tokenizer, text).astype(np.int64)).to(self.model.device)
            check_positions(f"text {number}", len(ids) - 1, last_position(*self.engines))
            if len(ids) < 2:
                found.append(TokenScores([], torch.empty(0)))
                continue
            found.append(self._token_scores(ids, 1))
        return found

    def scorers(self, ids: Int[Tensor, "B P"]) -> list[tuple[float, Scorer]]:
        """What judges how these prompts go on."""
        return shared(len(self.engines), [(1.0, ModelScorer(model, prompts=ids)) for model in self.engines])

    def _own(self, config: GenerationConfig | None) -> GenerationConfig:
        if config is None or self.decoding == GenerationConfig():
            return config or self.decoding
        off = {each.name: each.default for each in fields(RulesConfig)}
        return replace(
            config, **{name: getattr(self.decoding, name) for name in off if getattr(config, name) == off[name]}
        )

    def _token_scores(self, ids: Int[Tensor, " T"], first: int) -> TokenScores:
        """The scores of the tokens from `first` on, each given those before it."""
        states = (model.decoder_states(ids[None, :-1])[0, first - 1 :] for model in self.engines)
        each = [token_log_probs(*pair, ids[first:]) for pair in zip(self.engines, states, strict=True)]
        return TokenScores(self.tokenizer.tokens(ids[first:].tolist()), torch.stack(each).mean(dim=0).cpu())

    @torch.no_grad()
    def _scored(self, prompt: list[int], output: Output) -> Output:
        end = [self.tokenizer.eos_id] * output.finished
        ids = torch.tensor([*prompt, *output.tokens, *end], device=self.model.device)
        return scored(self.tokenizer, output, self._token_scores(ids, len(prompt)))

    def _constraints(self, ids: Int[Tensor, "B P"], config: GenerationConfig) -> Constraints:
        """What may follow these prompts; the last new token needs no position."""
        bound = min(config.max_length, last_position(*self.engines) + 1 - ids.size(1))
        check_suppressed(config, self.tokenizer)
        bounds, eos = ids.new_full((len(ids),), bound), self.tokenizer.eos_id
        return Constraints(
            bounds,
            eos_id=eos,
            suppressed=self.suppressed,
            rules=config,
            prompts=ids,
            forbidden=forbidden(self.tokenizer, config.forbid, self.model.vocab_size),
        )

    def _ends(self, prompts: Sequence[list[int]], stop: Sequence[str]) -> "StopStrings | None":
        """What ends the texts behind these prompts at the stop strings, if there are any."""
        check_list(stop, "stop takes a list of strings")
        return StopStrings([TextStream(self.tokenizer, prompt) for prompt in prompts], stop) if stop else None

    def _warn(self, outputs: list[list[Output]], config: GenerationConfig, stop: Sequence[str]) -> None:
        """Say how many prompts have a text that neither ended nor reached max_length."""

        def is_short(output: Output) -> bool:
            ended = output.finished or any(each in output.text for each in stop)
            return not ended and len(output.tokens) < config.max_length

        short = [any(map(is_short, texts)) for texts in outputs]
        if any(short):
            told = "text stopped after %d of %d prompts, where the model's positions end (max_positions=%d)"
            logger.warning(told, sum(short), len(outputs), last_position(*self.engines))

    def encode(self, prompt: str, max_length: int = 1) -> list[int]:
        """Ids to go on from: those of the whole prompt, or as many of its last ones as there is room for, with a warning."""
        ids, limit = self.encode_whole(prompt), last_position(*self.engines)
        if len(ids) > limit:
            kept = max(limit // 2, limit + 1 - max_length, 1)
            logger.warning("a prompt of %d tokens was cut to its last %d (max_positions=%d)", len(ids), kept, limit)
            ids = ids[-kept:]
        return ids

    def encode_whole(self, prompt: str) -> list[int]:
        """Ids of a prompt, of any length: at least one, with BOS where every text begins with it."""
        start, (ids,) = self.tokenizer.bos_id, self.tokenizer.encode([prompt])
        if self.tokenizer.opening:
            ids = [*self.tokenizer.opening, *ids]
        elif start is not None and (not ids or start != self.tokenizer.eos_id):  # GPT-2's only stands between texts
            ids = [start, *ids]
        if not ids:
            (ids,) = self.tokenizer.encode(["\n"])
        return ids


class TextStream:
    """The text of tokens as they come behind a prompt; each is decoded a few times, however long the text is.

    Behind a prompt, for a token may begin with a space that its text has only there.
    What a token adds to a text depends on no more than whether a text comes before it, for SentencePiece leaves out a
    space at the beginning, and on bytes before it that are no whole character yet. So the tokens since the last whole
    character are decoded, behind a few tokens that have a text: the anchor.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.anchor = self._anchor(prompt)
        self.tail = [] if self.anchor else list(prompt)
        self.told = len(self._text())
        """Characters of the tail's text that need not be told any more."""

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """What these tokens add to the text; but what may yet become another character waits, unless they are `last`."""
        self.tail += tokens
        text = self._text()
        if last:
            return text[self.told :]
        settled = self._settled(text)
        new, self.told = settled[self.told :], max(self.told, len(settled))
        if settled == text:
            self.anchor = self.anchor or self._anchor(self.tail)
            if self.anchor:
                self.tail, self.told = [], 0
        elif self.anchor and len(self.tail) > 2 * TAIL:  # bytes that spell nothing, again and again
            self.tail = self.tail[-TAIL:]
            self.told = len(self._settled(self._text()))
        return new

    def _text(self) -> str:
        """The text of the tail."""
        before, text = self.tokenizer.decode([self.anchor, [*self.anchor, *self.tail]])
        return text[len(before) :]

    def _settled(self, text: str) -> str:
        """The text without the beginning of a character, of whose four bytes three may have come."""
        return text[: len(text) - min(3, len(text) - len(text.rstrip("\ufffd")))]

    def _anchor(self, tokens: Sequence[int]) -> list[int]:
        """The fewest of the last tokens that have a text of whole characters."""
        for n in range(1, min(len(tokens), TAIL) + 1):
            (text,) = self.tokenizer.decode([tokens[-n:]])
            if text and not text.endswith("\ufffd"):
                return list(tokens[-n:])
        return []


class StopStrings:
    """Whether the texts of tokens, as they come, hold one of some strings."""

    def __init__(self, texts: Sequence[TextStream], stop: Sequence[str]) -> None:
        self.texts, self.stop, self.longest = texts, stop, max(map(len, stop))
        self.tails = [""] * len(texts)

    def __call__(self, row: int, token: int) -> bool:
        """Whether the text of this row holds one of them with its next token."""
        new = self.texts[row].add([token])
        self.tails[row] = tail = self.tails[row][-self.longest :] + new
        return any(stop in tail for stop in self.stop)


def _batches(lengths: Sequence[int], config: GenerationConfig) -> Iterator[tuple[list[int], range]]:
    """Prompts, and which of their n texts: together only where prompts are equally long, for a cache has one length."""
    width = config.n if config.beam_size == 1 else 1
    beside = config.beam_size if config.beam_size > 1 else min(width, config.batch_size)
    size = max(1, config.batch_size // beside)
    for _, same in groupby(sorted(range(len(lengths)), key=lengths.__getitem__), key=lengths.__getitem__):
        numbers = list(same)
        for start in range(0, len(numbers), size):
            for first in range(0, width, config.batch_size):
                yield numbers[start : start + size], range(first, min(first + config.batch_size, width))
