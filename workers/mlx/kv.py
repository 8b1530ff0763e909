"""The KV cache of all slots. Slots of equal capacity share a buffer, so that one call can attend to several of them."""

from collections.abc import Iterable, Mapping

import mlx.core as mx

GROWTH = 256
"""Rows by which a slot's capacity grows: one copy every 256 tokens, and at most 255 unused rows."""
LIVE_PER_FREE_PLACE = 4
"""Places in use for each place that a buffer may keep free: at most a quarter more memory, and few copies."""


def capacity_for(rows: int) -> int:
    """The capacity of a slot that holds so many rows."""
    return -(-rows // GROWTH) * GROWTH


class Slab:
    """Keys and values of slots of one capacity: per layer two arrays [places, kv_heads, capacity, head_dim].

    Each slot has a place. A place that is taken is cleared first, so that no slot reads another's rows.
    """

    def __init__(self, layers: int) -> None:
        self.slots: list[int | None] = []
        """The slot at each place; None is a free place."""
        self.buffers: list[list[mx.array]] = [[] for _ in range(layers)]
        """Keys and values of each layer. A write replaces the array, which reuses its memory if nothing else has it."""

    def rows(self, layer: int, slot: int, length: int) -> list[mx.array]:
        """The first rows of a slot's keys and values, [1, kv_heads, length, head_dim] each."""
        place = self.slots.index(slot)
        return [buffer[place : place + 1, :, :length] for buffer in self.buffers[layer]]

    def take(self, newcomers: Mapping[int, list[list[mx.array]]]) -> None:
        """Give slots a place each, filled with their keys and values of each layer, [1, kv_heads, capacity, head_dim].

        Copies the buffers if there are too few free places. One layer is evaluated at a time.
        """
        free = [place for place, slot in enumerate(self.slots) if slot is None]
        reused, appended = dict(zip(newcomers, free, strict=False)), [*newcomers][len(free) :]
        for layer, buffers in enumerate(self.buffers):
            for part in (0, 1):
                for slot, place in reused.items():
                    buffers[part][place : place + 1] = newcomers[slot][layer][part]
                if appended:
                    more = [newcomers[slot][layer][part] for slot in appended]
                    held = buffers[part : part + 1] if self.slots else []
                    buffers[part : part + 1] = [mx.concatenate([*held, *more])]
            mx.eval(buffers)
        for slot, place in reused.items():
            self.slots[place] = slot
        self.slots += appended

    def leave(self, gone: Iterable[int]) -> None:
        """Free the places of slots. Copies the buffers if too many places would be free."""
        leaving = set(gone)
        slots = [None if slot in leaving else slot for slot in self.slots]
        live = [place for place, slot in enumerate(slots) if slot is not None]
        if (len(slots) - len(live)) * LIVE_PER_FREE_PLACE <= len(live):
            self.slots = slots
            return
        self.slots = [slots[place] for place in live]
        for layer, buffers in enumerate(self.buffers):
            self.buffers[layer] = [buffer[mx.array(live)] for buffer in buffers] if live else []
            mx.eval(self.buffers[layer])


class KvCache:
    """Keys and values of all slots.

    The first `lengths[slot]` rows of a slot are filled; the runner sets it after each forward. Rows behind them are
    never attended to, and are finite: a masked row of a batch is multiplied by 0.
    """

    def __init__(self, layers: int, slots: int, heads: int, width: int, dtype: mx.Dtype) -> None:
        self.lengths = [0] * slots
        self._layers, self._heads, self._width, self._dtype = layers, heads, width, dtype
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
        grown = {}
        for slot, (start, end) in writes.items():
            if start < self.lengths[slot]:
                self._clear(slot, start, self.lengths[slot])
            if end > self._capacities[slot]:
                grown[slot] = capacity_for(end)
        for capacity in sorted(set(grown.values())):
            joining = [slot for slot, new in grown.items() if new == capacity]
            self._move({slot: self._copy(slot, self.lengths[slot], capacity) for slot in joining}, capacity)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make the first `length` rows of `source` those of `target`. Rows behind them are zero."""
        capacity = capacity_for(length)
        self._move({target: self._copy(source, length, capacity)}, capacity)
        self.lengths[target] = length

    def reset(self, slot: int) -> None:
        """Clear a slot and free its memory."""
        self._move({slot: []}, 0)
        self.lengths[slot] = 0

    def reset_all(self) -> None:
        """Clear all slots and free their memory."""
        self._slabs = {}
        self._capacities = [0] * len(self.lengths)
        self.lengths = [0] * len(self.lengths)

    def _move(self, rows: Mapping[int, list[list[mx.array]]], capacity: int) -> None:
        """Move slots to the slab of `capacity`, with these keys and values of each layer. 0 is no slab."""
        for left in {self._capacities[slot] for slot in rows} - {0}:
            slab = self._slabs[left]
            slab.leave(slot for slot in rows if self._capacities[slot] == left)
            if not slab.slots:
                del self._slabs[left]
        for slot in rows:
            self._capacities[slot] = capacity
        if capacity:
            self._slabs.setdefault(capacity, Slab(self._layers)).take(rows)

    def _copy(self, slot: int, length: int, capacity: int) -> list[list[mx.array]]:
        """Copy the first rows of a slot, of each layer, with zeros behind them."""
        zeros = mx.zeros((1, self._heads, capacity - length, self._width), dtype=self._dtype)
        copies = []
        for layer in range(self._layers):
            held = self._slabs[self._capacities[slot]].rows(layer, slot, length) if length else [zeros, zeros]
            copies.append([mx.concatenate([part, zeros], axis=2) for part in held] if length else held)
            mx.eval(copies[-1])
        return copies

    def _clear(self, slot: int, start: int, end: int) -> None:
        capacity, place = self.place(slot)
        for buffers in self._slabs[capacity].buffers:
            for part in (0, 1):
                buffers[part][place : place + 1, :, start:end] = 0
