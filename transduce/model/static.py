"""A decoder whose step has the same shapes at every position, so that a GPU can replay it as one CUDA graph.

Launching the many small kernels of one position takes a GPU longer than running them. A graph is launched at once, but
its tensors never move: rows, positions and the memory have room in buckets of powers of two, and what is not used of them
is padding. The layers are those of every other way; only the cache under them differs.
"""

from collections.abc import Callable
from functools import cache, partial
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.device import without_cudnn_attention
from transduce.model.cache import Cache, LayerCache
from transduce.model.config import TransformerConfig
from transduce.model.layers import Layer
from transduce.model.transformer import Stack, Transformer

POSITIONS, KEYS = 64, 32
"""The least room for positions of the target, and of the memory."""
IDLE_BYTES = 1 << 31
"""What slots may take that no search uses; those that were used last stay."""

Step = Callable[[], None]


class Shape(NamedTuple):
    """What a slot has room for. Rows are n_sentences * n_beams; a language model has n_keys = 0 and n_beams = 1."""

    n_sentences: int
    n_beams: int
    n_positions: int
    n_keys: int


class StaticLayer(LayerCache):
    """The cache of one layer as a part of a slot: a new position goes where the slot's `position` says."""

    def __init__(self, past: Float[Tensor, "2 N K L E"], memory: Float[Tensor, "2 B K S E"], position: Tensor) -> None:
        super().__init__()
        self.buffers, self.position = [*past], position
        self.memory = (memory[0], memory[1]) if memory.size(3) else None

    def append(
        self, key: Float[Tensor, "N K 1 E"], value: Float[Tensor, "N K 1 E"]
    ) -> tuple[Float[Tensor, "N K L E"], Float[Tensor, "N K L E"]]:
        """Write one position in place, and return all that there is room for."""
        for buffer, new in zip(self.buffers, (key, value), strict=True):
            buffer.index_copy_(2, self.position, new)
        return self.buffers[0], self.buffers[1]


class Slot:
    """The tensors of a step of one shape, and the step over them.

    Args:
        capture: makes the step quick; it may run it, whose results are forgotten.
    """

    def __init__(self, model: "StaticTransformer", shape: Shape, capture: Callable[[Step], Step]) -> None:
        config, weight, layers = model.config, next(model.parameters()), list(model.decoder_stack.layers)
        n_rows, heads = shape.n_sentences * shape.n_beams, (config.kv_heads, config.d_head)
        new = partial(torch.zeros, device=weight.device, dtype=weight.dtype)
        count = partial(torch.zeros, device=weight.device, dtype=torch.long)
        self.shape, self.length, self.n_sentences = shape, 0, 0
        self.owner: ref[Cache] | None = None
        """The cache that is here; a slot whose owner is gone is free."""
        self.tokens, self.position, self.states = count(n_rows, 1), count(1), new(n_rows, 1, config.d_model)
        self.past = new(len(layers), 2, n_rows, heads[0], shape.n_positions, heads[1])
        self.memory = new(len(layers), 2, shape.n_sentences, heads[0], shape.n_keys, heads[1])
        self.memory_lengths = count(shape.n_sentences)
        self.layers = [StaticLayer(*each, self.position) for each in zip(self.past, self.memory, strict=True)]
        self.run = capture(partial(advance, model, self))

    @property
    def n_bytes(self) -> int:
        """What its cache takes."""
        return self.past.nbytes + self.memory.nbytes

    @property
    def is_free(self) -> bool:
        """Whether no cache is here."""
        return self.owner is None or self.owner() is None

    def suits(self, n_rows: int) -> bool:
        """Whether the next position of these rows has its place here, and most of the slot is not padding."""
        small = room(self.n_sentences, 1) * 4 > self.shape.n_sentences
        return self.length < self.shape.n_positions and n_rows == self.n_sentences * self.shape.n_beams and small

    def step(self, target_in: Int[Tensor, "N 1"]) -> Float[Tensor, "N 1 D"]:
        """The states of one more position of every row."""
        self.tokens[: len(target_in)] = target_in
        self.run()
        self.length += 1
        return self.states[: len(target_in)].clone()

    def fill(self, cache: Cache, n_rows: int) -> None:
        """Take over what a cache holds. What is padding is zeroed: it may hold the NaN of another search."""
        self.length, self.n_sentences = cache.length, n_rows // self.shape.n_beams
        self.past.zero_()
        self.memory.zero_()
        self.position.fill_(self.length)
        for layer, past, memory in zip(cache.layers, self.past, self.memory, strict=True):
            for new, old in zip(past, layer.buffers, strict=True):
                new[:n_rows, :, : self.length] = old[:, :, : self.length]
            for new, old in zip(memory, layer.memory or (), strict=layer.memory is not None):
                new[: old.size(0), :, : old.size(2)] = old
                self.memory_lengths.fill_(old.size(2))  # a sentence of padding sees something, for no NaN
        if cache.memory_lengths is not None:
            self.memory_lengths[: self.n_sentences] = cache.memory_lengths

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Let row m continue from the past of row rows[m]."""
        past = self.past[:, :, :, :, : self.length]
        past[:, :, : len(rows)] = past.index_select(2, rows)
        if not self.shape.n_keys:
            self.n_sentences = len(rows)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Keep the memory of these sentences only."""
        if self.shape.n_keys:
            self.n_sentences = len(sentences)
            self.memory[:, :, : self.n_sentences] = self.memory.index_select(2, sentences)
            self.memory_lengths[: self.n_sentences] = self.memory_lengths.index_select(0, sentences)


