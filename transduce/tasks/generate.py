"""A prompt in, what follows it out: a decoder alone as something one calls."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.data.text.tokenizers import Tokenizer
from transduce.decode.beam import beam_search
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.sample import Sampling, sample
from transduce.decode.scorer import PromptScorer
from transduce.model.config import Tokens
from transduce.model.transformer import Transformer

logger = logging.getLogger("transduce")

OnText = Callable[[int, int, str], object]
"""Called with the number of a prompt, the number of one of its texts, and some more of that text."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How to go on from a prompt."""

    max_length: int = 256
    """New tokens at most, an end included."""
    temperature: float = 1.0
    """Below 1 safer, above 1 bolder; 0 always takes the likeliest token (greedy search)."""
    top_k: int = 0
    """Draw among the k likeliest tokens; 0 = off."""
    top_p: float = 1.0
    """Draw among the fewest tokens that have this probability together; 1 = off."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that came before become less likely; 1 = off."""
    beam_size: int = 1
    """More than 1: beam search, which draws nothing."""
    alpha: float = 0.6
    """In beam search, the exponent of the length penalty ((5 + length) / 6)^alpha, over new tokens."""
    seed: int = 0
    """Seed of all that is drawn."""
    n: int = 1
    """Texts per prompt; the n best ones in beam search."""
    batch_size: int = 16
    """Texts at a time, or beams. It changes speed and memory, never the output."""

    def __post_init__(self) -> None:
        for name in ("max_length", "beam_size", "n", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but {name}={getattr(self, name)}")
        if self.alpha < 0 or self.seed < 0:
            raise ValueError(f"alpha and seed must not be negative, but alpha={self.alpha} and seed={self.seed}")
        sampling = self.sampling
        if self.beam_size > 1 and (sampling != Sampling() or self.n > self.beam_size):
            raise ValueError(
                "beam search draws nothing and keeps beam_size texts, so leave temperature, top_k, top_p and "
                f"repetition_penalty alone and n <= beam_size, but {sampling}, n={self.n}, beam_size={self.beam_size}"
            )
        if self.beam_size == 1 and self.temperature == 0 and self.n > 1:
            raise ValueError(
                f"greedy search has one text per prompt, but n={self.n} at temperature=0; "
                "raise the temperature, or use beam_size"
            )

    @property
    def sampling(self) -> Sampling:
        """The part that chooses a token."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
        )


@dataclass(frozen=True)
class Generated:
    """What followed a prompt."""

    text: str
    """Without the prompt."""
    tokens: list[int]
    finished: bool
    """False: cut at max_length, or where the model's positions end."""
    log_prob: float
    """Natural; nan unless a beam search found it."""


class Generator:
    """A list of prompts in, as many texts out, in the same order."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        config = model.config
        if config.encoder is not None or config.decoder is None:
            raise ValueError("a generator takes a decoder alone, but this model has an encoder; use td.load(directory)")
        assert isinstance(config.decoder.input, Tokens)
        if config.decoder.input.vocab_size < tokenizer.vocab_size:
            raise ValueError(
                "the model must have every id of its tokenizer, but "
                f"it has {config.decoder.input.vocab_size} and the tokenizer {tokenizer.vocab_size}"
            )
        self.model, self.tokenizer = model, tokenizer
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
        on_text: OnText | None = None,
        first_prompt: int = 0,
    ) -> list[list[Generated]]:
        """n texts of every prompt. Text k of prompt i is a function of (model, prompt, seed, i, k) alone.

        An empty prompt is a beginning: BOS, or, where the vocabulary has none, a line break. A prompt that learned
        positions cannot hold together with max_length new tokens keeps its last ones, if by itself it fills more than
        all positions, and half of them at least; where the positions end, so does the text. Both with a warning.

        Args:
            on_text: told of text as it comes, of every text at least once, even if it is empty; by beam search only
                when all of it is there.
            first_prompt: the number of prompts[0], where these are a part of all prompts.
        """
        if isinstance(prompts, str):
            raise ValueError(f"generate takes a list of prompts, but got one string; use [{prompts[:20]!r}]")
        config = config or GenerationConfig()
        rows = [self.encode(prompt, config.max_length) for prompt in prompts]
        outputs: list[list[Generated]] = [[] for _ in prompts]
        n_stopped = 0
        for numbers, samples in _batches([len(row) for row in rows], config):
            ids = torch.tensor([rows[i] for i in numbers], device=self.model.device)
            bound = min(config.max_length, self._room(ids.size(1)))
            if config.beam_size > 1:
                found = self._beams(ids, bound, config)
            else:
                streams = [_Stream(self, rows[i], i, k, on_text) for i in numbers for k in samples]
                rngs = [np.random.default_rng((config.seed, first_prompt + i, k)) for i in numbers for k in samples]
                found = self._samples(ids, bound, config, rngs, streams if on_text else [])
            width = len(found) // len(numbers)
            for i, hypotheses in zip(numbers, (found[j : j + width] for j in range(0, len(found), width)), strict=True):
                outputs[i] += [self._generated(rows[i], hypothesis) for hypothesis in hypotheses]
                n_stopped += bound < config.max_length and not all(h.finished for h in hypotheses)
                if on_text and config.beam_size > 1:
                    for k, output in enumerate(outputs[i]):
                        on_text(i, k, output.text)
        if n_stopped:
            logger.warning(
                "text stopped after %d of %d prompts, where the model's positions end (max_positions=%d)",
                n_stopped,
                len(prompts),
                self.model.config.max_positions,
            )
        return outputs

    def encode(self, prompt: str, max_length: int = 1) -> list[int]:
        """Ids to go on from: at least one, with BOS where every text begins with it, and as many as there is room."""
        start, (ids,) = self.tokenizer.bos_id, self.tokenizer.encode([prompt])
        if start is not None and (not ids or start != self.tokenizer.eos_id):  # GPT-2's only stands between texts
            ids = [start, *ids]
        if not ids:
            (ids,) = self.tokenizer.encode(["\n"])
        room = self._room(0)
        if len(ids) >= room:
            kept = max((room - 1) // 2, room - max_length, 1)
            logger.warning("a prompt of %d tokens was cut to its last %d (max_positions=%d)", len(ids), kept, room - 1)
            ids = ids[-kept:]
        return ids

    def continuation(self, prompt: Sequence[int], tokens: Sequence[int]) -> str:
        """The text of `tokens` as they follow a prompt: a piece may begin with a space that it has only there."""
        before, whole = self.tokenizer.decode([prompt, [*prompt, *tokens]])
        return whole[len(before) :]

    def _room(self, length: int) -> int:
        """New tokens that fit behind so many: the last one needs no position."""
        config = self.model.config
        return config.max_positions + 1 - length if config.positions == "learned" else 1 << 40

    def _samples(
        self,
        ids: Int[Tensor, "B P"],
        bound: int,
        config: GenerationConfig,
        rngs: Sequence[np.random.Generator],
        streams: Sequence["_Stream"],
    ) -> list[Hypothesis]:
        def tell(running: list[int], new: list[int]) -> None:
            for i, token in zip(running, new, strict=True):
                streams[i].add(token)

        found = sample(
            PromptScorer(self.model, ids),
            prompts=ids,
            eos_id=self.tokenizer.eos_id,
            max_lengths=ids.new_full((len(ids),), bound),
            rngs=rngs,
            sampling=config.sampling,
            suppressed=self.suppressed,
            on_tokens=tell if streams else None,
        )
        for stream in streams:
            stream.end()
        return found

    def _beams(self, ids: Int[Tensor, "B P"], bound: int, config: GenerationConfig) -> list[Hypothesis]:
        end = self.tokenizer.eos_id
        found = beam_search(
            PromptScorer(self.model, ids),
            bos_id=0,  # not looked at: the prompt stands in its place
            eos_id=-1 if end is None else end,  # no token is -1, so nothing ends before its bound
            max_lengths=ids.new_full((len(ids),), bound),
            beam_size=config.beam_size,
            alpha=config.alpha,
            n_best=config.n,
            suppressed=self.suppressed,
        )
        return [hypothesis for hypotheses in found for hypothesis in hypotheses]

    def _generated(self, prompt: list[int], found: Hypothesis) -> Generated:
        return Generated(self.continuation(prompt, found.tokens), found.tokens, found.finished, found.log_prob)


class _Stream:
    """One text as it comes: tells what is new of it, and waits with bytes that are no character yet."""

    def __init__(self, generator: Generator, prompt: list[int], i: int, k: int, on_text: OnText | None) -> None:
        self.generator, self.prompt, self.i, self.k, self.on_text = generator, prompt, i, k, on_text
        self.tokens: list[int] = []
        self.told = 0
        if on_text:
            on_text(i, k, "")

    def add(self, token: int) -> None:
        """One more; the end has no text."""
        if token != self.generator.tokenizer.eos_id:
            self.tokens.append(token)
            self._tell(whole=False)

    def end(self) -> None:
        """Nothing follows: tell the rest."""
        self._tell(whole=True)

    def _tell(self, *, whole: bool) -> None:
        text = self.generator.continuation(self.prompt, self.tokens)
        if self.on_text and len(text) > self.told and (whole or not text.endswith("\ufffd")):
            self.on_text(self.i, self.k, text[self.told :])
            self.told = len(text)


def _batches(lengths: Sequence[int], config: GenerationConfig) -> Iterator[tuple[list[int], range]]:
    """Prompts, and which of their n texts: together only where prompts are equally long, for a cache has one length."""
    width = config.n if config.beam_size == 1 else 1
    beside = config.beam_size if config.beam_size > 1 else min(width, config.batch_size)
    size = max(1, config.batch_size // beside)
    same: dict[int, list[int]] = defaultdict(list)
    for i, length in enumerate(lengths):
        same[length].append(i)
    for numbers in same.values():
        for start in range(0, len(numbers), size):
            for first in range(0, width, config.batch_size):
                yield numbers[start : start + size], range(first, min(first + config.batch_size, width))
