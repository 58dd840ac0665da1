"""Keys and values of the positions decoded so far, as kernels.cpp reads and writes them."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.engine.stack import CacheStruct
from transduce.engine.weights import address, constant
from transduce.kernels import required


class KVCache:
    """Keys and values of all layers in one tensor, with capacity for more positions, and those of
    the memory.

    A row, or a sentence, is at a slot of them. So rows that leave cost nothing, and of those that
    stay only what several continue is copied.

    Args:
        window: no later query sees further back than window - 1 positions; older ones are dropped.
            None: all are kept.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.length = 0
        """Positions decoded so far."""
        self.stored = 0
        """Positions that are there: the last ones."""
        self.past: Float[Tensor, "L 2 slots K C E"] | None = None
        """Their layout is that of `Head` in kernels.cpp."""
        self.slots: Int[Tensor, " N"] = torch.empty(0, dtype=torch.long)
        self.memory: Float[Tensor, "L 2 slots K S E"] | None = None
        self.memory_slots: Int[Tensor, " B"] = self.slots
        self.memory_length = 0
        self.memory_lengths: Int[Tensor, " B"] | None = None

    def make_room(
        self, n_rows: int, n_new: int, like: Tensor, shape: tuple[int, int, int]
    ) -> Tensor:
        """Return `past` with capacity for n_new positions more, of (layers, heads, width); it is
        made by the first call."""
        n_layers, n_heads, width = shape
        if self.past is None:
            self.past = like.new_empty(n_layers, 2, n_rows, n_heads, 0, width)
            self.slots = torch.arange(n_rows)
        lanes = constant("lanes")
        dropped = 0 if self.window is None else max(0, self.stored - self.window + 1)
        dropped -= dropped % lanes
        needed = self.stored - dropped + n_new
        usual = whole_blocks(2 * needed if self.window is None else 2 * self.window + lanes)
        capacity = self.past.size(4)
        if self.stored + n_new > capacity or needed <= usual < capacity:
            kept = whole_blocks(self.stored) - dropped
            old = self.past[..., dropped : dropped + kept, :].index_select(2, self.slots)
            self.past = old.new_empty(*old.shape[:4], max(usual, whole_blocks(needed)), width)
            self.past[..., :kept, :] = old
            self.slots = torch.arange(n_rows)
            self.stored -= dropped
        return self.past

    def struct(self) -> Any:
        """The cache as kernels.cpp reads it."""
        past, memory = self.past, self.memory
        assert past is not None
        return CacheStruct(
            past.data_ptr(),
            self.slots.data_ptr(),
            address(memory),
            self.memory_slots.data_ptr(),
            address(self.memory_lengths),
            len(self.slots),
            past.size(2),
            self.stored,
            past.size(4),
            len(self.memory_slots),
            0 if memory is None else memory.size(2),
            self.memory_length,
            0 if memory is None else memory.size(4),
        )

    def advance(self, n_new: int) -> None:
        """Count n_new positions that were written."""
        self.length += n_new
        self.stored += n_new

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Choose which rows continue. The memory stays, as it belongs to sentences and not to
        beams.

        Raises:
            IndexError: one of them is not there.
        """
        if self.past is None:
            return
        rows = _checked(rows, len(self.slots))
        n_layers, _, n_slots, n_heads, capacity, width = self.past.shape
        if len(rows) > n_slots:
            self.past = self.past.index_select(2, self.slots[rows])
            self.slots = torch.arange(len(rows))
            return
        slots = torch.empty_like(rows)
        pointers = (self.past.data_ptr(), 2 * n_layers, self.slots.data_ptr(), rows.data_ptr())
        sizes = (len(rows), n_slots, n_heads, capacity * width, whole_blocks(self.stored) * width)
        required().reorder_rows(*pointers, *sizes, slots.data_ptr())
        self.slots = slots

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Keep the memory of these sentences only."""
        if self.memory is not None:
            self.memory_slots = self.memory_slots.index_select(0, sentences)
        if self.memory_lengths is not None:
            self.memory_lengths = self.memory_lengths.index_select(0, sentences)


def whole_blocks(n: int) -> int:
    """The positions of the blocks that n positions take."""
    return n + -n % constant("lanes")


def _checked(rows: Int[Tensor, " M"], n_rows: int) -> Int[Tensor, " M"]:
    """The rows as C++ reads them, which would read beyond its memory where one is not there."""
    rows = rows.long().contiguous()
    first, last = rows.aminmax() if len(rows) else (0, 0)
    if first < 0 or last >= max(1, n_rows):
        raise IndexError(
            f"rows must lie in 0 ... {n_rows - 1}, but they lie in {int(first)} ... {int(last)}"
        )
    return rows
