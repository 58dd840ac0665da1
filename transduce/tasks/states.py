"""Forward passes in batches: sources to encoder states, these to log-probabilities."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.batch import bucket, pad, pad_frames
from transduce.decode.scorer import at_least_float32
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.model.transformer import Memory, Transformer

Source = list[int] | Float[Tensor, "_ F"]
"""Input of an encoder: ids, or frames."""


class Task:
    """A model, its tokenizer, and the engines that compute it, of which an ensemble has several."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.engines: tuple[Engine, ...] = (model,)

    @property
    def engine(self) -> Engine:
        """The engine; of an ensemble, the first."""
        return self.engines[0]


ROWS = 512
"""Positions projected to the vocabulary at a time."""

ResultT = TypeVar("ResultT")


def batches(lengths: Sequence[int | tuple[int, ...]], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of rows of about one length, at most batch_tokens positions with padding."""
    if lengths:
        sizes = np.array(lengths).reshape(len(lengths), -1)
        # longest first: memory peaks early
        yield from (rows.tolist() for rows in reversed(bucket(sizes, batch_tokens)))


def in_batches(
    lengths: Sequence[int], batch_tokens: int, work: Callable[[list[int]], Iterable[ResultT]]
) -> Iterator[tuple[int, ResultT]]:
    """The number and the result of each row, as batches of rows are done, long rows first."""
    for rows in batches(lengths, batch_tokens):
        yield from zip(rows, work(rows), strict=True)


def in_order(results: Iterable[tuple[int, ResultT]]) -> list[ResultT]:
    """Restore the order of numbered results."""
    numbered = dict(results)
    return [numbered[row] for row in range(len(numbered))]


def padded(
    model: Engine, sources: Sequence[Source]
) -> tuple[Shaped[Tensor, "B S *F"], Int[Tensor, " B"]]:
    """Sources of one kind as one batch, in the numbers of the model, and their lengths."""
    if isinstance(sources[0], list):
        return pad([row for row in sources if isinstance(row, list)], 0)
    frames, lengths = pad_frames([row for row in sources if isinstance(row, Tensor)])
    return frames.to(model.dtype), lengths


def encoded(model: Engine, sources: Sequence[Source]) -> Memory:
    """The memory of one batch."""
    source, lengths = padded(model, sources)
    return model.encode(source.to(model.device), lengths.to(model.device))


def encoder_states(
    model: Engine, sources: Sequence[Source], batch_tokens: int
) -> list[Float[Tensor, "_ D"]]:
    """The encoder's states (S, D) of every source, without padding, on the CPU.

    Args:
        batch_tokens: source positions of a batch: speed and memory, never the figures.
    """

    states: list[tuple[int, Tensor]] = []
    for rows in batches(source_lengths(model, sources), batch_tokens):
        memory = encoded(model, [sources[row] for row in rows])
        assert memory.lengths is not None
        triples = zip(rows, memory.states.cpu(), memory.lengths.tolist(), strict=True)
        states += [(row, each[:length].clone()) for row, each, length in triples]
    return in_order(states)


def source_lengths(model: Engine, sources: Sequence[Source]) -> list[int]:
    """Encoder positions of each source."""
    return [
        len(row) if isinstance(row, list) else model.config.frames.out_lengths(len(row))
        for row in sources
    ]


def token_log_probs(
    model: Engine, states: Float[Tensor, "N D"], tokens: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """The natural log-probability of one token after each decoder state, in float32 or more."""
    parts = []
    for some, targets in zip(states.split(ROWS), tokens.split(ROWS), strict=True):
        log_probs = at_least_float32(model.project(some)).log_softmax(-1)
        parts.append(log_probs.gather(-1, targets[:, None])[:, 0])
    return torch.cat(parts)


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


def check_positions(
    name: str,
    n_positions: int,
    models: Sequence[Engine],
    *,
    source: bool = False,
    way_out: str = "split it",
) -> None:
    """Check that an input fits the learned positions of all models: of their encoders if `source`.

    Raises:
        InputError: it does not.
    """
    limit = last_position(*models, source=source)
    if n_positions > limit:
        raise InputError(
            f"{name} must fit into the model's learned positions, which end at {limit}, but it "
            f"takes {n_positions}; {way_out}"
        )
