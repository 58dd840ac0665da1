"""What goes through a model without a search: batches of sources to encoder states, decoder states to log-probabilities."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.batch import bucket, pad, pad_frames
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.scorer import at_least_float32
from transduce.engine.select import Engine
from transduce.errors import InputError
from transduce.model.transformer import Memory, Transformer

Source = list[int] | Float[Tensor, "_ F"]
"""What flows into an encoder: ids, or frames."""


class Task:
    """A model, its tokenizer, and what computes: engines, of which an ensemble has several."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.engines: tuple[Engine, ...] = (model,)

    @property
    def engine(self) -> Engine:
        """What computes; of an ensemble, the first."""
        return self.engines[0]


ROWS = 512
"""Positions projected to the vocabulary at a time."""


def encoder_states(model: Engine, sources: Sequence[Source], batch_tokens: int) -> list[Float[Tensor, "_ D"]]:
    """The encoder's states (S, D) of every source, without padding, on the CPU.

    Args:
        batch_tokens: source positions in one go: speed and memory, never the figures.
    """
    found: dict[int, Tensor] = {}
    for rows in batches([(n,) for n in source_lengths(model, sources)], batch_tokens):
        memory = encoded(model, [sources[row] for row in rows])
        assert memory.lengths is not None
        for row, states, n in zip(rows, memory.states.cpu(), memory.lengths.tolist(), strict=True):
            found[row] = states[:n].clone()
    return [found[row] for row in range(len(sources))]


def encoded(model: Engine, sources: Sequence[Source]) -> Memory:
    """The memory of some sources together: all ids, or all frames."""
    if isinstance(sources[0], list):
        source, lengths = pad([row for row in sources if isinstance(row, list)], 0)
    else:
        source, lengths = pad_frames([row for row in sources if isinstance(row, Tensor)])
        source = source.to(model.dtype)
    return model.encode(source.to(model.device), lengths.to(model.device))


def source_lengths(model: Engine, sources: Sequence[Source]) -> list[int]:
    """How many encoder positions each source takes."""
    return [len(row) if isinstance(row, list) else model.config.frames.out_lengths(len(row)) for row in sources]


def token_log_probs(model: Engine, states: Float[Tensor, "N D"], wanted: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The natural log-probability that each of the decoder's states gives to the token wanted there, in float32 or more."""
    parts = []
    for some, tokens in zip(states.split(ROWS), wanted.split(ROWS), strict=True):
        logits = at_least_float32(model.project(some))
        parts.append(logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0])
    return torch.cat(parts)


def check_positions(name: str, n_positions: int, limit: int) -> None:
    """Check that a model has so many positions.

    Raises:
        InputError: it has fewer.
    """
    if n_positions > limit:
        raise InputError(
            f"{name} must fit into the model's learned positions, which end at {limit}, but it takes {n_positions}; "
            "split it"
        )


def batches(lengths: Sequence[tuple[int, ...]], batch_tokens: int) -> Iterator[list[int]]:
    """The numbers of rows that go together, as they are about as long: of at most batch_tokens positions, padding included."""
    if lengths:
        yield from (batch.tolist() for batch in bucket(np.array(lengths), batch_tokens))
