"""Rows of a KV cache in memory of the device, copied to and from the host by the device."""

from collections.abc import Iterator
from itertools import product

import iree.runtime as rt
import numpy as np

from workers.iree.device.device import Device
from workers.iree.model.kv_layout import KvLayout


class DeviceRows:
    """Reads and writes rows as `PlainOps` has them: those of one head lie together, in order."""

    def __init__(self, device: Device, kv: rt.HalBufferView, cache: KvLayout, dtype: str) -> None:
        self._device = device
        self._kv = kv
        self._cache = cache
        self._lane_bytes = cache.head_dim * (4 if dtype == "float32" else 2)

    def read(self, slot: int, start: int, end: int) -> memoryview:
        """Return a copy of rows `start .. end`: [layers, 2, heads, rows, head_dim]."""
        size = (end - start) * self._lane_bytes
        offsets = list(self._offsets(slot, start))
        return self._device.read_ranges(self._kv, offsets, size)

    def write(self, slot: int, start: int, end: int, data: bytes | memoryview) -> None:
        """Write what `read` has returned for these rows."""
        size = (end - start) * self._lane_bytes
        self._device.write_ranges(self._kv, list(self._offsets(slot, start)), size, np.frombuffer(data, np.uint8))

    def _offsets(self, slot: int, start: int) -> Iterator[int]:
        """Return where the rows of each layer's keys and values of each head begin, in bytes."""
        cache = self._cache
        for layer, part, head in product(range(cache.layers), range(2), range(cache.heads)):
            number = ((layer * 2 + part) * cache.slots + slot) * cache.heads + head
            yield (number * cache.capacity + start) * self._lane_bytes
