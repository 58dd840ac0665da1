"""Caches, taps, and the context of a layer.

A cache holds keys and values of the positions decoded so far (their sums in linear attention), so
that a step computes one position only. Taps collect attention weights, router scores and CTC
logits.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.model.inputs import NO_DISTANCES, Distances, Lengths


class Memory(NamedTuple):
    """The output of the encoder: one vector per source position, and how many of them are not
    padding."""

    states: Float[Tensor, "B S D"]
    lengths: Int[Tensor, " B"] | None


class ProjectedMemory(NamedTuple):
    """Keys and values of a memory, and how many of its positions are not padding."""

    key: Float[Tensor, "B H S E"]
    value: Float[Tensor, "B H S E"]
    lengths: Int[Tensor, " B"] | None


class LayerCache:
    """The cache of one layer: keys and values of earlier positions, in buffers that double when
    full, and keys and values of the memory.

    Args:
        window: queries see window - 1 earlier positions at most, so buffers have room for
            2 * window; None: they see all.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.length = 0
        """Positions decoded so far."""
        self.stored = 0
        """Positions that the buffers hold: the last ones. 1 in linear attention."""
        self.buffers: list[Tensor] = []
        """Keys and values, with room for more positions, or `state` alone in linear attention.
        Empty before the first position."""
        self.memory: ProjectedMemory | None = None
        """None in a language model, and before the first call."""

    def append(
        self, key: Float[Tensor, "N H T E"], value: Float[Tensor, "N H T E"]
    ) -> tuple[Float[Tensor, "N H L E"], Float[Tensor, "N H L E"]]:
        """Write T new positions in place, and return all L positions, or at least those that the
        new queries may see."""
        self._make_room(key, value)
        end = self.stored + key.size(2)
        for buffer, new in zip(self.buffers, (key, value), strict=True):
            buffer[:, :, self.stored : end] = new
        self.stored = end
        self.length += key.size(2)
        keys, values = self.buffers
        return keys[:, :, :end], values[:, :, :end]

    def _make_room(self, *new: Tensor) -> None:
        """Make room for new positions after the earlier ones that they may see."""
        n, window = new[0].size(2), self.window
        usual = 16 if window is None else 2 * window
        capacity = self.buffers[0].size(2) if self.buffers else 0
        beyond_window = window is not None and capacity > usual  # after a long prompt
        if self.stored + n <= capacity and not beyond_window:
            return
        past = self.stored if window is None else min(self.stored, window - 1)
        capacity = max(usual, 2 * (past + n) if window is None else past + n)
        old = self.buffers
        self.buffers = [part.new_empty(*part.shape[:2], capacity, part.size(3)) for part in new]
        for small, large in zip(old, self.buffers, strict=False):
            large[:, :, :past] = small[:, :, self.stored - past : self.stored]
        self.stored = past

    @property
    def state(self) -> Float[Tensor, "N H 1 E V"] | None:
        """The state of linear attention after all positions so far, stored as if it were one
        position; None before the first."""
        return self.buffers[0] if self.buffers else None

    def advance(self, state: Float[Tensor, "N H 1 E V"], n_positions: int) -> None:
        """Add n_positions, after which this is the state of linear attention."""
        self.buffers = [state]
        self.stored = 1
        self.length += n_positions

    @torch.no_grad()
    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Let row m continue from the positions of row rows[m]; rows may repeat or be left out."""
        for i, buffer in enumerate(self.buffers):
            self.buffers[i] = buffer.new_empty(rows.size(0), *buffer.shape[1:])
            used = self.buffers[i][:, :, : self.stored]
            torch.index_select(buffer[:, :, : self.stored], 0, rows, out=used)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Keep the memory of these sentences only."""
        if self.memory is not None:
            key, value, lengths = self.memory
            lengths = None if lengths is None else lengths[sentences]
            self.memory = ProjectedMemory(key[sentences], value[sentences], lengths)


class Cache:
    """One LayerCache per decoder layer. It starts empty, and the decoder fills it."""

    def __init__(self, n_layers: int, window: int | None = None) -> None:
        self.layers = [LayerCache(window) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self.layers[0].length

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Choose which rows continue. The memory stays, as it belongs to sentences and not to
        beams."""
        for layer in self.layers:
            layer.reorder(rows.long())

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Drop the memory of finished sentences."""
        for layer in self.layers:
            layer.keep(sentences)


@dataclass(kw_only=True)
class Taps:
    """Lists that a forward pass fills, one entry per layer in order; None: not collected."""

    cross_attention: list[Float[Tensor, "N H T S"]] | None = None
    self_attention: list[Float[Tensor, "N H T T"]] | None = None
    balance_losses: list[Float[Tensor, ""]] | None = None
    """The weighted losses of layers with experts, in nats per token, which training adds to its
    loss."""
    ctc_logits: list[Float[Tensor, "B S V"]] | None = None
    """The logits of the CTC head after each of the config's ctc_layers."""
    router_scores: list[Float[Tensor, "N T X"]] | None = None
    """Scores of the experts of one layer, see `of_layer`."""

    def of_layer(self) -> "Taps":
        """The taps of one layer: the same lists for attention, a new list for router scores.

        Activation checkpointing runs a compiled graph twice, and the second run must not change a
        list outside of the graph.
        """
        return Taps(
            cross_attention=self.cross_attention,
            self_attention=self.self_attention,
            router_scores=None if self.balance_losses is None else [],
        )


NO_TAPS = Taps()
"""Collects nothing."""


class Context(NamedTuple):
    """What a layer is given besides the vectors (N, T, D) of its positions."""

    lengths: Lengths | None = None
    """Hides padding from self-attention. A causal stack needs no lengths, as padding lies in the
    future."""
    memory: Memory | None = None
    """What cross-attention attends to; with a cache, only the first call reads it."""
    cache: LayerCache | None = None
    """Keys (rotated) and values of earlier positions, or their sums, and of the memory. The layer
    adds those of its positions."""
    distances: Distances = NO_DISTANCES
    """Rotation angles of rotary positions, or attention bias of relative ones."""
    taps: Taps = NO_TAPS
    """Collects attention weights and router scores."""


NO_CONTEXT = Context()
