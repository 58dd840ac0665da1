"""Inference in C++ on a CPU: a stack of layers in one call, see kernels.cpp. The layers in model/
are the reference."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from transduce.engine.cache import KVCache
from transduce.engine.stack import (
    BeamStruct,
    CPUStack,
    EmbeddingStruct,
    GreedyStruct,
    Matrix,
    vectors,
)
from transduce.engine.support import by_layers, unsupported
from transduce.errors import InputError
from transduce.kernels import compute
from transduce.model.cache import Cache
from transduce.model.inputs import States, TokenInput
from transduce.model.transformer import Memory, Transformer
from transduce.process import compute_after_fork, raise_if_cancelled

MAX_PRODUCTS = 1 << 32
"""Multiplications per call of a search, a fraction of a second: Ctrl-C waits for the call's end."""
INITIAL_LENGTH = 64
"""Tokens for which the tables of a search have room at first."""


class CPUEngine:
    """Computes in C++ what a Transformer in float32 computes, within rounding; parts that C++ does
    not support are computed by PyTorch's layers.

    Args:
        model: its weights must not change while the engine is used.
        int8: round matrices to 8-bit integers.
    """

    def __init__(self, model: Transformer, *, int8: bool = False) -> None:
        compute_after_fork()
        self.model = model.eval().requires_grad_(False)
        self.config = config = model.config
        self.int8 = int8
        self.vocab_size = model.vocab_size
        self.device = model.device
        self.dtype = torch.float32
        self.encoder = self.decoder = None
        if model.encoder is not None and not unsupported(config, config.encoder):
            self.encoder = CPUStack(model.encoder, int8=int8)
        if model.decoder is not None and not unsupported(config, config.decoder):
            self.decoder = CPUStack(model.decoder, int8=int8)
            table = model.target_input
            assert isinstance(table, TokenInput)
            self.embedding = EmbeddingStruct(table.weight, len(table.weight), table.scale)
        self.output = None
        if model.output is not None:
            self.output = Matrix(model.output[: model.vocab_size], model.output_bias, int8=int8)
        self.modules = list(model.modules())
        self.versions = self._versions()

    def __reduce__(self) -> tuple[Callable[..., "CPUEngine"], tuple[Transformer]]:
        """A copy, also in another process, is built anew from the model."""
        return partial(CPUEngine, int8=self.int8), (self.model,)

    def _check(self) -> None:
        versions = self._versions()
        if [version for _, version in versions] != [version for _, version in self.versions]:
            raise RuntimeError(
                "an engine computes with the weights that its model had when it was made, but they "
                "have changed; make another with engine_for(model), or load them with td.load"
            )
        if versions != self.versions:  # the weights were moved into shared memory
            vars(self).update(vars(CPUEngine(self.model, int8=self.int8)))

    def _versions(self) -> list[tuple[int, int]]:
        parameters = (weight for each in self.modules for weight in each._parameters.values())
        return [
            (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
            for weight in parameters
            if weight is not None
        ]

    @property
    def name(self) -> str:
        """How it computes, and which parts C++ does not support, with the reason."""
        return f"C++ in {'int8' if self.int8 else 'float32'}{by_layers(self.config)}"

    def encode(
        self,
        source: Shaped[Tensor, "B S *F"] | None,
        source_lengths: Int[Tensor, " B"] | None = None,
    ) -> Memory:
        """Ids (B, S) or frames (B, S, F) to memory, as Transformer.encode; states of padding are 0.

        Raises:
            RuntimeError: the model's weights have changed.
        """
        self._check()
        if self.encoder is None or source is None:
            return self.model.encode(source, source_lengths)
        assert self.model.source_input is not None
        x, lengths = self.model.source_input(source, source_lengths)
        x = self.encoder.positions(vectors(x, self.config.d_model)).clone()
        inside = None if lengths is None else lengths.long().clamp(0, x.size(1)).contiguous()
        positions = self.encoder.position_struct(0, x.size(1))
        compute("encoder_states", self.encoder.struct, x, *x.shape[:2], inside, positions)
        return Memory(x, lengths)

    def new_cache(self) -> KVCache | Cache:
        """A new, empty cache for `decoder_states`.

        Raises:
            RuntimeError: the model's weights have changed.
        """
        self._check()
        return self.model.new_cache() if self.decoder is None else KVCache(self.config.window)

    def decoder_states(
        self,
        target_in: Int[Tensor, "N T"],
        *,
        memory: Memory | None = None,
        cache: KVCache | Cache | None = None,
    ) -> States:
        """The states that `project` turns into logits, as Transformer.decoder_states.

        Raises:
            IndexError: a token is not in the vocabulary.
            InputError: the rows are not as many as in the cache, or not a multiple of the sentences
                of the memory.
            RuntimeError: no cache is given, and the model's weights have changed.
        """
        if self.decoder is None:
            assert not isinstance(cache, KVCache)
            return self.model.decoder_states(target_in, memory=memory, cache=cache)
        cache = self.new_cache() if cache is None else cache
        assert isinstance(cache, KVCache)
        past = self._fill(cache, memory, *target_in.shape)
        n_rows, n_new = target_in.shape
        tokens = target_in.long().contiguous()
        x = past.new_empty(n_rows, n_new, self.config.d_model)
        positions = self.decoder.position_struct(cache.length, cache.length + n_new)
        structs = (self.decoder.struct, cache.struct(), self.embedding, positions)
        if not compute("decoder_states", *structs, tokens, x, n_new):
            raise IndexError(
                f"tokens are 0 to {self.embedding.rows - 1}, but there is {int(tokens.min())} or "
                f"{int(tokens.max())}"
            )
        cache.advance(n_new)
        return x

    @property
    def searches(self) -> bool:
        """Whether `greedy` and `beam` can run all steps of a search."""
        return self.decoder is not None

    def greedy(
        self,
        last: Int[Tensor, " N"],
        bounds: Int[Tensor, " N"],
        cache: KVCache,
        *,
        eos_id: int,
        suppressed: Int[Tensor, " U"],
        log_prob: Float[Tensor, " N"] | None,
    ) -> Int[Tensor, "N L"]:
        """Greedy search: return the tokens that follow; after EOS, a row is filled with EOS.

        Args:
            last: the last token of each row, which is not in the cache yet.
            bounds: the largest number of new tokens of each row.
            eos_id: the token that ends a row; -1: there is none.
            suppressed: tokens that are never chosen.
            log_prob: of each row; the log-probabilities of its tokens are added in place.
        """
        bounds, rows = 1 + bounds, torch.arange(len(last))
        tokens = last[:, None]
        sizes = len(suppressed), eos_id, 1, 1
        search = GreedyStruct(None, suppressed, *sizes, bounds, None, rows, log_prob)

        def enlarge(size: int) -> None:
            nonlocal tokens
            tokens = F.pad(tokens, (0, size - tokens.size(1)), value=eos_id)
            search.tokens = tokens

        self._steps("greedy_steps", search, cache, (len(rows), 1), bounds, enlarge)
        return tokens[:, 1:]

    def beam(
        self,
        hypotheses: Sequence[Tensor],
        bounds: Int[Tensor, " B"],
        cache: KVCache,
        *,
        eos_id: int,
        suppressed: Int[Tensor, " U"],
        penalty: Callable[[int], float],
    ) -> tuple[list[Tensor], Int[Tensor, " B"]]:
        """Beam search: extend hypotheses until all sentences are done. Return them, in the order of
        `hypotheses`, and the length of each sentence's active ones.

        Args:
            hypotheses: tokens (B, K, L), log-probabilities and scores (B, K) of the active ones,
                whose last tokens are not in the cache yet, then of the finished ones, padded with
                EOS.
            bounds: the largest number of tokens of each sentence.
            eos_id: the token that ends a hypothesis; -1: there is none.
            suppressed: tokens that are never chosen.
            penalty: the length penalty, which divides the log-probability of so many tokens.
        """
        tables = [table.contiguous() for table in hypotheses]
        n_sentences, beam, length = tables[0].shape
        sentences, lengths = torch.arange(n_sentences), torch.full_like(bounds, length)
        parents = sentences.new_empty(n_sentences, beam)
        sizes = len(suppressed), eos_id, length, length, beam, n_sentences
        search = BeamStruct(
            None, suppressed, *sizes, bounds, None, sentences, lengths, parents, *tables
        )

        def enlarge(size: int) -> None:
            for i in (0, 3):
                tables[i] = F.pad(tables[i], (0, size - tables[i].size(2)), value=eos_id)
            search.active_tokens = tables[0]
            search.finished_tokens = tables[3]
            penalties = [1.0, *map(penalty, range(1, size + 1))]
            search.penalties = torch.tensor(penalties, dtype=torch.float32)

        self._steps("beam_steps", search, cache, (n_sentences, beam), bounds, enlarge)
        return tables, lengths

    def _steps(
        self,
        steps: str,
        search: Any,
        cache: KVCache,
        size: tuple[int, int],
        bounds: Int[Tensor, " B"],
        enlarge: Callable[[int], None],
    ) -> None:
        """Run the steps of a search until all of its sentences have ended.

        Args:
            size: the number of sentences, and of rows per sentence.
            bounds: the largest number of tokens of each sentence.
            enlarge: gives the tables of the search room for so many tokens.
        """
        assert self.decoder is not None and self.output is not None
        n_sentences, n_each = size
        maps = [each.linear for each in (*self.decoder.matrices, self.output)]
        weights = sum(each.inputs * each.outputs for each in maps)
        search.output = ctypes.addressof(self.output.linear)
        while n_sentences:
            if search.length == search.longest:
                search.longest = min(int(bounds.max()), max(INITIAL_LENGTH, 2 * search.longest))
                enlarge(search.longest)
            past = self._fill(cache, None, n_sentences * n_each, 1)
            struct, start = cache.struct(), cache.length
            per_call = max(1, MAX_PRODUCTS // (weights * n_sentences * n_each))
            n_steps = min(struct.capacity - struct.length, search.longest - search.length, per_call)
            positions = self.decoder.position_struct(start, start + n_steps)
            structs = (self.decoder.struct, struct, self.embedding, positions, search)
            x = past.new_empty(n_sentences * n_each, self.config.d_model)
            compute(steps, *structs, x, n_steps)
            cache.advance(struct.length - cache.stored)
            n_sentences = struct.n_rows // n_each
            cache.reorder(torch.arange(struct.n_rows))
            cache.keep(torch.arange(n_sentences))

    def _fill(self, cache: KVCache, memory: Memory | None, n_rows: int, n_new: int) -> Tensor:
        """Check the number of rows, make room for the new positions, and project the memory unless
        the cache has it."""
        assert self.decoder is not None
        raise_if_cancelled()
        config, n_layers = self.config, len(self.decoder.layers)
        heads = config.kv_heads, config.d_head
        if self.decoder.struct.cross and cache.memory is None:
            if memory is None:
                raise InputError(
                    "a decoder with cross-attention needs a memory, but memory=None; call encode() "
                    "first"
                )
            states = vectors(memory.states, config.d_model)
            n_sentences, length, _ = states.shape
            cache.memory = states.new_empty(n_layers, n_sentences, length, 2, *heads)
            cache.memory_slots = torch.arange(n_sentences)
            if memory.lengths is not None:
                cache.memory_lengths = memory.lengths.to(torch.long, copy=True)
            n_positions = n_sentences * length
            compute("project_memory", self.decoder.struct, states, n_positions, cache.memory)
        n_sentences = 1 if cache.memory is None else len(cache.memory_slots)
        if n_rows % max(1, n_sentences) or (cache.past is not None and n_rows != len(cache.slots)):
            raise InputError(
                f"rows must be as many as in the cache, and the same number for each of "
                f"{n_sentences} sentences, but there are {n_rows}"
            )
        return cache.make_room(n_rows, n_new, (n_layers, *heads))

    def project(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """States to logits, as Transformer.project."""
        return self.model.project(states) if self.output is None else self.output(states)

    def ctc_logits(self, memory_states: Float[Tensor, "B S D"]) -> Float[Tensor, "B S V"]:
        """The logits of the CTC head, as Transformer.ctc_logits."""
        return self.model.ctc_logits(memory_states)
