"""The cache in the host's memory: rows are copied and cleared in any layout, and pages come and go with them."""

import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.iree import kv
from workers.iree.device.buffers import zero_pages
from workers.iree.kv import HostKv
from workers.iree.model.kv_layout import KvLayout

CACHE = KvLayout(layers=2, slots=3, heads=2, head_dim=32, capacity=64, tile=16)
INT8, INT4 = (replace(CACHE, kv_dtype=kind) for kind in ("int8", "int4"))
LAYOUTS = [
    pytest.param((16, 2), CACHE, id="bf16-tiles"),
    pytest.param((16, 1), CACHE, id="tiles"),
    pytest.param((16, 2), INT8, id="int8-pairs"),
    pytest.param((16, 1), INT8, id="int8"),
    pytest.param((16, 2), INT4, id="int4-pairs"),
]


def make(packed: tuple[int, int], cache: KvLayout) -> tuple[HostKv, NDArray[Any]]:
    bits = np.dtype(np.uint8 if cache.bits else np.uint16)
    memory = zero_pages(int(np.prod(cache.shape)) * bits.itemsize)
    window = np.frombuffer(memory, bits).reshape(cache.shape)
    return HostKv(window, memory, cache, packed), window


def fill(window: NDArray[Any]) -> None:
    """Fill a cache with random elements, none of them zero."""
    window[...] = np.random.default_rng(0).integers(1, np.iinfo(window.dtype).max, window.shape, window.dtype)


def row_of(packed: tuple[int, int], cache: KvLayout) -> NDArray[Any]:
    """The row of each element of a head's keys and values: [2, capacity * row_width]."""
    row = np.broadcast_to(np.arange(cache.capacity)[:, None], (cache.capacity, cache.lane_elements[0]))
    n, k = packed
    keys = row.reshape(cache.capacity // n, n, cache.lane_elements[0] // k, k).transpose(0, 2, 1, 3)
    values = row.reshape(cache.capacity // k, k, cache.lane_elements[1] // n, n).transpose(2, 0, 3, 1)
    scales = np.repeat(np.arange(cache.capacity), cache.scale_elements)
    return np.stack([np.concatenate([part.reshape(-1), scales]) for part in (keys, values)])


@pytest.mark.parametrize(("packed", "cache"), LAYOUTS)
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 33, 48])
def test_rows_are_copied_and_no_others(packed: tuple[int, int], cache: KvLayout, length: int) -> None:
    host, window = make(packed, cache)
    fill(window)
    before, rows = window.copy(), row_of(packed, cache)[None, :, None]
    host.copy(0, 2, length)
    assert np.array_equal(window[:, :, 2], np.where(rows < length, before[:, :, 0], before[:, :, 2]))
    assert np.array_equal(window[:, :, :2], before[:, :, :2])


@pytest.mark.parametrize(("packed", "cache"), LAYOUTS)
@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 5), (5, 20), (16, 32), (17, 33), (40, 48)])
@pytest.mark.parametrize("drop", [False, True])
def test_rows_are_cleared_and_none_before_them(
    packed: tuple[int, int], cache: KvLayout, start: int, end: int, drop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "DROP_BYTES", 0 if drop else 1 << 40)
    host, window = make(packed, cache)
    window[...] = 7
    host.clear(1, start, end)
    rows = np.broadcast_to(row_of(packed, cache)[None, :, None], window[:, :, 1].shape)
    cleared = window[:, :, 1] == 0
    assert not cleared[rows < start].any()
    assert cleared[(rows >= start) & (rows < end)].all()
    assert cleared[rows == cache.spare_row].all()
    assert (window[:, :, [0, 2]] == 7).all()


@pytest.mark.parametrize(("packed", "cache"), LAYOUTS)
@pytest.mark.parametrize("drop", [False, True])
def test_a_slot_is_forgotten_whole_and_no_other(
    packed: tuple[int, int], cache: KvLayout, drop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "DROP_BYTES", 0 if drop else 1 << 40)
    host, window = make(packed, cache)
    window[...] = 7
    host.forget(1, cache.capacity)
    assert not window[:, :, 1].any()
    assert (window[:, :, [0, 2]] == 7).all()


@pytest.mark.skipif(sys.platform != "linux", reason="pages are looked up in /proc")
def test_a_slot_takes_memory_for_what_is_written_and_gives_it_back() -> None:
    cache = KvLayout(layers=2, slots=4, heads=2, head_dim=64, capacity=1 << 15, tile=16)
    host, window = make((16, 2), cache)
    assert resident(window) == 0
    for part in host._parts:
        part[:, :, :, 1][: 2048 * part.shape[0] // cache.capacity] = 1
    written = 2048 * host._row_bytes
    assert written <= resident(window) <= 1.2 * written
    host.clear(1, 500, 2048)
    assert resident(window) <= 0.35 * written
    host.forget(1, 2048)
    assert resident(window) <= 0.1 * written
    assert not window.any()


def resident(window: NDArray[Any]) -> int:
    """Bytes of the array's pages that are present (proc(5), pagemap: bit 63)."""
    address = window.__array_interface__["data"][0] // 4096
    with open("/proc/self/pagemap", "rb") as pages:
        entries = np.frombuffer(os.pread(pages.fileno(), window.nbytes // 4096 * 8, address * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * 4096


@pytest.mark.parametrize(("packed", "cache"), LAYOUTS)
@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 48), (3, 9), (5, 20), (16, 32), (17, 33), (31, 48)])
def test_rows_are_read_and_written_elsewhere_and_no_others(
    packed: tuple[int, int], cache: KvLayout, start: int, end: int
) -> None:
    host, window = make(packed, cache)
    fill(window)
    before, rows = window.copy(), row_of(packed, cache)[None, :, None]
    data = host.read(0, start, end)
    assert data.nbytes == (end - start) * host._row_bytes
    window[:, :, 0] = 0
    host.write(2, start, end, bytes(data))
    assert np.array_equal(window[:, :, 2], np.where((rows >= start) & (rows < end), before[:, :, 0], before[:, :, 2]))
    assert np.array_equal(window[:, :, 1], before[:, :, 1])
