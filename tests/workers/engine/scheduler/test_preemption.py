"""Preempted sequences: for rows as reservations grow, and by more urgent ones that find no slot or room."""

from typing import Any

import pytest

from protocol.commands import TENANT_SALT
from protocol.scheduling import LEVELS, Urgency
from tests.workers.engine.harness.pool import admit, end, prefill, scheduler
from workers.engine.request import EngineRequest
from workers.engine.scheduler import Scheduler
from workers.engine.scheduling.preemption import MAX_PREEMPTIONS, MIN_LEFT, PATIENCE_S

HIGH, LOW = Urgency(LEVELS["high"]), Urgency(LEVELS["low"])


def ask(stream: int, length: int = 4, **fields: Any) -> EngineRequest:
    return EngineRequest(stream, tuple(range(10 * stream, 10 * stream + length)), **fields)


def step(one: Scheduler, now: float = 0.0) -> list[int]:
    """Run a step in which every sequence gets one token. Returns the streams that decode in it."""
    one.grow(now)
    _clean(one)
    one.admit(now)
    while one.make_room() is not None:
        _clean(one)
        one.admit(now)
    prefill(one)
    decoding = one.decoding()
    one.decoded(decoding)
    for sequence in decoding:
        if one.accept(sequence, 51) is not None:
            one.remove(sequence.request.stream)
    _clean(one)
    return [sequence.request.stream for sequence in decoding]


def _clean(one: Scheduler) -> None:
    for slot in one.slots.dirty:
        one.slots.clean(slot)


def start(one: Scheduler, *requests: EngineRequest, now: float = 0.0) -> list[int]:
    for request in requests:
        one.submit(request, now)
    return step(one, now)


def holders(one: Scheduler) -> set[int]:
    return {stream for slot in range(one.slots.total) if (stream := one.slots.holder(slot)) is not None}


@pytest.mark.parametrize(("max_tokens", "reserved"), [(7, 11), (8, 12), (9, 12), (None, 12)])
def test_a_sequence_reserves_its_prompt_and_a_part_of_its_tokens(max_tokens: int | None, reserved: int) -> None:
    one = scheduler(2, reserved_rows=8)
    one.submit(ask(1, max_tokens=max_tokens), 0.0)
    admit(one)
    assert one.slots.reserved_rows == reserved


def test_a_reservation_grows_when_its_last_row_is_written() -> None:
    one = scheduler(2, reserved_rows=8)
    start(one, ask(1))
    seen = [one.slots.reserved_rows]
    for _ in range(8):
        step(one)
        seen.append(one.slots.reserved_rows)
    assert seen == [12] * 8 + [20], "the prompt has four rows, and each step writes one"


def test_what_is_retained_is_evicted_before_a_sequence_is_preempted() -> None:
    one = scheduler(2, kv_tokens=32, reserved_rows=8)
    start(one, ask(1, 12))
    end(one, 1)
    assert one.slots.retained_tokens == 13
    start(one, ask(2))
    while one.slots.reserved_rows < 20:
        step(one)
        assert one.queued == 0
    assert one.slots.retained_tokens == 0


def test_a_sequence_alone_reaches_the_whole_context() -> None:
    one = scheduler(4, kv_tokens=32, reserved_rows=4)
    start(one, ask(1))
    steps = 0
    while not one.idle:
        assert step(one) == [1]
        steps += 1
    assert steps == 32 - 4 - 2, "the context less the prompt and the tokens of the first step"


def test_the_least_urgent_is_preempted_first_and_then_the_last_that_came() -> None:
    one = scheduler(4, kv_tokens=36, reserved_rows=4)
    start(one, ask(1, urgency=LOW), ask(2), ask(3), ask(4, urgency=HIGH))
    gone = []
    for _ in range(20):
        before = holders(one)
        step(one)
        gone += sorted(before - holders(one))
        if len(gone) == 3:
            break
    assert gone == [1, 3, 2]


