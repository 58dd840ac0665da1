"""Keys and values of the positions decoded so far, as kernels.cpp reads and writes them."""

import math

from jaxtyping import Float, Int
from torch import Tensor

from transduce.kernels import required
from transduce.model.cache import Cache


class KVCache:
    """Keys and values of all layers in one tensor, with capacity for more positions, and those of
    the memory.

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
        self.past: Float[Tensor, "L 2 N K C E"] | None = None
        self.spare: Tensor | None = None
        """What `past` was before rows left it: memory that the system need not give anew."""
        self.memory: Float[Tensor, "L 2 B K S E"] | None = None
        self.memory_lengths: Int[Tensor, " B"] | None = None

    def make_room(
        self, n_rows: int, n_new: int, like: Tensor, shape: tuple[int, int, int]
    ) -> Tensor:
        """Return `past` with capacity for n_new positions more, of (layers, heads, width); it is
        made by the first call."""
        n_layers, n_heads, width = shape
        least = 16 if self.window is None else 2 * self.window
        if self.past is None:
            capacity = max(least, 2 * n_new if self.window is None else n_new)
            self.past = like.new_empty(n_layers, 2, n_rows, n_heads, capacity, width)
        old = self.past
        beyond_window = self.window is not None and old.size(4) > least  # a long prompt
        if self.stored + n_new > old.size(4) or (beyond_window and self.stored):
            kept = self.stored if self.window is None else min(self.stored, self.window - 1)
            capacity = max(least, 2 * (kept + n_new) if self.window is None else kept + n_new)
            self.past = old.new_empty(*old.shape[:4], capacity, width)
            self.past[..., :kept, :] = old[..., self.stored - kept : self.stored, :]
            self.stored = kept
        return self.past

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
        n_layers, _, n_rows, n_heads, capacity, width = self.past.shape
        if len(rows) != n_rows:
            self.past, self.spare = _gathered(self.past, rows, self.stored, self.spare), self.past
            return
        rows = _checked(rows, n_rows)
        sizes = (n_rows, n_heads, capacity * width, self.stored * width)
        required().reorder_rows(self.past.data_ptr(), 2 * n_layers, rows.data_ptr(), *sizes)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Keep the memory of these sentences only."""
        if self.memory is not None:
            self.memory = _gathered(self.memory, sentences, self.memory.size(4), None)
        if self.memory_lengths is not None:
            self.memory_lengths = self.memory_lengths.index_select(0, sentences)

    def as_layers(self) -> Cache:
        """A cache of the reference whose tensors are parts of this one, which has room for what it
        adds."""
        assert self.past is not None
        cache = Cache(len(self.past), self.window)
        cache.memory_lengths = self.memory_lengths
        for number, layer in enumerate(cache.layers):
            layer.length = self.length
            layer.stored = self.stored
            layer.buffers = list(self.past[number])
            if self.memory is not None:
                layer.memory = self.memory[number, 0], self.memory[number, 1]
        return cache


def _gathered(
    buffers: Float[Tensor, "L 2 N K C E"],
    rows: Int[Tensor, " M"],
    used: int,
    spare: Tensor | None,
) -> Float[Tensor, "L 2 M K C E"]:
    """Copies of these rows, of which `used` positions are there, in the memory of `spare` if it is
    large enough."""
    n_layers, _, n_rows, n_heads, capacity, width = buffers.shape
    rows = _checked(rows, n_rows)
    shape = (n_layers, 2, len(rows), n_heads, capacity, width)
    if spare is None or spare.numel() < math.prod(shape):
        spare = buffers.new_empty(shape)
    copies = spare.view(-1)[: math.prod(shape)].view(shape)
    pointers = (buffers.data_ptr(), n_rows, copies.data_ptr(), len(rows), 2 * n_layers)
    sizes = (n_heads, capacity * width, used * width)
    required().gather_rows(*pointers, rows.data_ptr(), *sizes)
    return copies


def _checked(rows: Int[Tensor, " M"], n_rows: int) -> Int[Tensor, " M"]:
    """The rows as C++ reads them, which would read beyond its memory where one is not there."""
    rows = rows.long().contiguous()
    first, last = rows.aminmax() if len(rows) else (0, 0)
    if first < 0 or last >= max(1, n_rows):
        raise IndexError(
            f"rows must lie in 0 ... {n_rows - 1}, but they lie in {int(first)} ... {int(last)}"
        )
    return rows
