"""Resets of slots: failed ones are tried again, and a borrowed slot is clean afterwards."""

from typing import cast

import pytest

from protocol.errors import ErrorCode
from workers.engine.kv_slots import SlotTable
from workers.engine.prefix_match import CachedRows
from workers.engine.request import RequestRefused
from workers.engine.runner import Runner
from workers.engine.slot_reset import SlotResets


class Resettable:
    """Runner that only resets, and fails to reset the slots of `broken`."""

    def __init__(self) -> None:
        self.broken: set[int] = set()
        self.done: list[int] = []

    def reset(self, slot: int) -> None:
        if slot in self.broken:
            raise RuntimeError(f"slot {slot} is broken")
        self.done.append(slot)


def make(slots: int, rows: int) -> tuple[Resettable, SlotTable, SlotResets, list[int]]:
    runner, table = Resettable(), SlotTable(slots, rows)
    failed: list[int] = []
    resets = SlotResets(cast(Runner, runner), table, lambda slot, error: failed.append(slot))
    return runner, table, resets, failed


def test_a_slot_whose_reset_fails_stays_dirty_and_is_tried_again() -> None:
    runner, table, resets, failed = make(2, 20)
    for stream in (1, 2):
        table.take(stream, 1)
    table.release(0)
    table.release(1)
    runner.broken = {0}
    resets.reset_dirty()
    assert (table.dirty, table.free, runner.done, failed) == ((0,), 1, [1], [0])
    runner.broken = set()
    resets.reset_dirty()
    assert (table.dirty, table.free, runner.done, failed) == ((), 2, [1, 0], [0])


def test_a_borrowed_slot_is_held_and_then_reset() -> None:
    runner, table, resets, _ = make(2, 20)
    with resets.borrow(15) as slot:
        assert (slot, table.active, table.free_rows) == (0, 1, 5)
        table.add_rows(slot, 15)
    assert (table.active, table.free, table.free_rows, table.kv_tokens, runner.done) == (0, 2, 20, 0, [0])


def test_the_least_recently_used_slots_are_evicted_for_a_borrower() -> None:
    runner, table, resets, _ = make(2, 20)
    for stream in (1, 2):
        slot = table.take(stream, 8)
        assert slot is not None
        table.add_rows(slot, 8)
    for slot in (1, 0):
        table.retain(slot, CachedRows("", range(8), 8))
    with resets.borrow(9) as slot:
        assert (slot, runner.done, table.retained_tokens) == (1, [1], 8)
    with resets.borrow(20) as slot:
        assert (slot, runner.done, table.retained_tokens) == (0, [1, 1, 0], 0)


def test_without_a_slot_the_borrower_is_refused() -> None:
    _, table, resets, _ = make(1, 20)
    table.take(1, 5)
    with pytest.raises(RequestRefused) as refused, resets.borrow(1):
        pass
    assert refused.value.code is ErrorCode.OVERLOADED
    assert table.active == 1
