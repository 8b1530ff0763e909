"""The KV cache of all slots. Slots of equal capacity share a buffer, so that one call can attend to several of them."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from workers.engine.states.ring_pieces import ring_pieces

GROWTH = 256
"""Rows by which a slot's capacity grows: at most 255 are unused. Whenever a slot joins or leaves a buffer, the rows of
its neighbours there are copied too, so that no place is kept free."""


def capacity_for(rows: int) -> int:
    """The capacity of a slot that holds so many rows."""
    return -(-rows // GROWTH) * GROWTH


@dataclass(frozen=True, slots=True)
class RowShape:
    """The keys and values of one row of a slot in a layer."""

    heads: int
    """KV heads."""
    widths: tuple[int, int]
    """Elements of a key and of a value of a head."""
    ring: int = 0
    """The last rows of a slot that the layer keeps, row r at r % ring; 0 is all rows."""

    @property
    def elements(self) -> tuple[int, int]:
        """Elements of all keys and of all values."""
        return self.heads * self.widths[0], self.heads * self.widths[1]

    def places(self, capacity: int) -> int:
        """Return the rows that a slot of a capacity has places for."""
        return min(capacity, self.ring) if self.ring else capacity


@dataclass(slots=True)
class Slab:
    """Keys and values of slots of one capacity: per layer two arrays [places, kv_heads, capacity, width], or of a ring
    that is shorter [places, kv_heads, ring, width]."""

    slots: list[int]
    """The slot at each place."""
    buffers: list[list[mx.array]]
    """Keys and values of each layer. A write replaces the array, which reuses its memory if nothing else has it."""
    rings: list[int]
    """`RowShape.ring` of each layer."""


class KvCache:
    """Keys and values of all slots.

    The first `lengths[slot]` rows of a slot are filled; the runner sets it after each forward. Rows behind them are
    never attended to, and are finite: a masked row of a batch is multiplied by 0.

    If MLX fails while slots are moved, all slots of the slabs that would have changed are empty afterwards: some layers
    may have moved and others not, and no slot may read another's rows.
    """

    def __init__(self, rows: Sequence[RowShape], slots: int, dtype: mx.Dtype) -> None:
        """`rows` has the shape of a row of each layer."""
        self._full = [layer for layer, each in enumerate(rows) if not each.ring]
        self._rings = [layer for layer, each in enumerate(rows) if each.ring]
        self.lengths = [0] * slots
        self._rows, self._layers, self._dtype = rows, len(rows), dtype
        # numpy has no bfloat16.
        bits, self._bits_in_mlx = {4: (np.uint32, mx.uint32), 2: (np.uint16, mx.uint16), 1: (np.uint8, mx.uint8)}[
            dtype.size
        ]
        self._bits = np.dtype(bits)
        self._slabs: dict[int, Slab] = {}
        self._capacities = [0] * slots

    @property
    def arrays(self) -> list[mx.array]:
        """The buffers, which must be evaluated after a write."""
        return [array for slab in self._slabs.values() for buffers in slab.buffers for array in buffers]

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays)

    def place(self, slot: int) -> tuple[int, int]:
        """The capacity of a slot that has rows, and its place in the slab of that capacity."""
        capacity = self._capacities[slot]
        return capacity, self._slabs[capacity].slots.index(slot)

    def slab(self, capacity: int) -> Slab:
        return self._slabs[capacity]

    def reserve(self, writes: Mapping[int, tuple[int, int]]) -> None:
        """Make room for rows `start .. end` of slots, `writes[slot] = start, end`.

        Rows that are written again are cleared with those behind them.
        """
        grown: dict[int, list[int]] = {}
        for slot, (start, end) in writes.items():
            if start < self.lengths[slot]:
                self._clear(slot, start)
            if end > self._capacities[slot]:
                grown.setdefault(capacity_for(end), []).append(slot)
        for capacity, slots in sorted(grown.items()):
            self._move({slot: (slot, self.lengths[slot]) for slot in slots}, capacity)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make the first `length` rows of `source` those of `target`, in rings those of them that are left. Rows behind
        them are zero."""
        self._move({target: (source, length)}, capacity_for(length))
        self.lengths[target] = length

    def read(self, slot: int, start: int, end: int) -> memoryview:
        """Return the bits of rows `start .. end` without those of rings: of each layer the keys, then the values,
        [kv_heads, rows, width]."""
        return self._read(self._full, slot, start, end).data.cast("B")

    def write(self, slot: int, count: int, data: bytes | memoryview) -> None:
        """Append `count` rows that `read` has returned."""
        start = self.lengths[slot]
        self.reserve({slot: (start, start + count)})
        self._write(self._full, slot, start, start + count, np.frombuffer(data, self._bits))
        self.lengths[slot] = start + count

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements on the host."""
        return self._bits

    def window_bytes(self, rows: int) -> int:
        """Return the bytes of so many rows of the rings of a slot."""
        return rows * sum(sum(self._rows[layer].elements) for layer in self._rings) * self._bits.itemsize

    def read_windows(self, slot: int, start: int, end: int) -> NDArray[Any]:
        """Return a copy of rows `start .. end` of the rings of a slot, in one dimension."""
        return self._read(self._rings, slot, start, end)

    def write_windows(self, slot: int, start: int, end: int, rows: NDArray[Any]) -> None:
        """Write what `read_windows` has returned for these rows."""
        self._write(self._rings, slot, start, end, rows)

    def _read(self, layers: Sequence[int], slot: int, start: int, end: int) -> NDArray[Any]:
        rows = np.empty((end - start) * sum(sum(self._rows[layer].elements) for layer in layers), self._bits)
        if not rows.size:
            return rows
        capacity, place = self.place(slot)
        for layer, parts in zip(layers, self._pieces(layers, rows, end - start), strict=True):
            for buffer, part in zip(self._slabs[capacity].buffers[layer], parts, strict=True):
                at = 0
                for low, high in ring_pieces(start, end, self._rows[layer].ring):
                    part[:, at : (at := at + high - low)] = np.array(buffer[place, :, low:high].view(self._bits_in_mlx))
        return rows

    def _write(self, layers: Sequence[int], slot: int, start: int, end: int, rows: NDArray[Any]) -> None:
        if not rows.size:
            return
        capacity, place = self.place(slot)
        for layer, parts in zip(layers, self._pieces(layers, rows, end - start), strict=True):
            buffers = self._slabs[capacity].buffers[layer]
            for part, bits in enumerate(parts):
                values, at = mx.array(bits).view(self._dtype)[None], 0
                for low, high in ring_pieces(start, end, self._rows[layer].ring):
                    buffers[part][place : place + 1, :, low:high] = values[:, :, at : (at := at + high - low)]
            mx.eval(buffers)

    def _pieces(self, layers: Sequence[int], rows: NDArray[Any], count: int) -> Iterator[list[NDArray[Any]]]:
        """Yield views of the keys and values of layers in the bits of `count` rows: [kv_heads, rows, width]."""
        first = 0
        for each in (self._rows[layer] for layer in layers):
            parts = []
            for width in each.widths:
                size = each.heads * count * width
                parts.append(rows[first : first + size].reshape(each.heads, count, width))
                first += size
            yield parts

    def reset(self, slot: int) -> None:
        """Clear a slot and free its memory."""
        if self._capacities[slot]:
            self._move({slot: (slot, 0)}, 0)
        self.lengths[slot] = 0

    def reset_all(self) -> None:
        """Clear all slots and free their memory."""
        self._slabs = {}
        self._capacities = [0] * len(self.lengths)
        self.lengths = [0] * len(self.lengths)

    def recover(self) -> None:
        """Empty the slots of all slabs that cannot be evaluated, after a call that failed."""
        for capacity, slab in list(self._slabs.items()):
            try:
                mx.eval(slab.buffers)
            except (RuntimeError, ValueError, MemoryError):  # what MLX raises; the caller raises what came first
                self._drop({capacity})

    def _move(self, sources: Mapping[int, tuple[int, int]], capacity: int) -> None:
        """Give slots a place in the slab of `capacity` (0 is none), filled with the first rows of slots.

        `sources[slot]` is the slot that is copied and the number of rows. The keys or the values of one layer move at a
        time, so that no more than these are held twice.
        """
        changed = {capacity, *(self._capacities[slot] for slot in sources)} - {0}
        if capacity and capacity not in self._slabs:
            self._slabs[capacity] = Slab(
                [], [[mx.array(0)] * 2 for _ in range(self._layers)], [each.ring for each in self._rows]
            )
        try:
            for layer in range(self._layers):
                for part in (0, 1):
                    self._move_part(layer, part, sources, capacity)
                mx.clear_cache()  # a GPU's memory of the old buffers
        except BaseException:
            self._drop(changed)
            raise
        for left in changed - {capacity}:
            self._slabs[left].slots = [slot for slot in self._slabs[left].slots if slot not in sources]
            if not self._slabs[left].slots:
                del self._slabs[left]
        if capacity:
            self._slabs[capacity].slots += [slot for slot in sources if self._capacities[slot] != capacity]
        for slot in sources:
            self._capacities[slot] = capacity

    def _move_part(self, layer: int, part: int, sources: Mapping[int, tuple[int, int]], capacity: int) -> None:
        """Move the keys (0) or values (1) of a layer."""
        copies = {}
        if capacity:
            copies = {slot: self._copy(layer, part, *source, capacity) for slot, source in sources.items()}
            mx.eval(list(copies.values()))
        for left in {self._capacities[slot] for slot in sources} - {0, capacity}:
            slab = self._slabs[left]
            stay = [place for place, slot in enumerate(slab.slots) if slot not in sources]
            slab.buffers[layer][part] = slab.buffers[layer][part][mx.array(stay)] if stay else mx.array(0)
            mx.eval(slab.buffers[layer][part])
        if not capacity:
            return
        slab = self._slabs[capacity]
        for place, slot in enumerate(slab.slots):
            if slot in copies:
                slab.buffers[layer][part][place : place + 1] = copies.pop(slot)
        if copies:
            held = [slab.buffers[layer][part]] if slab.slots else []
            slab.buffers[layer][part] = mx.concatenate([*held, *copies.values()])
        mx.eval(slab.buffers[layer][part])

    def _copy(self, layer: int, part: int, slot: int, length: int, capacity: int) -> mx.array:
        """Copy the first rows of a slot's keys or values, with zeros behind them: [1, kv_heads, capacity, width]."""
        shape = self._rows[layer]
        places = shape.places(capacity)
        if not length:
            return mx.zeros((1, shape.heads, places, shape.widths[part]), dtype=self._dtype)
        held, place = self.place(slot)
        count = min(length, places)
        rows = self._slabs[held].buffers[layer][part][place : place + 1, :, :count]
        if shape.ring and self.lengths[slot] > length:
            rows = mx.where(self._left(slot, length, shape.ring, count), rows, mx.zeros_like(rows))
        zeros = mx.zeros((1, shape.heads, places - count, shape.widths[part]), dtype=self._dtype)
        return mx.concatenate([rows, zeros], axis=2)

    def _left(self, slot: int, length: int, ring: int, places: int) -> mx.array:
        """Return which of the first places of a ring have one of the first `length` rows of a slot, [places, 1]."""
        last = self.lengths[slot] - 1
        return mx.array(last - (last - np.arange(places)) % ring < length)[:, None]

    def _drop(self, capacities: Set[int]) -> None:
        """Empty all slots of these slabs."""
        for capacity in capacities:
            for slot in self._slabs.pop(capacity).slots:
                self._capacities[slot] = self.lengths[slot] = 0

    def _clear(self, slot: int, start: int) -> None:
        """Clear the rows of a slot from `start` on."""
        capacity, place = self.place(slot)
        for each, buffers in zip(self._rows, self._slabs[capacity].buffers, strict=True):
            first = max(start, self.lengths[slot] - each.ring) if each.ring else start
            for low, high in ring_pieces(first, self.lengths[slot], each.ring):
                for part in (0, 1):
                    buffers[part][place : place + 1, :, low:high] = 0
        self.lengths[slot] = start
