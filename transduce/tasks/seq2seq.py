"""What a model makes of outputs that are given: log-probabilities of every token, attention; and the encoder's states."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.batch import pad
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.hypothesis import length_penalty
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.model.attention_maps import cross_attention
from transduce.model.transformer import Memory, Transformer
from transduce.plot import attention_map
from transduce.tasks.config import SearchConfig
from transduce.tasks.inputs import check_list
from transduce.tasks.search import LanguageModel, Output, beginning, last_position
from transduce.tasks.states import (
    Source,
    Task,
    batches,
    check_positions,
    encoded,
    encoder_states,
    source_lengths,
    token_log_probs,
)
from transduce.tasks.words import TokenScores, WordAlignment, word_alignment, word_spans, words_of_text

InputT = TypeVar("InputT")


@dataclass(frozen=True)
class Alignment:
    """Where a decoder looks while it writes a given text."""

    source: list[str]
    """The S source tokens; of sound there are none, see `seconds`."""
    target: list[str]
    """The T target tokens; the last is the end."""
    weights: Float[Tensor, "L H T S"]
    """Cross-attention by layer and head: row t is the look that token t was predicted with, and sums to 1."""
    seconds: float | None = None
    """The time from one source position to the next, if the source is sound; position s begins at s * seconds."""
    words: WordAlignment | None = None
    """Which source word each target word was written from; None of sound."""

    @property
    def mean(self) -> Float[Tensor, "T S"]:
        """The mean over the heads of the last layer but one, which follows translations best; of a single layer, its own.

        Source: Garg et al. (2019), Jointly Learning to Align and Translate with Transformer Models.
        """
        return self.weights[max(0, len(self.weights) - 2)].mean(dim=0)

    @property
    def places(self) -> list[int]:
        """For each target token, the source position that `mean` looks at most."""
        return self.mean.argmax(dim=-1).tolist()

    @property
    def layer(self) -> int:
        """The layer that pictures show: the one that `words` come from; of sound, the one that `mean` takes."""
        return self.words.layer if self.words and self.words.layer is not None else max(0, len(self.weights) - 2)

    def draw(self, path: Path | str, title: str = "") -> None:
        """Write a PNG: a row for every target token, dark where it looks, the source to the right.

        It has the mean over the heads of `layer`.
        """
        source = self.source if self.seconds is None else self.seconds
        told = f"{title}\nlayer {self.layer + 1} of {len(self.weights)}, mean over heads".strip()
        attention_map(self.weights[self.layer].mean(dim=0).float(), self.target, source, told, Path(path))


class Seq2SeqTask(Task, ABC, Generic[InputT]):
    """What a task of encoder and decoder tells about inputs and given outputs, besides writing outputs of its own."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, decoding: SearchConfig | None) -> None:
        super().__init__(model, tokenizer)
        self.lm: LanguageModel | None = None
        """What judges the texts beside the models, where `lm_weight` is not 0."""
        self.decoding = decoding or SearchConfig()
        """How to search where nothing else is said."""

    @abstractmethod
    def sources(self, inputs: Sequence[InputT]) -> list[Source]:
        """What flows into the encoder, for every input.

        Raises:
            InputError: one of them cannot be used.
        """

    def source_tokens(self, source: Source) -> list[str]:
        """The tokens of a source of ids; of frames there are none."""
        return []

    def source_words(self, source: Source) -> list[tuple[str, int, int]] | None:
        """The words of a source of ids, with their tokens; None of frames."""
        return None

    def _target_words(self, ids: Sequence[int]) -> list[tuple[str, int, int]]:
        """The words of a target, with their tokens; its end is none of them."""
        return word_spans(self.tokenizer, ids[:-1] if ids[-1:] == [self.tokenizer.eos_id] else ids)

    @property
    def position_seconds(self) -> float | None:
        """The time from one source position to the next, if the source is sound."""
        return None

    def with_decoding(self, decoding: SearchConfig) -> "Seq2SeqTask[InputT]":
        """The same task with another `decoding`, and in the languages that it names, of a model of many."""
        there = copy(self)
        there.decoding = decoding
        return there

    @torch.no_grad()
    def encode(self, inputs: Sequence[InputT], **settings: Any) -> list[Float[Tensor, "_ D"]]:
        """The encoder's states, of shape (S, d_model), for every input: a row per source position, on the CPU.

        Text has a position per token and one for the end; sound, one per stack of frames.

        Raises:
            InputError: an input cannot be used, or is longer than learned positions; or this is an ensemble.
        """
        self._check_alone("encode")
        there = self.with_decoding(self.decoding.changed(**settings))
        return encoder_states(self.engine, there._checked(inputs), self.decoding.batch_tokens)

    @torch.no_grad()
    def score(self, inputs: Sequence[InputT], texts: Sequence[str | Output], **settings: Any) -> list[TokenScores]:
        """How likely each text is as the output for its input, by attention (a CTC head is not asked).

        An output stands for its tokens; in an ensemble, a log-probability is the mean of the models'. `settings` are fields
        of SearchConfig, such as target_language="de".

        Raises:
            InputError: there are not as many texts as inputs, or one of either cannot be used.
        """
        there = self.with_decoding(self.decoding.changed(**settings))
        return there._token_scores(there._checked(inputs), there._targets(inputs, texts))

    def _token_scores(
        self, sources: Sequence[Source], targets: Sequence[list[int]], decoding: SearchConfig | None = None
    ) -> list[TokenScores]:
        """The same of ids."""
        found: list[list[Tensor]] = [[] for _ in sources]
        for model in self.engines:
            for rows, memory, target_in, first in self._forced(model, sources, targets, decoding):
                states = model.decoder_states(target_in, memory=memory)[:, first:]
                for row, own in zip(rows, states, strict=True):
                    wanted = torch.tensor(targets[row], device=states.device)
                    found[row].append(token_log_probs(model, own[: len(wanted)], wanted).cpu())
        return [
            TokenScores(self.tokenizer.tokens(row), torch.stack(each).mean(dim=0))
            for row, each in zip(targets, found, strict=True)
        ]

    def rerank(
        self,
        inputs: Sequence[InputT],
        lists: Sequence[Sequence[Output]],
        *,
        weight: float = 1.0,
        own_weight: float = 1.0,
        backwards: bool = False,
        **settings: Any,
    ) -> list[list[Output]]:
        """Outputs of every input, such as another run's n best, by their score times own_weight plus this run's times weight.

        This run's score of a text is its log-probability over the length penalty of `decoding.alpha`.

        Args:
            backwards: this run translates the other way, and scores each input as what might come of the output: the channel
                of a noisy channel model (Yee et al. 2019, Simple and effective noisy channel modeling for neural machine
                translation).

        Returns:
            The outputs with these scores, the best first; else they stay as they are.

        Raises:
            InputError: as for `score`; or `backwards`, but this run takes sound.
        """
        rows = [(row, given, out) for row, (given, each) in enumerate(zip(inputs, lists, strict=True)) for out in each]
        decoding = self.decoding.changed(**settings)
        givens, texts = [given for _, given, _ in rows], [output.text for *_, output in rows]
        if backwards and self.position_seconds is not None:
            raise InputError(
                "backwards asks how likely an input comes of an output, but this run takes sound; load one of text"
            )
        scores = self.score(*((texts, givens) if backwards else (givens, texts)), **settings)
        found: list[list[Output]] = [[] for _ in inputs]
        for (row, _, output), each in zip(rows, scores, strict=True):
            own = each.log_prob / length_penalty(len(each.tokens), decoding.alpha, decoding.length_offset)
            found[row].append(replace(output, score=own_weight * output.score + weight * own))
        return [sorted(outputs, key=lambda output: -output.score) for outputs in found]

    @torch.no_grad()
    def align(self, inputs: Sequence[InputT], texts: Sequence[str | Output], **settings: Any) -> list[Alignment]:
        """Where the decoder looks in each input while it is made to write the text, or an output in its own tokens.

        Raises:
            InputError: as for `score`; or this is an ensemble.
        """
        self._check_alone("align")
        there = self.with_decoding(self.decoding.changed(**settings))
        return there._align(there._checked(inputs), there._targets(inputs, texts))

    def _align(
        self, sources: Sequence[Source], targets: Sequence[list[int]], decoding: SearchConfig | None = None
    ) -> list[Alignment]:
        """The same of ids; in an ensemble, where the first model looks."""
        found: dict[int, Alignment] = {}
        for rows, memory, target_in, first in self._forced(self.model, sources, targets, decoding):
            assert memory.lengths is not None
            weights = cross_attention(self.model, memory, target_in)[:, :, :, first:].cpu()
            for b, (row, n_places) in enumerate(zip(rows, memory.lengths.tolist(), strict=True)):
                own, spans = weights[:, b, :, : len(targets[row]), :n_places].clone(), self.source_words(sources[row])
                words = None if spans is None else word_alignment(own.mean(1), spans, self._target_words(targets[row]))
                tokens = self.source_tokens(sources[row]), self.tokenizer.tokens(targets[row])
                found[row] = Alignment(*tokens, own, self.position_seconds, words)
        return [found[row] for row in range(len(sources))]

    def _check_alone(self, name: str) -> None:
        """Raise InputError where this is an ensemble."""
        if len(self.engines) > 1:
            raise InputError(
                f"{name} asks one model, but this is an ensemble of {len(self.engines)}; load one run alone for it"
            )

    @torch.no_grad()
    def with_token_scores(
        self, sources: Sequence[Source], outputs: Sequence[list[Output]], decoding: SearchConfig | None = None
    ) -> list[list[Output]]:
        """The same outputs, n of every source, each with how likely its tokens are, and with the confidence of words."""
        scores = iter(self._token_scores(*self._given(sources, outputs), decoding))
        return [[scored(self.tokenizer, each, next(scores)) for each in some] for some in outputs]

    @torch.no_grad()
    def with_alignments(
        self, sources: Sequence[Source], outputs: Sequence[list[Output]], decoding: SearchConfig | None = None
    ) -> list[list[Output]]:
        """The same outputs, n of every source, each with the source words that its (first) model looked at for its words."""
        found = iter(self._align(*self._given(sources, outputs), decoding))
        return [[replace(each, alignment=next(found).words) for each in some] for some in outputs]

    def _given(
        self, sources: Sequence[Source], outputs: Sequence[list[Output]]
    ) -> tuple[list[Source], list[list[int]]]:
        """A source and the tokens for every output, with the end if it was reached."""
        pairs = [(source, each) for source, some in zip(sources, outputs, strict=True) for each in some]
        return [source for source, _ in pairs], [self._written(each) for _, each in pairs]

    def _written(self, output: Output) -> list[int]:
        """The tokens of an output, with the end if it was reached."""
        (eos,) = self.tokenizer.required("eos_id")
        return [*output.tokens, *[eos] * output.finished]

    def _checked(self, inputs: Sequence[InputT]) -> list[Source]:
        """The sources, none of them longer than learned positions."""
        sources = self.sources(inputs)
        for model in self.engines:
            for number, n_places in enumerate(source_lengths(model, sources), start=1):
                check_positions(f"input {number}", n_places, last_position(model, source=True))
        return sources

    def _targets(self, inputs: Sequence[InputT], texts: Sequence[str | Output]) -> list[list[int]]:
        """Ids of the texts, with their ends."""
        check_list(texts, "given outputs are a list of texts")
        if len(inputs) != len(texts):
            raise InputError(
                f"every input has one given text, but there are {len(inputs)} inputs and {len(texts)} texts"
            )
        given = self.tokenizer.with_eos(self.tokenizer.encode([text for text in texts if isinstance(text, str)]))
        ids = iter([row[len(self.tokenizer.opening) :] for row in given])
        rows = [self._written(text) if isinstance(text, Output) else next(ids) for text in texts]
        before = len(beginning(self.tokenizer, self.decoding)) - 1
        for number, row in enumerate(rows, start=1):
            check_positions(f"text {number}", before + len(row), last_position(*self.engines))
        return rows

    def _forced(
        self,
        model: Engine,
        sources: Sequence[Source],
        targets: Sequence[list[int]],
        decoding: SearchConfig | None = None,
    ) -> Iterator[tuple[list[int], Memory, Int[Tensor, "B T"], int]]:
        """Batch by batch: the numbers of the pairs, their memory, what the decoder reads, and where outputs begin in it."""
        prompt = beginning(self.tokenizer, decoding or self.decoding)
        lengths = zip(source_lengths(model, sources), map(len, targets), strict=True)
        for rows in batches(list(lengths), self.decoding.batch_tokens):
            memory = encoded(model, [sources[row] for row in rows])
            target_in, _ = pad([[*prompt, *targets[row][:-1]] for row in rows], 0)
            yield rows, memory, target_in.to(model.device), len(prompt) - 1


def scored(tokenizer: Tokenizer, output: Output, scores: TokenScores) -> Output:
    """The same output with how likely its tokens are, and its words with their confidence."""
    return replace(output, token_scores=scores, words=words_of_text(tokenizer, output.tokens, scores.log_probs))