def test_a_sequence_that_has_waited_for_long_is_not_preempted_for_room() -> None:
    one = scheduler(2, kv_tokens=32, reserved_rows=4)
    one.submit(ask(1, urgency=LOW), -PATIENCE_S)
    one.submit(ask(2, urgency=HIGH), 0.0)
    step(one)
    assert holders(one) == {1, 2}
    while one.queued == 0:
        step(one)
    assert holders(one) == {1}


def test_what_is_preempted_for_room_continues_before_later_ones() -> None:
    one = scheduler(3, kv_tokens=32, reserved_rows=4)
    start(one, ask(1, max_tokens=16), ask(2, max_tokens=16))
    while one.queued == 0:
        step(one)
    one.submit(ask(3, max_tokens=1), 0.0)
    assert holders(one) == {1}
    while 2 not in holders(one):
        step(one)
        assert 3 not in holders(one)


def test_an_urgent_sequence_takes_the_slot_of_a_less_urgent_one() -> None:
    one = scheduler(2)
    assert start(one, ask(1), ask(2)) == [1, 2]
    assert sorted(start(one, ask(3, urgency=HIGH))) == [1, 3]
    assert one.queued == 1
    end(one, 3)
    _clean(one)
    assert sorted(step(one)) == [1, 2]


@pytest.mark.parametrize(("max_tokens", "left"), [(18, {1, 2, 4}), (19, {1, 4}), (None, {1, 4})])
def test_room_is_made_by_as_many_as_it_takes_and_by_no_more(max_tokens: int | None, left: set[int]) -> None:
    one = scheduler(4, kv_tokens=66)
    start(one, *(ask(stream, max_tokens=18) for stream in (1, 2, 3)))
    assert one.slots.free_rows == 0
    start(one, ask(4, urgency=HIGH, max_tokens=max_tokens))
    assert holders(one) == left


@pytest.mark.parametrize("left", [MIN_LEFT - 1, MIN_LEFT])
def test_a_sequence_with_few_tokens_left_keeps_its_slot(left: int) -> None:
    one = scheduler(1)
    start(one, ask(1, max_tokens=left + 2))
    one.submit(ask(2, urgency=HIGH), 0.0)
    step(one)
    assert holders(one) == ({1} if left < MIN_LEFT else {2})


def test_a_sequence_is_preempted_a_few_times_only() -> None:
    one = scheduler(1)
    start(one, ask(1))
    for stream in range(2, 2 + MAX_PREEMPTIONS):
        start(one, ask(stream, urgency=HIGH))
        assert holders(one) == {stream}
        end(one, stream)
        _clean(one)
        step(one)
        assert holders(one) == {1}
    start(one, ask(9, urgency=HIGH))
    assert holders(one) == {1}


@pytest.mark.parametrize(("waited", "holder"), [(PATIENCE_S - 1, 3), (PATIENCE_S, 1)])
def test_a_sequence_that_has_waited_for_long_has_the_next_turn_and_keeps_it(waited: float, holder: int) -> None:
    one = scheduler(1)
    start(one, ask(2, urgency=HIGH))
    one.submit(ask(1, urgency=LOW), 0.0)
    step(one)
    one.submit(ask(3, urgency=HIGH), waited)
    end(one, 2)
    _clean(one)
    step(one, waited)
    assert holders(one) == {holder}
    if holder == 1:
        start(one, ask(4, urgency=HIGH), now=waited + 1000)
        assert holders(one) == {1}, "it runs, and does not wait any more"


def test_the_time_in_which_a_sequence_runs_is_not_waited() -> None:
    one = scheduler(1)
    start(one, ask(1, urgency=LOW))
    start(one, ask(2, urgency=HIGH), now=100 * PATIENCE_S)
    assert holders(one) == {2}


@pytest.mark.parametrize(("tenant", "holder"), [("a", 2), ("b", 1), (f"a{TENANT_SALT}c", 2), (TENANT_SALT, 1)])
def test_a_priority_counts_among_the_requests_of_one_client(tenant: str, holder: int) -> None:
    one = scheduler(1)
    start(one, ask(1, tenant="a", urgency=Urgency(priority=5)))
    start(one, ask(2, tenant=tenant, urgency=Urgency(priority=-5)))
    assert holders(one) == {holder}


