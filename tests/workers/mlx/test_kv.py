"""The KV cache: capacities grow in steps, slots of one capacity share buffers, and no slot gets another's rows."""

from collections.abc import Callable
from unittest.mock import Mock

import mlx.core as mx
import numpy as np
import pytest

from workers.mlx.kv import GROWTH, KvCache, RowShape

HEADS, WIDTH, LAYERS = 2, 4, 2
SLOT_BYTES = LAYERS * 2 * HEADS * WIDTH * 4
"""Bytes of a row of one slot, in float32."""


def fill(kv: KvCache, slot: int, start: int, end: int, first: float = 0) -> None:
    """Write rows that hold `first`, `first` + 1, ..., the values negated."""
    kv.reserve({slot: (start, end)})
    capacity, place = kv.place(slot)
    numbers = mx.arange(first, first + end - start, dtype=mx.float32)[None, :, None]
    for buffers in kv.slab(capacity).buffers:
        for part, sign in enumerate((1, -1)):
            buffers[part][place, :, start:end] = mx.broadcast_to(sign * numbers, (HEADS, end - start, WIDTH))
    kv.lengths[slot] = end


def held(kv: KvCache, slot: int, layer: int = 1) -> list[float]:
    """The numbers in all rows of a slot."""
    capacity, place = kv.place(slot)
    keys, values = (np.array(part[place]) for part in kv.slab(capacity).buffers[layer])
    np.testing.assert_array_equal(keys, -values)
    numbers: list[float] = keys[1, :, 3].tolist()
    return numbers


@pytest.fixture
def kv() -> KvCache:
    mx.set_default_device(mx.cpu)
    return KvCache([RowShape(HEADS, (WIDTH, WIDTH))] * LAYERS, 8, mx.float32)


def test_an_empty_cache_holds_nothing(kv: KvCache) -> None:
    assert (kv.nbytes, kv.arrays, kv.lengths) == (0, [], [0] * 8)


@pytest.mark.parametrize(("count", "capacity"), [(1, GROWTH), (GROWTH, GROWTH), (GROWTH + 1, 2 * GROWTH)])
def test_capacity_grows_in_steps(kv: KvCache, count: int, capacity: int) -> None:
    fill(kv, 3, 0, count)
    assert kv.place(3) == (capacity, 0)
    assert kv.nbytes == capacity * SLOT_BYTES
    kv.reset(3)
    assert (kv.nbytes, kv.lengths[3]) == (0, 0)


def test_growth_keeps_what_was_written(kv: KvCache) -> None:
    for slot in (0, 1, 2):
        fill(kv, slot, 0, GROWTH - 1, 1000 * slot)
    for slot in (2, 0):
        fill(kv, slot, GROWTH - 1, GROWTH + 2, 1000 * slot + GROWTH - 1)
    for slot in (0, 2):
        expected = [*range(1000 * slot, 1000 * slot + GROWTH + 2), *[0] * (GROWTH - 2)]
        assert held(kv, slot) == expected
    assert held(kv, 1) == [*range(1000, 1000 + GROWTH - 1), 0]
    assert kv.nbytes == (GROWTH + 2 * 2 * GROWTH) * SLOT_BYTES


def test_slots_that_grow_together_are_moved_together(kv: KvCache) -> None:
    for slot in range(3):
        fill(kv, slot, 0, GROWTH, 1000 * slot)
    kv.reserve(dict.fromkeys((1, 2, 0), (GROWTH, GROWTH + 1)))
    assert [kv.place(slot) for slot in (1, 2, 0)] == [(2 * GROWTH, place) for place in range(3)]
    assert [held(kv, slot)[GROWTH - 2 : GROWTH + 1] for slot in range(3)] == [
        [1000 * slot + 254, 1000 * slot + 255, 0] for slot in range(3)
    ]
    assert kv.nbytes == 3 * 2 * GROWTH * SLOT_BYTES


def test_rows_that_are_written_again_are_cleared_with_those_behind_them(kv: KvCache) -> None:
    fill(kv, 0, 0, 8)
    fill(kv, 1, 0, 8)
    fill(kv, 0, 3, 5, 100)
    assert held(kv, 0)[:9] == [0, 1, 2, 100, 101, 0, 0, 0, 0]
    assert held(kv, 1)[:9] == [*range(8), 0]


