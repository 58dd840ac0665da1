"""Keys and values of what was decoded so far, so that a step costs one position and not all of them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LayerCache:
    """One layer's share: its own past, in buffers that double when full, and the memory it attends to."""

    def __init__(self) -> None:
        self.length = 0
        self.buffers: tuple[Tensor, Tensor] | None = None
        self.memory: tuple[Tensor, Tensor] | None = None
        """Projected keys and values of the memory, (B, H, S, E) each; None in a language model."""

    def append(
        self, key: Float[Tensor, "N H T E"], value: Float[Tensor, "N H T E"]
    ) -> tuple[Float[Tensor, "N H L E"], Float[Tensor, "N H L E"]]:
        """Write T new positions in place; return all L of them."""
        end = self.length + key.size(2)
        if self.buffers is None or end > self.buffers[0].size(2):
            self.buffers = (self._grown(0, key, end), self._grown(1, value, end))
        for buffer, new in zip(self.buffers, (key, value), strict=True):
            buffer[:, :, self.length : end] = new
        self.length = end
        keys, values = self.buffers
        return keys[:, :, :end], values[:, :, :end]

    def _grown(self, which: int, new: Tensor, end: int) -> Tensor:
        buffer = new.new_empty(new.size(0), new.size(1), max(16, 2 * end), new.size(3))
        if self.buffers is not None:
            buffer[:, :, : self.length] = self.buffers[which][:, :, : self.length]
        return buffer

    @torch.no_grad()
    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Let row m go on from the past of row rows[m]; rows may repeat and be left out."""
        if self.buffers is None:
            return
        keys, values = self.buffers
        kept = []
        for buffer in (keys, values):
            new = buffer.new_empty(rows.size(0), *buffer.shape[1:])
            torch.index_select(buffer[:, :, : self.length], 0, rows, out=new[:, :, : self.length])
            kept.append(new)
        self.buffers = (kept[0], kept[1])

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Keep the memory of these sentences only."""
        if self.memory is not None:
            key, value = self.memory
            self.memory = (key.index_select(0, sentences), value.index_select(0, sentences))


class Cache:
    """One LayerCache per decoder layer, and the memory's lengths. It begins empty; the decoder fills it."""

    def __init__(self, n_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(n_layers)]
        self.memory_lengths: Tensor | None = None

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self.layers[0].length

    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Choose which rows go on. The memory stays: it belongs to sentences, not to beams."""
        for layer in self.layers:
            layer.reorder(rows)

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Drop the memory of finished sentences."""
        for layer in self.layers:
            layer.keep(sentences)
        if self.memory_lengths is not None:
            self.memory_lengths = self.memory_lengths.index_select(0, sentences)