def test_no_sequence_is_preempted_if_that_makes_no_room() -> None:
    one = scheduler(3, kv_tokens=32)
    start(one, ask(1, max_tokens=18), ask(2, urgency=HIGH, max_tokens=4))
    start(one, ask(3, urgency=HIGH, max_tokens=28))
    assert holders(one) == {1, 2}, "the other urgent one keeps eight rows"


def test_a_prompt_whose_log_probabilities_are_reported_is_not_preempted() -> None:
    one = scheduler(1, step_tokens=4)
    one.submit(EngineRequest(1, tuple(range(20)), prompt_logprobs=True), 0.0)
    step(one)
    start(one, ask(5, urgency=HIGH))
    assert holders(one) == {1}


@pytest.mark.parametrize("phase", ["prefilling", "decoding"])
def test_all_its_tokens_are_prefilled_again(phase: str) -> None:
    one = scheduler(1, step_tokens=99 if phase == "decoding" else 4)
    start(one, ask(1, 9))
    start(one, ask(2, urgency=HIGH))
    waiting = one.remove(1)
    assert waiting is not None
    assert (waiting.slot, waiting.reserved, waiting.preemptions, waiting.cached.rows) == (-1, 0, 1, 0)
    assert waiting.prefill_length == len(waiting.tokens) == (11 if phase == "decoding" else 9)
    assert one.slots.active == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_sequence_that_waits_for_too_long_is_removed_unless_it_has_begun(late: bool) -> None:
    one = scheduler(1)
    start(one, ask(1, max_tokens=20, queue_s=1.0))
    one.submit(ask(2, queue_s=3.0), 1.0)
    now = 4.0 if late else 3.999
    assert [each.request.stream for each in one.expire(now)] == [2] * late
    assert one.queued == 1 - late
    start(one, ask(3, urgency=HIGH), now=5.0)
    assert [each.request.stream for each in one.expire(1000.0)] == [2] * (not late), "not stream 1, which was preempted"


def test_a_sequence_with_a_slot_waits_until_its_first_chunk() -> None:
    one = scheduler(2, step_tokens=4)
    one.submit(EngineRequest(1, tuple(range(20)), queue_s=1.0), 0.0)
    one.submit(EngineRequest(2, tuple(range(40, 60)), queue_s=1.0), 0.0)
    step(one)
    assert holders(one) == {1, 2}
    assert [each.request.stream for each in one.expire(1.0)] == [2]


def test_a_sequence_that_is_preempted_before_its_first_chunk_has_not_begun() -> None:
    one = scheduler(2, step_tokens=4)
    one.submit(ask(1, 10), 0.0)
    one.submit(ask(2, 10, queue_s=1.0, urgency=LOW), 0.0)
    step(one)
    start(one, ask(7, urgency=HIGH))
    assert holders(one) == {1, 7}
    assert [each.request.stream for each in one.expire(1.0)] == [2]


def own(stream: int, tenant: str, priority: int) -> EngineRequest:
    return ask(stream, tenant=tenant, urgency=Urgency(priority=priority))


def test_a_priority_changes_the_order_of_one_clients_requests_alone() -> None:
    one = scheduler(1)
    start(one, ask(0, urgency=HIGH))
    for request in (own(1, "a", 0), own(2, "b", 0), own(3, "b", -9), own(4, "a", 9), own(5, "a", -9)):
        one.submit(request, 0.0)
    order: list[int] = []
    while one.queued:
        end(one, *holders(one))
        _clean(one)
        step(one)
        order += holders(one)
    assert order == [5, 3, 2, 1, 4], "each client keeps its places"


def test_a_priority_does_not_keep_the_room_of_another_client() -> None:
    one = scheduler(2, kv_tokens=32, reserved_rows=4)
    start(one, own(1, "a", 5), own(2, "b", -9))
    while one.queued == 0:
        step(one)
    assert holders(one) == {1}, "the first of all always gets on"
