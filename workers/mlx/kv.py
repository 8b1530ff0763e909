"""The KV cache of all slots. Slots of equal capacity share a buffer, so that one call can attend to several of them."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

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

    @property
    def elements(self) -> tuple[int, int]:
        """Elements of all keys and of all values."""
        return self.heads * self.widths[0], self.heads * self.widths[1]


@dataclass(slots=True)
class Slab:
    """Keys and values of slots of one capacity: per layer two arrays [places, kv_heads, capacity, width]."""

    slots: list[int]
    """The slot at each place."""
    buffers: list[list[mx.array]]
    """Keys and values of each layer. A write replaces the array, which reuses its memory if nothing else has it."""


class KvCache:
    """Keys and values of all slots.

    The first `lengths[slot]` rows of a slot are filled; the runner sets it after each forward. Rows behind them are
    never attended to, and are finite: a masked row of a batch is multiplied by 0.

    If MLX fails while slots are moved, all slots of the slabs that would have changed are empty afterwards: some layers
    may have moved and others not, and no slot may read another's rows.
    """

    def __init__(self, rows: Sequence[RowShape], slots: int, dtype: mx.Dtype) -> None:
        """`rows` has the shape of a row of each layer."""
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
        """Make the first `length` rows of `source` those of `target`. Rows behind them are zero."""
        self._move({target: (source, length)}, capacity_for(length))
        self.lengths[target] = length

    def read(self, slot: int, start: int, end: int) -> memoryview:
        """Return the bits of rows `start .. end`: of each layer the keys, then the values, [kv_heads, rows, width]."""
        capacity, place = self.place(slot)
        rows = np.empty((end - start) * sum(sum(each.elements) for each in self._rows), self._bits)
        pieces = self._pieces(rows, end - start)
        for buffers, parts in zip(self._slabs[capacity].buffers, pieces, strict=True):
            for buffer, part in zip(buffers, parts, strict=True):
                part[...] = np.array(buffer[place, :, start:end].view(self._bits_in_mlx))
        return rows.data.cast("B")

    def write(self, slot: int, count: int, data: bytes | memoryview) -> None:
        """Append `count` rows that `read` has returned."""
        start = self.lengths[slot]
        self.reserve({slot: (start, start + count)})
        capacity, place = self.place(slot)
        pieces = self._pieces(np.frombuffer(data, self._bits), count)
        for buffers, parts in zip(self._slabs[capacity].buffers, pieces, strict=True):
            for part, bits in enumerate(parts):
                values = mx.array(bits).view(self._dtype)
                buffers[part][place : place + 1, :, start : start + count] = values[None]
            mx.eval(buffers)
        self.lengths[slot] = start + count

    def _pieces(self, rows: NDArray[Any], count: int) -> Iterator[list[NDArray[Any]]]:
        """Yield views of the keys and values of each layer in the bits of `count` rows: [kv_heads, rows, width]."""
        first = 0
        for each in self._rows:
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
            self._slabs[capacity] = Slab([], [[mx.array(0)] * 2 for _ in range(self._layers)])
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
        zeros = mx.zeros((1, shape.heads, capacity - length, shape.widths[part]), dtype=self._dtype)
        if not length:
            return zeros
        held, place = self.place(slot)
        buffer = self._slabs[held].buffers[layer][part]
        return mx.concatenate([buffer[place : place + 1, :, :length], zeros], axis=2)

    def _drop(self, capacities: Set[int]) -> None:
        """Empty all slots of these slabs."""
        for capacity in capacities:
            for slot in self._slabs.pop(capacity).slots:
                self._capacities[slot] = self.lengths[slot] = 0

    def _clear(self, slot: int, start: int) -> None:
        """Clear the rows of a slot from `start` on."""
        capacity, place = self.place(slot)
        for buffers in self._slabs[capacity].buffers:
            for part in (0, 1):
                buffers[part][place : place + 1, :, start : self.lengths[slot]] = 0
        self.lengths[slot] = start