class StaticCache(Cache):
    """A cache that moves into a slot for steps of one position, and out of it for all else."""

    slot: Slot | None = None

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self.layers[0].length if self.slot is None else self.slot.length

    def enter(self, model: "StaticTransformer", n_rows: int) -> Slot:
        """A slot that has room for the next position of these rows."""
        if self.slot is None or not self.slot.suits(n_rows):
            self.leave()
            memory = self.layers[0].memory
            n, n_keys = (n_rows, 0) if memory is None else (memory[0].size(0), room(memory[0].size(2), KEYS))
            shape = Shape(room(n, 1), n_rows // n, room(self.length + 1, POSITIONS), n_keys)
            slot = model.slots.take(model, shape, self)
            slot.fill(self, n_rows)
            for layer in self.layers:
                layer.buffers, layer.memory = [], None
            self.slot = slot
        return self.slot

    def leave(self) -> None:
        """Become an ordinary cache again."""
        if (slot := self.slot) is None:
            return
        n, self.slot = slot.n_sentences, None
        for layer, past, memory in zip(self.layers, slot.past, slot.memory, strict=True):
            layer.length = slot.length
            layer.buffers = [part[: n * slot.shape.n_beams, :, : slot.length].clone() for part in past]
            if slot.shape.n_keys:
                layer.memory = memory[0, :n].clone(), memory[1, :n].clone()
                self.memory_lengths = slot.memory_lengths[:n].clone()
        slot.owner = None

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Choose which rows continue, as in Cache."""
        if self.slot is not None and len(rows) > len(self.slot.tokens):
            self.leave()
        super().reorder(rows) if self.slot is None else self.slot.reorder(rows)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Drop the memory of finished sentences."""
        super().keep(sentences) if self.slot is None else self.slot.keep(sentences)


class Slots:
    """The slots of a model: those in use, and some that wait for the next search of their shape."""

    def __init__(self, capture: Callable[[Step], Step]) -> None:
        self.capture, self.lock = capture, Lock()
        self.known: list[Slot] = []
        """In the order in which they were taken last."""

    def take(self, model: "StaticTransformer", shape: Shape, cache: Cache) -> Slot:
        """A slot of this shape for the cache alone, until it leaves or is gone."""
        with self.lock:  # of two threads
            found = next((slot for slot in self.known if slot.shape == shape and slot.is_free), None)
            if found is None:
                with torch.inference_mode(False), torch.no_grad():  # whoever comes later may not be in that mode
                    found = Slot(model, shape, self.capture)
            else:
                self.known.remove(found)
            found.owner = ref(cache)
            self.known.append(found)
            idle = [slot for slot in self.known if slot.is_free]
            while sum(slot.n_bytes for slot in idle) > IDLE_BYTES:
                self.known.remove(idle.pop(0))
            return found

    def __deepcopy__(self, memo: dict[int, Any]) -> "Slots":
        return Slots(self.capture)  # its tensors are other ones


class StaticTransformer(Transformer):
    """A Transformer that decodes one position at a time in slots, where it can. Inference only."""

    slots: Slots
    hooks: list[dict[int, Callable[..., Any]]]

    @staticmethod
    def fits(config: TransformerConfig) -> bool:
        """Whether no layer asks the host: windows end at a position, and experts have positions, that it must know.

        Nor has linear attention keys and values, of which slots are made.
        """
        plain = config.window is None and not config.n_experts and config.attention == "softmax"
        return config.decoder is not None and plain

    @property
    def decoder_stack(self) -> Stack:
        """The decoder, which is there."""
        assert self.decoder is not None
        return self.decoder

    def new_cache(self) -> StaticCache:
        """A new, empty cache for `decode`."""
        return StaticCache(len(self.decoder_stack.layers))

    def decoder_states(self, target_in: Int[Tensor, "N T"], **known: Any) -> Float[Tensor, "N T D"]:
        """The states that `decode` projects to logits, as in Transformer; one position more of a search is a quick step."""
        cache = known.get("cache")
        if isinstance(cache, StaticCache):
            if target_in.size(1) == 1 and known.get("taps") is None and self._may_step(cache):
                return cache.enter(self, len(target_in)).step(target_in)
            cache.leave()
        return super().decoder_states(target_in, **known)

    def _may_step(self, cache: StaticCache) -> bool:
        """Not at the beginning, which reads the memory; nor past the table of positions, nor where a module is watched."""
        config = self.config.of(self.config.decoder)
        inside = config.positions == "none" or cache.length < config.max_positions
        inferring = not (self.training or torch.is_grad_enabled() or torch.is_autocast_enabled(self.device.type))
        return bool(cache.length) and inside and inferring and not any(self.hooks)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        self.slots = Slots(self.slots.capture)  # the weights move
        return super()._apply(fn, recurse)


def make_static(model: Transformer, capture: Callable[[Step], Step] | None = None) -> Transformer:
    """Let a model decode in slots, in place, if its layers fit; else leave it.

    Args:
        capture: makes the step of a slot quick: a CUDA graph on a GPU, and nothing elsewhere, unless told otherwise.
    """
    if StaticTransformer.fits(model.config):
        model.__class__ = StaticTransformer
        assert isinstance(model, StaticTransformer)
        if capture is None:
            capture = partial(graphed, device=model.device) if model.device.type == "cuda" else lambda step: step
        model.slots = Slots(capture)
        model.hooks = [module._forward_hooks for module in model.decoder_stack.modules()]
    return model


def advance(model: StaticTransformer, slot: Slot) -> None:
    """One position, from the tensors of a slot to its tensors; nothing else changes, and nothing is read by the host."""
    stack = model.decoder_stack
    assert model.target_input is not None
    x, _ = model.target_input(slot.tokens)
    x, rotation = stack.positions.one(x, slot.position)
    x = stack.embedding_norm(x)
    lengths = (slot.position + 1).expand(len(x))
    for layer, past in zip(stack.layers, slot.layers, strict=True):
        assert isinstance(layer, Layer)
        x = layer(x, lengths=lengths, memory_lengths=slot.memory_lengths, cache=past, rotation=rotation)
    slot.states.copy_(x if stack.norm is None else stack.norm(x))
    slot.position.add_(1)


def graphed(step: Step, device: torch.device) -> Step:
    """The step as one CUDA graph. It runs before that, as kernels are chosen and loaded the first time."""
    with torch.cuda.device(device), without_cudnn_attention:
        here, aside, graph = torch.cuda.current_stream(), side_stream(device), torch.cuda.CUDAGraph()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(2):
                step()
        here.wait_stream(aside)
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            step()
    return graph.replay


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures, as matrix products keep a workspace for every stream that they have seen."""
    return torch.cuda.Stream(device)


def room(n: int, least: int) -> int:
    """The smallest power of two that is at least n and `least`, which is one."""
    return max(least, 1 << (n - 1).bit_length()) if n > 1 else least
