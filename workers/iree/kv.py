"""A KV cache in host memory, as row tiles that the host copies and clears.

The memory is mapped and never filled: a page costs nothing until a row is written to it, and is returned to the system
when its slot is reset. So slots with room for long contexts share the memory that there is.
"""

import mmap
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from workers.iree.model.kv_layout import KvLayout

CAN_DROP = sys.platform == "linux"
"""Elsewhere dropped pages may come back with their contents."""
DROP_BYTES = 1 << 20
"""Bytes of a slot's rows from which on its pages are dropped rather than zeroed, which is faster for a few."""


class HostKv:
    """The rows of every slot, and the pages that they lie in."""

    def __init__(self, window: NDArray[Any], memory: mmap.mmap, cache: KvLayout, packed: tuple[int, int]) -> None:
        """`window` has the cache's shape and is a view of `memory`; `packed` has the (n, k) of tiled keys and
        values."""
        self._memory = memory
        self._window = window
        self._cache = cache
        self._whole_parts = _parts(window, cache, packed)
        # Views [tiles, rows of a tile, layers, slots, ...]: row r of a slot is [r // rows, r % rows, :, slot].
        self._parts = [np.moveaxis(part, axes, (0, 1)) for part, axes in self._whole_parts]
        segment = window[0, 0, 0].nbytes
        # Lanes of a row within a run of rows: keys have a run for each head, values one for each 16 lanes of it.
        runs = (cache.lane_elements[0], packed[0])
        self._strips = [_strips(cache, part, lanes, window.itemsize) for part, lanes in enumerate(runs)]
        self._segments = [
            ((layer * 2 + part) * cache.slots * segment, segment) for layer in range(cache.layers) for part in range(2)
        ]

    def clear(self, slot: int, start: int, end: int) -> None:
        """Zero rows `start .. end` of a slot and the rest of their last tile, and the slot's last tile.

        Attention masks these rows, but a NaN in them would pass the mask, and they may hold another tenant's data.
        """
        tile = self._cache.tile
        end = -(-end // tile) * tile
        if CAN_DROP and (end - start) * self._row_bytes >= DROP_BYTES:
            whole = -(-start // tile) * tile
            self._zero(slot, start, whole)
            self._drop_rows(slot, whole, end)
        else:
            self._zero(slot, start, end)
        for part in self._parts:
            part[-1, :, :, slot] = 0

    def forget(self, slot: int, rows: int) -> None:
        """Zero a slot that holds `rows` rows, and return its pages to the system where that is faster."""
        if not CAN_DROP or rows * self._row_bytes < DROP_BYTES:
            self.clear(slot, 0, rows)
            return
        for base, size in self._segments:
            self._drop(base + slot * size, base + (slot + 1) * size)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy rows `0 .. length` of one slot to another."""
        for part in self._parts:
            whole, rest = divmod(length, part.shape[1])
            # Layer by layer: of all at once numpy cannot tell that source and target are apart, and copies twice.
            for layer in range(self._cache.layers):
                part[:whole, :, layer, target] = part[:whole, :, layer, source]
                if rest:
                    part[whole, :rest, layer, target] = part[whole, :rest, layer, source]

    def keys(self, slot: int, layer: int, end: int, dtype: str) -> NDArray[np.float32]:
        """Return the keys of rows `0 .. end` of a slot in a layer: float32 [heads, end, lanes]. `dtype` is the
        model's."""
        tiled, _ = self._whole_parts[0]
        heads, n = tiled.shape[2], tiled.shape[5]
        tiles = tiled[layer, slot, :, : -(-end // n)]  # [heads, tiles, lanes / k, n, k]
        rows = tiles.transpose(0, 1, 3, 2, 4).reshape(heads, -1, self._cache.lane_elements[0])[:, :end]
        if not self._cache.bits:
            stored = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
            return np.ascontiguousarray(rows).view(stored).astype(np.float32)
        tiled_scales, _ = self._whole_parts[2]
        scales = tiled_scales[layer, slot, :, : -(-end // n)].reshape(heads, -1, tiled_scales.shape[-1])[:, :end]
        levels = rows.astype(np.int8)
        if self._cache.bits == 4:  # a lane of the first half and one of the second share a byte
            levels = np.concatenate([(levels << 4) >> 4, levels >> 4], -1)
        factors = np.ascontiguousarray(scales).view(np.float32)
        return levels.astype(np.float32) * factors

    def read(self, slot: int, start: int, end: int) -> memoryview:
        """Return a copy of rows `start .. end`: the keys, then the values, of each the rows of the first tile that are
        not all of it, of whole tiles, and of the last one, each in the order of the cache."""
        rows = np.empty((end - start) * self._cache.row_values, self._window.dtype)
        self.read_into(rows, slot, start, end)
        return rows.data.cast("B")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._window.dtype

    def size_of(self, rows: int) -> int:
        """Return the number of elements of so many rows of a slot."""
        return rows * self._cache.row_values

    def read_into(self, rows: NDArray[Any], slot: int, start: int, end: int) -> None:
        """Like `read`, into one dimension of `size_of` elements."""
        at = 0
        for piece in self._pieces(slot, start, end):
            rows[at : at + piece.size].reshape(piece.shape)[...] = piece
            at += piece.size

    def write(self, slot: int, start: int, end: int, data: bytes | memoryview | NDArray[Any]) -> None:
        """Write what `read` has returned for these rows."""
        rows = data if isinstance(data, np.ndarray) else np.frombuffer(data, self._window.dtype)
        at = 0
        for piece in self._pieces(slot, start, end):
            piece[...] = rows[at : at + piece.size].reshape(piece.shape)
            at += piece.size

    def _pieces(self, slot: int, start: int, end: int) -> Iterator[NDArray[Any]]:
        """Views of rows `start .. end`. Those of whole tiles lie together, and are copied fast."""
        for part, (tile_axis, row_axis) in self._whole_parts:
            size = part.shape[row_axis]
            first, last = min(-(-start // size) * size, end), max(end // size * size, start)
            for low, high in ((start, first), (first, last), (max(first, last), end)):
                if low >= high:
                    continue
                index: list[int | slice] = [slice(None)] * part.ndim
                index[1] = slot
                index[tile_axis] = slice(low // size, -(-high // size))
                if low % size or high % size:  # of one tile
                    index[row_axis] = slice(low % size, low % size + high - low)
                yield part[tuple(index)]

    def _zero(self, slot: int, start: int, end: int) -> None:
        for part in self._parts:
            size = part.shape[1]
            whole = -(-start // size)
            if start % size:
                part[start // size, start % size :, :, slot] = 0
            part[whole : -(-end // size), :, :, slot] = 0

    def _drop_rows(self, slot: int, start: int, end: int) -> None:
        """Zero whole tiles of rows, a strip of addresses for each run of rows, and return their pages."""
        for index, (base, size) in enumerate(self._segments):
            for offset, row in self._strips[index % 2]:
                at = base + slot * size + offset
                self._drop(at + start * row, at + end * row)

    @property
    def _row_bytes(self) -> int:
        return self._cache.row_values * self._window.itemsize

    def _drop(self, start: int, end: int) -> None:
        """Zero these bytes: whole pages are returned to the system, parts of pages are overwritten."""
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if first >= last:
            self._memory[start:end] = bytes(end - start)
            return
        self._memory[start:first] = bytes(first - start)
        self._memory[last:end] = bytes(end - last)
        self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)


def _parts(
    window: NDArray[Any], cache: KvLayout, packed: tuple[int, int]
) -> Sequence[tuple[NDArray[Any], tuple[int, int]]]:
    """Return keys and values, and the scales of both where they are quantized, each with its axes of tiles and of rows
    in a tile."""
    lead, (n, k) = (cache.layers, cache.slots, cache.heads), packed
    key_lanes, value_lanes = cache.lane_elements
    keys = window[:, 0, ..., : cache.capacity * key_lanes]
    keys = keys.reshape(*lead, cache.capacity // n, key_lanes // k, n, k)
    values = window[:, 1, ..., : cache.capacity * value_lanes]
    values = values.reshape(*lead, value_lanes // n, cache.capacity // k, n, k)
    shape, scales = (*lead, cache.capacity // n, n, cache.scale_elements), []
    for part in (0, 1) if cache.bits else ():
        first = cache.capacity * cache.lane_elements[part]
        rows = window[:, part, ..., first : first + cache.capacity * cache.scale_elements]
        scales.append((rows.reshape(shape), (3, 4)))
    return [(keys, (3, 5)), (values, (4, 6)), *scales]


def _strips(cache: KvLayout, part: int, lanes: int, itemsize: int) -> list[tuple[int, int]]:
    """Return where the runs of rows of a slot's keys (part 0) or values (1) begin, in bytes from its own, and the bytes
    of a row in each: `lanes` of its elements, or its scale."""
    strips = []
    for head in range(cache.heads):
        start, levels = head * cache.row_width * cache.capacity, cache.capacity * cache.lane_elements[part]
        strips += [(start + at, lanes) for at in range(0, levels, lanes * cache.capacity)]
        if cache.bits:
            strips.append((start + levels, cache.scale_elements))
    return [(at * itemsize, row * itemsize) for at, row in strips]