def test_no_place_is_kept_free(kv: KvCache) -> None:
    for slot in range(6):
        fill(kv, slot, 0, 10, 100 * slot)
    kv.reset(2)
    assert kv.nbytes == 5 * GROWTH * SLOT_BYTES
    fill(kv, 7, 0, 1, 700)
    assert kv.place(7) == (GROWTH, 5)
    assert held(kv, 7) == [700, *[0] * (GROWTH - 1)]
    kv.reset(7)
    kv.reset(0)
    assert kv.nbytes == 4 * GROWTH * SLOT_BYTES
    assert [held(kv, slot)[:3] for slot in (1, 3, 4, 5)] == [
        [100 * slot + i for i in range(3)] for slot in (1, 3, 4, 5)
    ]


MOVES: dict[str, Callable[[KvCache], None]] = {
    "reset": lambda kv: kv.reset(1),
    "growth": lambda kv: kv.reserve({1: (9, GROWTH + 1), 2: (9, GROWTH + 1)}),
    "growth of all": lambda kv: kv.reserve(dict.fromkeys((0, 1, 2, 3), (9, GROWTH + 1))),
    "two capacities": lambda kv: kv.reserve({1: (9, GROWTH + 1), 2: (9, 2 * GROWTH + 1)}),
    "new slot": lambda kv: kv.reserve({6: (0, 1)}),
    "copy to a place": lambda kv: kv.copy_prefix(5, 1, 4),
    "copy to a new slot": lambda kv: kv.copy_prefix(2, 6, 4),
    "copy to another capacity": lambda kv: kv.copy_prefix(5, 1, GROWTH + 1),
    "written again": lambda kv: kv.reserve({1: (3, 4), 2: (3, GROWTH + 1)}),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_move_that_fails_leaves_slots_their_own_rows_or_none(
    kv: KvCache, monkeypatch: pytest.MonkeyPatch, move: Callable[[KvCache], None]
) -> None:
    """Whichever evaluation fails. Slots 0 to 3 are of one capacity, 4 and 5 of another."""
    evaluate, failures = mx.eval, 0
    while True:
        kv.reset_all()
        for slot in range(6):
            fill(kv, slot, 0, 9 if slot < 4 else GROWTH + 9, 1000 * slot)
        calls = [None] * failures + [MemoryError()]
        with monkeypatch.context() as patched:
            patched.setattr(mx, "eval", Mock(side_effect=lambda *arrays, calls=calls: _next(calls, evaluate, arrays)))
            try:
                move(kv)
            except MemoryError:
                failures += 1
            else:
                break
        for slot in range(6):
            for layer in range(LAYERS if kv.lengths[slot] else 0):
                assert held(kv, slot, layer)[: kv.lengths[slot]] == [1000 * slot + i for i in range(kv.lengths[slot])]
        assert kv.nbytes == sum(kv.place(slot)[0] for slot in range(6) if kv.lengths[slot]) * SLOT_BYTES
        for slot in range(8):
            kv.reset(slot)
            fill(kv, slot, 0, 5, 1)
            assert held(kv, slot, 0)[:6] == [1, 2, 3, 4, 5, 0]
    assert failures >= LAYERS


def _next(calls: list[Exception | None], evaluate: Callable[..., None], arrays: tuple[object, ...]) -> None:
    if calls and (error := calls.pop(0)) is not None:
        raise error
    evaluate(*arrays)


@pytest.mark.parametrize("growing", [8, 7, 1])
def test_a_move_holds_no_more_than_a_layer_twice(growing: int) -> None:
    mx.set_default_device(mx.cpu)
    layers = 16
    kv = KvCache([RowShape(2, (64, 64))] * layers, 8, mx.float32)
    kv.reserve(dict.fromkeys(range(8), (0, 512)))
    kv.lengths = [512] * 8
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    kv.reserve(dict.fromkeys(range(growing), (512, 513)))
    assert mx.get_peak_memory() - before < kv.nbytes - 8 * 512 * layers * 2 * 2 * 64 * 4 + 1.1 * kv.nbytes / layers
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    kv.reset(0)
    assert mx.get_peak_memory() - before < 1.1 * before / layers


@pytest.mark.parametrize("target", [1, 2, 0])
def test_a_copied_prefix_has_zeros_behind_it(kv: KvCache, target: int) -> None:
    for slot in (0, 1):
        fill(kv, slot, 0, GROWTH + 9, 1000 * slot)
    kv.copy_prefix(1, target, 5)
    assert kv.lengths[target] == 5
    assert held(kv, target) == [1000, 1001, 1002, 1003, 1004, *[0] * (GROWTH - 5)]
    if target != 1:
        assert held(kv, 1)[: GROWTH + 10] == [*range(1000, 1000 + GROWTH + 9), 0]
    kv.copy_prefix(target, target, 0)
    assert kv.lengths[target] == 0
    fill(kv, target, 0, 1, 7)
    assert held(kv, target)[:2] == [7, 0]
