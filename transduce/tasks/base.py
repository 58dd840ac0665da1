"""What all tasks share: requests and their checks, and forward passes in batches."""

import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import islice
from numbers import Real
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.batch import bucket, pad, pad_frames
from transduce.decode.phrases import Prefix
from transduce.decode.rules import Rule
from transduce.decode.scorer import Scorer, at_least_float32
from transduce.decode.text_rules import spellings
from transduce.engine.cpu import CPUEngine
from transduce.engine.select import Engine
from transduce.errors import InputError, logger
from transduce.kernels import required
from transduce.model.transformer import Memory, Transformer
from transduce.process import cancel_with

InputT = TypeVar("InputT")

SURROGATE = re.compile("[\ud800-\udfff]")
"""A surrogate, which stands for a byte that was not UTF-8."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requirements of one source in a search, beyond the configuration."""

    prefix: Prefix | None = None
    """The required beginning of the output."""
    require: Sequence[str] = ()
    """The required phrases in the output."""
    number: int = 0
    """The number of the input among all inputs; samples depend on it."""
    part: int = 0
    """The number of this part of the input; samples depend on it, too."""
    language: str = ""
    """The language of the sound, where it was detected."""
    bias: Sequence[tuple[str, float]] = ()
    """Phrases with a bonus in the output, in nats."""

    @property
    def has_text(self) -> bool:
        """Whether some of the output is prescribed."""
        return bool(self.prefix or any(self.require))


@dataclass(frozen=True, kw_only=True)
class Details:
    """What outputs have besides their text."""

    scores: bool = True
    """Log-probability and score, for which a translator's greedy search and sampling take a pass
    over the vocabulary in every step; if False, both are nan. Beam search always has them."""
    token_scores: bool = False
    """Log-probabilities of tokens, and the confidence of words."""
    alignments: bool = False
    """The source word that each word is aligned to; for text."""
    word_times: bool = False
    """The times of words, and their confidence; for sound."""
    no_speech: bool = False
    """The no-speech probability, if the model has one."""


PLAIN = Details()
"""Only text, log-probability and score."""


@dataclass(frozen=True)
class LanguageModel:
    """A language model for shallow fusion."""

    begin: Callable[[int], Scorer]
    """Makes a scorer of n texts at their beginning."""
    max_length: int = sys.maxsize
    """The most tokens of a text."""


def is_single(inputs: object) -> bool:
    """Whether this is one input, no list of them: a text, a file, or samples with their rate."""
    if isinstance(inputs, tuple):
        return len(inputs) == 2 and isinstance(inputs[1], Real)
    return isinstance(inputs, str | Path | BufferedIOBase)


def check_list(inputs: object, rule: str, *, of_text: bool = False) -> None:
    """Raise InputError with this rule unless an input is a list, not a single string or path.

    Args:
        of_text: every element must be text that UTF-8 can encode.
    """
    if isinstance(inputs, str | Path):
        raise InputError(f"{rule}, but got one string; use [{str(inputs)[:20]!r}]")
    if not isinstance(inputs, Collection) or isinstance(inputs, Mapping):
        raise InputError(f"{rule}, but got {type(inputs).__name__}; make a list of it")
    for i, each in enumerate(inputs if of_text else ()):
        if not isinstance(each, str) or (not each.isascii() and SURROGATE.search(each)):
            raise InputError(
                f"{rule}, but element {i} is {each!r:.40}, which UTF-8 cannot hold; make text of it"
            )


def with_phrases(
    inputs: Sequence[InputT],
    prefix: Sequence[str] | None,
    require: Sequence[Sequence[str]] | None,
) -> Iterator[tuple[InputT, str, Sequence[str]]]:
    """Every input with its prefix and its required phrases, which are empty for None.

    Raises:
        InputError: there are more or fewer than inputs, a prefix is not text, or phrases are not a
            list.
    """
    n = len(inputs)
    for name, texts in (("prefix", prefix), ("require", require)):
        if texts is not None and (isinstance(texts, str) or len(texts) != n):
            actual = "one string" if isinstance(texts, str) else len(texts)
            raise InputError(
                f"{name} must be a list with one for each of the {n} inputs, but got {actual}; use "
                "an empty one for none"
            )
    check_list(prefix or [], "prefix takes a list of texts", of_text=True)
    for phrases in require or []:
        check_list(phrases, "require takes a list of phrases for each input", of_text=True)
    return zip(inputs, prefix or [""] * n, require or [[]] * n, strict=True)


def warn_of_lacking(name: str, phrases: Sequence[str], text: str, tokenizer: Tokenizer) -> None:
    """Warn of required phrases that a text lacks, as its tokenizer normalizes them; `name` is the
    input's name."""
    spelled = spellings(tokenizer, phrases)
    raw = text.encode()
    if lacking := [each for each in phrases if spelled.get(each, b"?").strip(b" ") not in raw]:
        logger.warning("%s lacks required phrases (no room, or forbidden): %s", name, lacking)


