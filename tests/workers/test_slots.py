"""The slot table: who holds what, lowest first, and nothing is free before it is reset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.slots import SlotTable


def test_the_lowest_free_slot_goes_first() -> None:
    table = SlotTable(3)
    assert [table.take(stream) for stream in (10, 11, 12, 13)] == [0, 1, 2, None]
    for slot in (2, 0):
        table.release(slot)
        table.clean(slot)
    assert [table.take(stream) for stream in (14, 15)] == [0, 2]
    assert [table.holder(slot) for slot in range(3)] == [14, 11, 15]


def test_a_released_slot_is_not_free_until_it_is_clean() -> None:
    table = SlotTable(1)
    table.take(5)
    table.wrote(0, 7)
    assert (table.active, table.free, table.kv_tokens, table.rows(0)) == (1, 0, 7, 7)
    table.release(0)
    assert (table.active, table.free, table.kv_tokens, table.soiled) == (0, 0, 0, (0,))
    assert table.take(6) is None
    table.clean(0)
    assert (table.free, table.soiled, table.rows(0)) == (1, (), 0)
    assert table.take(6) == 0


def test_what_is_not_held_is_not_released_and_what_is_not_released_is_not_cleaned() -> None:
    table = SlotTable(2)
    with pytest.raises(ValueError, match="slot 1 is not held"):
        table.release(1)
    table.take(1)
    with pytest.raises(ValueError, match="slot 0 was not released"):
        table.clean(0)
    with pytest.raises(ValueError, match="at least 1"):
        SlotTable(0)


@given(st.lists(st.tuples(st.sampled_from(["take", "wrote", "release", "clean"]), st.integers(0, 4))))
def test_slots_and_rows_always_add_up(actions: list[tuple[str, int]]) -> None:
    table = SlotTable(5)
    held: dict[int, int] = {}
    soiled: set[int] = set()
    for action, slot in actions:
        if action == "take":
            taken = table.take(99)
            free = sorted(set(range(5)) - set(held) - soiled)
            assert taken == (free[0] if free else None)
            if taken is not None:
                held[taken] = 0
        elif action == "wrote" and slot in held:
            table.wrote(slot, 3)
            held[slot] += 3
        elif action == "release" and slot in held:
            table.release(slot)
            del held[slot]
            soiled.add(slot)
        elif action == "clean" and slot in soiled:
            table.clean(slot)
            soiled.remove(slot)
        assert (table.active, table.soiled, table.total) == (len(held), tuple(sorted(soiled)), 5)
        assert table.free == 5 - len(held) - len(soiled)
        assert table.kv_tokens == sum(held.values())
