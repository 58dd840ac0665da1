"""Keys and values of the positions decoded so far, or their sums, so that a step computes one
position and not all of them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LayerCache:
    """The cache of one layer: keys and values of its past, in buffers that double when full, and of
    the memory.

    Args:
        window: no later query sees further back than window - 1 positions, so buffers have room for
            2 * window; None: all.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window, self.length, self.dropped = window, 0, 0
        """Positions so far, and how many of them no query sees any more, which are not kept."""
        self.buffers: list[Tensor] = []
        """Keys and values, with room for more positions; none before the first. Or, of linear
        attention, `state` alone."""
        self.memory: tuple[Tensor, Tensor] | None = None
        """Projected keys and values of the memory, (B, H, S, E) each; None in a language model."""

    def append(
        self, key: Float[Tensor, "N H T E"], value: Float[Tensor, "N H T E"]
    ) -> tuple[Float[Tensor, "N H L E"], Float[Tensor, "N H L E"]]:
        """Write T new positions in place, and return all L positions, or those that a query of the
        new ones may see."""
        if self.window is not None and (
            not self.buffers or self.n_kept + key.size(2) > self.buffers[0].size(2)
        ):
            return self._append_last((key, value), self.window)
        end = self.n_kept + key.size(2)
        if not self.buffers:
            self.buffers = [
                new.new_empty(new.size(0), new.size(1), max(16, 2 * end), new.size(3))
                for new in (key, value)
            ]
        self.make_room(key.size(2))
        for buffer, new in zip(self.buffers, (key, value), strict=True):
            buffer[:, :, self.n_kept : end] = new
        self.length += key.size(2)
        keys, values = self.buffers
        return keys[:, :, :end], values[:, :, :end]

    def _append_last(self, new: tuple[Tensor, Tensor], window: int) -> tuple[Tensor, Tensor]:
        """What `append` does where the new positions do not fit: only what later queries see
        stays."""
        past = [
            buffer[:, :, max(0, self.n_kept - window + 1) : self.n_kept] for buffer in self.buffers
        ]
        keys, values = (
            (torch.cat(pair, dim=2) for pair in zip(past, new, strict=True)) if past else new
        )
        last = [part[:, :, max(0, part.size(2) - window + 1) :] for part in (keys, values)]
        self.buffers = [part.new_empty(*part.shape[:2], 2 * window, part.size(3)) for part in last]
        for buffer, part in zip(self.buffers, last, strict=True):
            buffer[:, :, : part.size(2)] = part
        self.length += new[0].size(2)
        self.dropped = self.length - last[0].size(2)
        return keys, values

    @property
    def n_kept(self) -> int:
        """Positions whose keys and values are there."""
        return self.length - self.dropped

    def make_room(self, n_positions: int) -> None:
        """See to it that so many positions more fit into the buffers, which are there."""
        end, small = self.n_kept + n_positions, self.buffers
        if end > small[0].size(2):
            self.buffers = [
                old.new_empty(old.size(0), old.size(1), 2 * end, old.size(3)) for old in small
            ]
            for large, old in zip(self.buffers, small, strict=True):
                large[:, :, : self.n_kept] = old[:, :, : self.n_kept]

    @property
    def state(self) -> Float[Tensor, "N H 1 E V"] | None:
        """What linear attention knows of all positions so far, in the place of one; None before the
        first."""
        return self.buffers[0] if self.buffers else None

    def advance(self, state: Float[Tensor, "N H 1 E V"], n_positions: int) -> None:
        """Go on by so many positions, after which linear attention's state is this one."""
        self.buffers, self.length = [state], self.length + n_positions

    @torch.no_grad()
    def reorder(self, rows: Int[Tensor, " M"]) -> None:
        """Let row m continue from the past of row rows[m]; rows may repeat or be left out."""
        for i, buffer in enumerate(self.buffers):
            self.buffers[i] = buffer.new_empty(rows.size(0), *buffer.shape[1:])
            torch.index_select(
                buffer[:, :, : self.n_kept], 0, rows, out=self.buffers[i][:, :, : self.n_kept]
            )

    def keep(self, sentences: Int[Tensor, " M"]) -> None:
        """Keep the memory of these sentences only."""
        if self.memory is not None:
            key, value = self.memory
            self.memory = (key.index_select(0, sentences), value.index_select(0, sentences))


class Cache:
    """One LayerCache per decoder layer, and the lengths of the memory. It starts empty, and the
    decoder fills it."""

    def __init__(self, n_layers: int, window: int | None = None) -> None:
        self.layers = [LayerCache(window) for _ in range(n_layers)]
        self.memory_lengths: Tensor | None = None

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
        if self.memory_lengths is not None:
            self.memory_lengths = self.memory_lengths.index_select(0, sentences)
