"""Which slots have a recurrent state: what a runner refuses, and what it may take back."""

import pytest

from workers.engine.runner import Chunk, RunnerCapabilities
from workers.engine.slot_states import SlotStates

CAPABILITIES = RunnerCapabilities("scripted", "none", "float32", 2, 32, 100, (4,), state_bytes=16, rollback_rows=3)


def chunk(slot: int, start: int, count: int = 1) -> Chunk:
    return Chunk(slot, (1,) * count, start, start)


def test_a_new_slot_has_the_initial_state() -> None:
    states = SlotStates(CAPABILITIES)
    states.check_call([0, 0], [chunk(0, 0, 4)], decode=False)
    states.check_read(1)


def test_rows_of_a_prefill_cannot_be_taken_back() -> None:
    states = SlotStates(CAPABILITIES)
    states.prefilled(0)
    states.check_call([4, 0], [chunk(0, 4)], decode=True)
    with pytest.raises(ValueError, match="start: 1 rows of slot 0 to take back, 0 can be"):
        states.check_call([4, 0], [chunk(0, 3)], decode=True)


def test_rows_of_the_last_decode_step_can_be_up_to_the_bound() -> None:
    states = SlotStates(CAPABILITIES)
    states.check_call([4, 0], [chunk(0, 4, 3)], decode=True)
    with pytest.raises(ValueError, match="rows: 4 of slot 0, a step takes 3"):
        states.check_call([4, 0], [chunk(0, 4, 4)], decode=True)
    states.check_call([4, 0], [chunk(0, 4, 4)], decode=False)
    states.decoded(0, 3)
    states.check_call([7, 0], [chunk(0, 4)], decode=True)
    with pytest.raises(ValueError, match="start: 4 rows"):
        states.check_call([7, 0], [chunk(0, 3)], decode=True)
    states.decoded(0, 1)
    assert states.undoable(0) == 1


def test_without_rollback_a_step_has_one_row_of_a_slot_and_takes_none_back() -> None:
    states = SlotStates(RunnerCapabilities("scripted", "none", "float32", 2, 32, 100, (4,), state_bytes=16))
    states.check_call([4, 0], [chunk(0, 4)], decode=True)
    with pytest.raises(ValueError, match="a step takes 1"):
        states.check_call([4, 0], [chunk(0, 4, 2)], decode=True)
    states.decoded(0, 1)
    assert states.copied(0, 0, 4, 5) is None
    assert not states.known(0)


@pytest.mark.parametrize("target", [0, 1])
def test_a_state_goes_along_with_all_rows_or_all_that_cannot_be_taken_back(target: int) -> None:
    for length, back in [(7, 0), (6, 1), (4, 3), (3, None)]:
        states = SlotStates(CAPABILITIES)
        states.decoded(0, 3)
        assert states.copied(0, target, length, 7) == back
        assert states.known(target) == (back is not None)
        if back is not None:
            states.check_call([length, length], [chunk(target, length)], decode=True)
        else:
            with pytest.raises(ValueError, match="write it first"):
                states.check_call([length, length], [chunk(target, length)], decode=True)
            with pytest.raises(ValueError, match="without a recurrent state"):
                states.check_read(target)
        if (target, back) != (0, 0):
            assert states.undoable(target) == 0


def test_no_rows_have_the_initial_state_and_written_rows_none() -> None:
    states = SlotStates(CAPABILITIES)
    states.rows_written(0)
    assert not states.known(0)
    assert states.copied(0, 1, 2, 2) is None
    assert not states.known(1)
    assert states.copied(0, 1, 0, 2) is None
    assert states.known(1)
    states.check_write(0, 16)
    states.state_written(0)
    states.check_call([2, 0], [chunk(0, 2)], decode=True)
    states.rows_written(0)
    states.reset(0)
    assert states.known(0)


def test_wrong_slots_and_sizes_are_refused() -> None:
    states = SlotStates(CAPABILITIES)
    for slot in (-1, 2):
        with pytest.raises(ValueError, match=f"slot: {slot} is not one of 2"):
            states.check_read(slot)
        with pytest.raises(ValueError, match=f"slot: {slot} is not one of 2"):
            states.check_write(slot, 16)
    for size in (15, 17):
        with pytest.raises(ValueError, match=f"state: {size} bytes, a recurrent state has 16"):
            states.check_write(0, size)
    plain = SlotStates(RunnerCapabilities("scripted", "none", "float32", 2, 32, 100, (4,)))
    with pytest.raises(ValueError, match="the model has no recurrent state"):
        plain.check_read(0)
    with pytest.raises(ValueError, match="the model has no recurrent state"):
        plain.check_write(0, 0)
    plain.check_call([9, 0], [chunk(0, 1, 8)], decode=True)