Source = list[int] | Float[Tensor, "_ F"]
"""Input of an encoder: ids, or frames."""


ROWS = 512
"""Positions projected to the vocabulary at a time."""

BatchT = TypeVar("BatchT")
ResultT = TypeVar("ResultT")

MAX_PARALLEL = 4
"""The most batches computed in parallel: more would wait for Python's GIL."""

WIDEST = 512
"""The largest d_model with which several batches are computed in parallel."""

PIECE = 8
"""The fewest rows that are worth a thread of their own."""


class Task:
    """A model, its tokenizer, and the engines that compute it, of which an ensemble has several."""

    rules: Sequence[Rule] = ()
    """The caller's own rules for every search, applied after those of the configuration."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.engines: tuple[Engine, ...] = (model,)

    @property
    def engine(self) -> Engine:
        """The engine; of an ensemble, the first."""
        return self.engines[0]

    @property
    def _n_parallel(self) -> int:
        """How many batches are computed in parallel. On a CPU each batch has threads of its own,
        because threads that share a batch wait for one another in every step.

        Batches are computed one after the other for a wide model, whose steps are long and whose
        batches take much memory, and with the caller's own rules, which need not be thread-safe.
        """
        at_once = not self.rules and all(
            isinstance(engine, CPUEngine) and engine.config.d_model <= WIDEST
            for engine in self.engines
        )
        return min(MAX_PARALLEL, torch.get_num_threads()) if at_once else 1

    def _map_parallel(
        self, some: Sequence[BatchT], work: Callable[[BatchT], ResultT]
    ) -> Iterator[tuple[BatchT, ResultT]]:
        """Each batch and its result, in the order of the batches; several are computed in
        parallel."""
        n = min(len(some), self._n_parallel)
        if n <= 1:
            yield from ((batch, work(batch)) for batch in some)
            return
        n_threads, cancelled = torch.get_num_threads() // n, Event()

        def begin() -> None:
            torch.get_num_threads()  # from now on this thread has its own number of threads
            required().use_threads(n_threads)
            cancel_with(cancelled)

        pool = ThreadPoolExecutor(n, "batch", begin)
        try:
            begun = ((batch, pool.submit(work, batch)) for batch in some)
            pending = deque(islice(begun, 2 * n))
            while pending:
                batch, future = pending.popleft()
                result = future.result()
                pending.extend(islice(begun, 1))
                yield batch, result
        finally:
            cancelled.set()
            pool.shutdown(cancel_futures=True)

    def _in_batches(
        self,
        lengths: Sequence[int],
        batch_tokens: int,
        work: Callable[[list[int]], Sequence[ResultT]],
    ) -> Iterator[tuple[int, ResultT]]:
        """The number and the result of each row, as batches of rows are done, long rows first."""
        some = balanced(list(batches(lengths, batch_tokens)), self._n_parallel)
        for rows, results in self._map_parallel(some, work):
            yield from zip(rows, results, strict=True)


def balanced(some: list[list[int]], n: int) -> list[list[int]]:
    """The same batches for n workers; the last ones are split into pieces if workers would be
    idle."""
    rest = len(some) % n
    n_pieces = n // rest if rest else 1
    pieces = [
        rows[i::each]
        for rows in some[len(some) - rest :]
        for each in [min(n_pieces, max(1, len(rows) // PIECE))]
        for i in range(each)
    ]
    return some[: len(some) - rest] + pieces


def batches(lengths: Sequence[int | tuple[int, ...]], batch_tokens: int) -> Iterator[list[int]]:
    """Batches of the numbers of rows with similar lengths, of at most batch_tokens positions with
    padding."""
    if lengths:
        sizes = np.array(lengths).reshape(len(lengths), -1)
        # longest first: memory peaks early
        yield from (rows.tolist() for rows in reversed(bucket(sizes, batch_tokens)))


def in_order(results: Iterable[tuple[int, ResultT]]) -> list[ResultT]:
    """Restore the order of numbered results."""
    numbered = dict(results)
    return [numbered[row] for row in range(len(numbered))]


def encoded(model: Engine, sources: Sequence[Source]) -> Memory:
    """The encoder's output for one batch of sources, which are all ids or all frames."""
    rows: Any = sources
    if isinstance(sources[0], list):
        source, lengths = pad(rows, 0)
    else:
        frames, lengths = pad_frames(rows)
        source = frames.to(model.dtype)
    return model.encode(source.to(model.device), lengths.to(model.device))


@torch.no_grad()
def encoder_states(
    model: Engine, sources: Sequence[Source], batch_tokens: int
) -> list[Float[Tensor, "_ D"]]:
    """The encoder's states (S, D) of every source, without padding, on the CPU.

    Args:
        batch_tokens: source positions of a batch; it changes speed and memory, never the states.
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
    """The most positions of a sequence in all of these models; only learned positions have a limit.

    Args:
        source: for the encoder, not for the decoder.
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
