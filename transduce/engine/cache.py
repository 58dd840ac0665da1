"""Keys and values of the positions decoded so far, as kernels.cpp reads and writes them."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.engine.stack import CacheStruct

CAPACITY = 32
"""Capacity of a new cache in positions."""


class KVCache:
    """Keys and values of all layers in one tensor, with capacity for more positions, and those of
    the memory.

    No keys or values are moved when rows are reordered or removed: a table holds the slot of each
    position of each row, and rows with common earlier positions share their slots.

    Args:
        window: queries see window - 1 earlier positions at most; older ones are dropped. None: all
            are kept.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.length = 0
        """Positions decoded so far."""
        self.stored = 0
        """Positions that the cache holds: the last ones."""
        self.past: Float[Tensor, "L slots C 2 K E"] | None = None
        self.slots: Int[Tensor, "N C"] = torch.empty(0, 0, dtype=torch.long)
        """The slot of each position of each row."""
        self.memory: Float[Tensor, "L slots S 2 K E"] | None = None
        self.memory_slots: Int[Tensor, " B"] = torch.empty(0, dtype=torch.long)
        self.memory_lengths: Int[Tensor, " B"] | None = None

    def make_room(self, n_rows: int, n_new: int, shape: tuple[int, int, int]) -> Tensor:
        """Return `past` with a slot for every row and capacity for n_new positions more. The first
        call allocates it, for the shape (layers, heads, width)."""
        n_layers, *heads = shape
        if self.past is None:
            self.past = torch.empty(n_layers, 0, 0, 2, *heads, dtype=torch.float32)
            self.slots = torch.empty(n_rows, 0, dtype=torch.long)
        dropped = 0 if self.window is None else max(0, self.stored - self.window + 1)
        needed = self.stored - dropped + n_new
        usual = max(CAPACITY, 2 * needed) if self.window is None else 2 * self.window
        n_slots, capacity = self.past.shape[1:3]
        small = n_rows > n_slots or self.stored + n_new > capacity
        if small or needed <= usual < capacity:  # a long prompt is over
            places = torch.arange(dropped, self.stored)
            recent = self.past[:, self.slots[:, dropped : self.stored], places]
            self.stored -= dropped
            self.past = recent.new_empty(n_layers, n_rows, max(usual, needed), 2, *heads)
            self.past[:, :, : self.stored] = recent
            self.slots = torch.arange(n_rows)[:, None].repeat(1, self.past.size(2))
        return self.past

    def struct(self) -> Any:
        """The structure through which kernels.cpp reads the cache."""
        past, memory = self.past, self.memory
        assert past is not None
        return CacheStruct(
            past,
            self.slots,
            memory,
            self.memory_slots,
            self.memory_lengths,
            len(self.slots),
            past.size(1),
            self.stored,
            past.size(2),
            len(self.memory_slots),
            *((0, 0) if memory is None else memory.shape[1:3]),
        )

    def advance(self, n_new: int) -> None:
        """Count n_new positions that were written."""
        self.length += n_new
        self.stored += n_new

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Choose which rows continue. The memory stays, as it belongs to sentences and not to
        beams.

        Raises:
            IndexError: a row does not exist.
        """
        if self.past is not None:
            self.slots = self.slots.index_select(0, rows.long())

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Keep the memory of these sentences only."""
        if self.memory is not None:
            self.memory_slots = self.memory_slots.index_select(0, sentences)
        if self.memory_lengths is not None:
            self.memory_lengths = self.memory_lengths.index_select(0, sentences)
