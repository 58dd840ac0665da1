"""Encoder-decoder models: search, scores and alignments of given outputs, encoder states."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.batch import pad
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.model.transformer import Memory, cross_attention
from transduce.plot import attention_map
from transduce.tasks.base import (
    Details,
    Source,
    batches,
    check_list,
    check_positions,
    encoded,
    encoder_states,
    in_order,
    is_single,
    source_lengths,
    token_log_probs,
)
from transduce.tasks.config import SearchConfig
from transduce.tasks.outputs import (
    Output,
    TokenScores,
    WordAlignment,
    with_scores,
)
from transduce.tasks.search import SearchTask, decoder_prompt

InputT = TypeVar("InputT")
TaskT = TypeVar("TaskT", bound="Seq2SeqTask[Any]")


@dataclass(frozen=True)
class Alignment:
    """The cross-attention of a decoder while it writes a given text."""

    source: list[str]
    """The S source tokens; none for sound, see `seconds`."""
    target: list[str]
    """The T target tokens; the last is the end."""
    weights: Float[Tensor, "L H T S"]
    """Cross-attention by layer and head: row t predicted target token t, and sums to 1."""
    seconds: float | None = None
    """The time from one source position to the next, if the source is sound; position s begins at s
    * seconds."""
    words: WordAlignment | None = None
    """The source word that each target word is aligned to; None for sound."""

    @property
    def layer(self) -> int:
        """The layer that pictures show: that of `words`; for sound, the second to last, which
        aligns best, or the only one.

        Source: Garg et al. (2019), Jointly Learning to Align and Translate with Transformer Models.
        """
        if self.words and self.words.layer is not None:
            return self.words.layer
        return max(0, len(self.weights) - 2)

    def draw(self, path: Path | str | BytesIO, title: str = "") -> None:
        """Write the mean over the heads of `layer` as a PNG, a row for every target token."""
        source = self.source if self.seconds is None else self.seconds
        title = f"{title}\nlayer {self.layer + 1} of {len(self.weights)}, mean over heads".strip()
        weights = self.weights[self.layer].mean(dim=0).float()
        attention_map(weights, self.target, source, title, path)

    def _repr_png_(self) -> bytes:
        """The picture that a notebook shows."""
        file = BytesIO()
        self.draw(file)
        return file.getvalue()


class Seq2SeqTask(SearchTask, ABC, Generic[InputT]):
    """A task of an encoder-decoder model: search, scores and alignments of given outputs."""

    @overload
    def __call__(
        self, inputs: InputT, decoding: SearchConfig | None = None, **settings: Any
    ) -> str: ...
    @overload
    def __call__(
        self, inputs: Sequence[InputT], decoding: SearchConfig | None = None, **settings: Any
    ) -> list[str]: ...
    def __call__(
        self,
        inputs: InputT | Sequence[InputT],
        decoding: SearchConfig | None = None,
        **settings: Any,
    ) -> str | list[str]:
        """The best text of one input, or of each in a list.

        Args:
            decoding: the search configuration; default: the run's own.
            settings: fields of SearchConfig, such as beam_size=10.

        Raises:
            InputError: an input cannot be used.
        """
        if is_single(inputs):
            return self._texts([cast(InputT, inputs)], decoding, settings)[0]
        return self._texts(cast(Sequence[InputT], inputs), decoding, settings)

    @abstractmethod
    def _texts(
        self, inputs: Sequence[InputT], decoding: SearchConfig | None, settings: dict[str, Any]
    ) -> list[str]:
        """The best text of each input."""

    @abstractmethod
    def sources(self, inputs: Sequence[InputT]) -> list[Source]:
        """The encoder's input for every input of the task.

        Raises:
            InputError: one of them cannot be used.
        """

    @abstractmethod
    def _alignment(
        self, source: Source, output: Output, weights: Float[Tensor, "L H T S"]
    ) -> Alignment:
        """The alignment of a source and an output by the cross-attention between their tokens."""

    def with_decoding(self: TaskT, decoding: SearchConfig) -> TaskT:
        """The same task with another `decoding`, in the languages that it names."""
        task = copy(self)
        task.decoding = decoding
        return task

    def _for_call(
        self: TaskT, settings: dict[str, Any], decoding: SearchConfig | None = None
    ) -> TaskT:
        """The task for one call: with its settings, and with another `decoding` if it gives one."""
        decoding = decoding or self.decoding
        # checking all of them again takes a millisecond
        return self.with_decoding(decoding.changed(**settings) if settings else decoding)

    def encode(self, inputs: Sequence[InputT], **settings: Any) -> list[Float[Tensor, "_ D"]]:
        """The encoder's states (S, d_model) of every input, a row per source position, on the CPU.

        Text has a position per token and one for EOS; sound has one per stack of frames.

        Raises:
            InputError: an input cannot be used, or is longer than learned positions; or this is an
                ensemble.
        """
        self._check_single("encode")
        task = self._for_call(settings)
        sources = task._checked_sources(inputs)
        return encoder_states(task.engine, sources, task.decoding.batch_tokens)

    def score(
        self, inputs: Sequence[InputT], texts: Sequence[str | Output], **settings: Any
    ) -> list[TokenScores]:
        """How likely each text is as the output for its input, by attention alone, without CTC.

        An output stands for its tokens; in an ensemble, a log-probability is the mean of the
        models'. `settings` are fields of SearchConfig, such as target_language="de".

        Raises:
            InputError: there are not as many texts as inputs, or one of either cannot be used.
        """
        task = self._for_call(settings)
        return task._token_scores(task._checked_sources(inputs), task._as_outputs(inputs, texts))

    def align(
        self, inputs: Sequence[InputT], texts: Sequence[str | Output], **settings: Any
    ) -> list[Alignment]:
        """The decoder's cross-attention to each input while it writes a given text, or an output's
        tokens.

        Raises:
            InputError: as for `score`; or this is an ensemble.
        """
        self._check_single("align")
        task = self._for_call(settings)
        return task._align(task._checked_sources(inputs), task._as_outputs(inputs, texts))

    def _detailed(
        self, sources: Sequence[Source], outputs: Sequence[list[Output]], details: Details
    ) -> list[list[Output]]:
        """The n best outputs of every source with scores of tokens, confidence of words, and
        alignments of words by the (first) model, as far as requested."""
        if not (details.token_scores or details.alignments):
            return list(outputs)
        n_best = len(outputs[0])
        flat = [output for some in outputs for output in some]
        repeated = [source for source in sources for _ in range(n_best)]
        if details.token_scores:
            scores = self._token_scores(repeated, flat)
            flat = [with_scores(self.tokenizer, *pair) for pair in zip(flat, scores, strict=True)]
        if details.alignments:
            alignments = self._align(repeated, flat)
            flat = [replace(o, alignment=a.words) for o, a in zip(flat, alignments, strict=True)]
        return [flat[i : i + n_best] for i in range(0, len(flat), n_best)]

    @torch.no_grad()
    def _token_scores(
        self, sources: Sequence[Source], outputs: Sequence[Output]
    ) -> list[TokenScores]:
        """Log-probabilities of the tokens of outputs; in an ensemble, the mean of the models'."""
        targets = [self._target(output) for output in outputs]

        def log_probs(model: Engine) -> Iterator[tuple[int, Tensor]]:
            for rows, memory, target_in, first in self._teacher_forced(model, sources, targets):
                batch = model.decoder_states(target_in, memory=memory)[:, first:]
                for row, states in zip(rows, batch, strict=True):
                    tokens = torch.tensor(targets[row], device=states.device)
                    yield row, token_log_probs(model, states[: len(tokens)], tokens).cpu()

        by_model = [in_order(log_probs(model)) for model in self.engines]
        return [
            TokenScores(self.tokenizer.tokens(ids), torch.stack(each).mean(dim=0))
            for ids, *each in zip(targets, *by_model, strict=True)
        ]

    @torch.no_grad()
    def _align(self, sources: Sequence[Source], outputs: Sequence[Output]) -> list[Alignment]:
        """Alignments of outputs; in an ensemble, by the first model."""
        targets = [self._target(output) for output in outputs]
        alignments: list[tuple[int, Alignment]] = []
        for rows, memory, target_in, first in self._teacher_forced(self.model, sources, targets):
            assert memory.lengths is not None
            batch = cross_attention(self.model, memory, target_in)[:, :, :, first:].cpu()
            for b, (row, length) in enumerate(zip(rows, memory.lengths.tolist(), strict=True)):
                weights = batch[:, b, :, : len(targets[row]), :length].clone()
                alignments.append((row, self._alignment(sources[row], outputs[row], weights)))
        return in_order(alignments)

    def _teacher_forced(
        self, model: Engine, sources: Sequence[Source], targets: Sequence[list[int]]
    ) -> Iterator[tuple[list[int], Memory, Int[Tensor, "B T"], int]]:
        """Batches of pairs for teacher forcing: row numbers, memory, the decoder's input, and where
        outputs begin in it."""
        prompt = decoder_prompt(self.tokenizer, self.decoding)
        lengths = zip(source_lengths(model, sources), map(len, targets), strict=True)
        for rows in batches(list(lengths), self.decoding.batch_tokens):
            memory = encoded(model, [sources[row] for row in rows])
            target_in, _ = pad([[*prompt, *targets[row][:-1]] for row in rows], 0)
            yield rows, memory, target_in.to(model.device), len(prompt) - 1

    def _checked_sources(self, inputs: Sequence[InputT]) -> list[Source]:
        """The sources, after a check that they fit into learned positions."""
        sources = self.sources(inputs)
        for model in self.engines:
            for number, length in enumerate(source_lengths(model, sources), start=1):
                check_positions(f"input {number}", length, [model], source=True)
        return sources

    def _as_outputs(self, inputs: Sequence[InputT], texts: Sequence[str | Output]) -> list[Output]:
        """Given texts as outputs; strings are tokenized and end with EOS."""
        rule = "given outputs are a list of texts"
        check_list(texts, rule)
        if len(inputs) != len(texts):
            raise InputError(
                f"every input has one given text, but there are {len(inputs)} inputs and "
                f"{len(texts)} texts"
            )
        strings = [text for text in texts if not isinstance(text, Output)]
        check_list(strings, rule, of_text=True)
        rows = iter(self.tokenizer.encode(strings))
        outputs = [
            text if isinstance(text, Output) else Output(text, tokens=next(rows)) for text in texts
        ]
        n_prompt = len(decoder_prompt(self.tokenizer, self.decoding)) - 1
        for number, output in enumerate(outputs, start=1):
            n_positions = n_prompt + len(self._target(output))
            check_positions(f"text {number}", n_positions, self.engines)
        return outputs

    def _target(self, output: Output) -> list[int]:
        """The tokens of an output, with the end if it was reached."""
        return [*output.tokens, *(self.tokenizer.required("eos_id") if output.finished else ())]

    def _check_single(self, name: str) -> None:
        """Raise InputError where this is an ensemble."""
        if len(self.engines) > 1:
            raise InputError(
                f"{name} needs a single model, but this is an ensemble of {len(self.engines)}; "
                "load one run alone for it"
            )
