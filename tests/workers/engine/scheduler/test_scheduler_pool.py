"""Slots as a pool, without a runner: reserved, retained, reused and evicted rows."""

import pytest

from protocol.errors import ErrorCode
from tests.workers.engine.harness.pool import SHARED, admit, ask, end, prefill, run, scheduler
from tests.workers.engine.scheduler.test_scheduler import refusal
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.sequence import PrefixCopy


def test_a_request_reserves_its_prompt_and_its_tokens_and_the_next_one_waits_for_room() -> None:
    one = scheduler(4, kv_tokens=48)
    one.submit(ask(1, max_tokens=4), 0.0)
    one.submit(ask(2, max_tokens=None), 0.0)
    one.submit(ask(3, max_tokens=4), 0.0)
    admit(one)
    assert (one.slots.active, one.queued, one.slots.free_rows) == (1, 2, 24), "the whole context is 32, and 24 are left"
    end(one, 1)
    one.slots.clean(0)
    admit(one)
    assert (one.slots.active, one.queued, one.slots.free_rows) == (1, 1, 16), "first come, first served"
    end(one, 2)
    one.slots.clean(0)
    admit(one)
    assert (one.slots.active, one.queued, one.slots.free_rows) == (1, 0, 24)


def test_requests_that_fill_the_pool_exactly_all_run() -> None:
    one = scheduler(4, kv_tokens=48)
    run(one, ask(1, max_tokens=4), ask(2, max_tokens=4))
    assert (one.slots.active, one.slots.free_rows) == (2, 0)


def test_sequences_that_wait_for_room_are_bounded() -> None:
    one = scheduler(4, kv_tokens=32)
    run(one, ask(1, max_tokens=None))
    for stream in range(2, 13):
        one.submit(ask(stream), 0.0)
    assert refusal(one, ask(99)) == (ErrorCode.OVERLOADED, "")


def test_a_pool_must_hold_one_context() -> None:
    with pytest.raises(ValueError, match="kv_tokens must hold one context of 32 tokens, not 31"):
        scheduler(kv_tokens=31)
    assert scheduler(kv_tokens=1 << 40).slots.free_rows == 64


def test_the_same_slot_is_reused_and_at_least_one_token_is_computed() -> None:
    one = scheduler()
    run(one, ask(1))
    end(one, 1)
    assert (one.slots.retained_tokens, one.slots.available, one.slots.dirty) == (20, 2, ())
    [work] = run(one, ask(2))
    assert work.copy == PrefixCopy(0, 0, 19)
    assert (work.chunk.slot, work.chunk.start, work.chunk.tokens, work.is_first) == (0, 19, SHARED[19:], True)
    assert (work.sequence.reused, one.slots.kv_tokens, one.slots.retained_tokens) == (19, 20, 0)


def test_a_next_turn_reuses_the_answer_as_well() -> None:
    one = scheduler()
    [*_, work] = run(one, ask(1))
    one.decoded([work.sequence])
    one.accept(work.sequence, 51)
    end(one, 1)
    # Prompt and the first answered token have rows; the second had none yet.
    [after] = run(one, ask(2, (*SHARED, 50, 51, 60)))
    assert (after.copy, after.chunk.tokens) == (PrefixCopy(0, 0, 21), (51, 60))


def test_a_cancel_before_the_first_chunk_keeps_the_retained_rows_within_the_pool() -> None:
    one = scheduler(2, kv_tokens=32, min_tokens=4)
    run(one, ask(1))
    end(one, 1)
    one.submit(ask(2, SHARED[:17], max_tokens=1), 0.0)  # needs 18 rows of a slot that has 20
    one.submit(ask(3, tuple(range(40, 50)), max_tokens=4), 0.0)
    one.admit(0.0)
    assert (one.slots.holder(0), one.queued, one.slots.free_rows) == (2, 1, 12)
    end(one, 2)
    assert (one.slots.retained_tokens, one.slots.free_rows) == (20, 12)


def test_the_first_chunk_frees_the_rows_that_the_sequence_does_not_need() -> None:
    one = scheduler(2, kv_tokens=32, min_tokens=4)
    run(one, ask(1))
    end(one, 1)
    one.submit(ask(2, SHARED[:17], max_tokens=1), 0.0)  # needs 18 rows of a slot that has 20
    admit(one)
    assert one.slots.free_rows == 12
    prefill(one)
    assert one.slots.free_rows == 14


def test_a_shared_prefix_is_copied_and_its_source_kept() -> None:
    one = scheduler()
    run(one, ask(1))
    end(one, 1)
    [work] = run(one, ask(2, (*SHARED[:9], 77)))
    assert work.copy == PrefixCopy(0, 1, 9)
    assert [slot for slot, _ in one.slots.retained()] == [0]


def test_rows_of_a_running_sequence_are_copied() -> None:
    one = scheduler(3, step_tokens=16)
    assert [work.copy for work in run(one, ask(1), ask(2), ask(3))] == [None, None]
    admit(one)
    works = prefill(one)
    # The first prompt is complete; the second takes all of it but its last token, and so does the third.
    assert [(work.sequence.request.stream, work.copy) for work in works] == [
        (1, None),
        (2, PrefixCopy(0, 1, 19)),
        (3, PrefixCopy(0, 2, 19)),
    ]


def test_the_last_slot_is_taken_over_despite_lost_rows() -> None:
    one = scheduler(1)
    run(one, ask(1))
    end(one, 1)
    [work] = run(one, ask(2, (*SHARED[:9], 77)))
    assert work.copy == PrefixCopy(0, 0, 9)
    assert one.slots.retained_tokens == 0


@pytest.mark.parametrize("others", [0, 1])
def test_a_slot_is_taken_over_despite_lost_rows_if_the_pool_has_no_room(others: int) -> None:
    one = scheduler(4, kv_tokens=40)
    run(one, ask(1))
    end(one, 1)
    for stream in range(2, 2 + others):
        run(one, ask(stream, tuple(range(40, 48)), max_tokens=1))
        end(one, stream)
    one.submit(ask(9, (*SHARED[:9], 77), max_tokens=None), 0.0)
    assert admit(one) == []
    assert prefill(one)[0].copy == PrefixCopy(0, 0, 9), "it would have to be given up for a cold run"


def test_the_least_recently_used_slot_is_evicted_when_a_slot_is_needed() -> None:
    one = scheduler()
    run(one, ask(1), ask(2, tuple(range(40, 60))))
    end(one, 2, 1)
    one.submit(ask(3, tuple(range(70, 90))), 0.0)
    assert admit(one) == [1]
    assert one.slots.holder(1) == 3
    [*_, work] = prefill(one)
    assert work.copy is None


def test_a_retained_slot_is_evicted_when_room_is_needed() -> None:
    one = scheduler(4, kv_tokens=50)
    run(one, ask(1), ask(2, tuple(range(40, 60))))
    end(one, 1, 2)
    one.submit(ask(3, tuple(range(70, 90)), max_tokens=None), 0.0)
    assert admit(one) == [0, 1], "ten rows are free, and thirty-two are needed"
    assert one.slots.active == 1


def test_no_slot_is_evicted_if_that_does_not_help() -> None:
    one = scheduler(4, kv_tokens=50)
    run(one, ask(1, max_tokens=None), ask(2, tuple(range(40, 44)), max_tokens=1))
    end(one, 2)
    one.submit(ask(3, tuple(range(70, 90)), max_tokens=None), 0.0)
    assert admit(one) == []
    assert one.slots.retained_tokens == 4


def test_reused_slots_are_evicted_last() -> None:
    one = scheduler(3)
    run(one, ask(1), ask(2, tuple(range(40, 60))))
    end(one, 1, 2)
    run(one, ask(3, (*SHARED[:9], 77)))
    assert [slot for slot, _ in one.slots.retained()] == [1, 0]


def test_a_copied_slot_is_evicted_after_those_that_ended_later() -> None:
    one = scheduler(3)
    run(one, ask(1), ask(2, tuple(range(40, 60))))
    one.submit(ask(3, (*SHARED[:9], 77)), 0.0)
    admit(one)
    end(one, 1, 2)  # after the third has its slot, and before its first chunk
    assert prefill(one)[0].copy == PrefixCopy(0, 2, 9)
    assert [slot for slot, _ in one.slots.retained()] == [1, 0]


def test_tenants_share_neither_running_nor_retained_rows() -> None:
    one = scheduler(4)
    run(one, ask(1, tenant="a"), ask(2, tuple(range(40, 60)), tenant="a"))
    end(one, 1)
    works = run(one, ask(3, tenant="b"), ask(4, tuple(range(40, 60)), tenant=""))
    assert [work.copy for work in works if work.is_first] == [None, None]
    end(one, 3)
    [work] = run(one, ask(5, tenant="b"))
    assert work.sequence.reused == 19


@pytest.mark.parametrize(("length", "reused"), [(9, 0), (10, 9), (20, 19)])
def test_a_prefix_below_the_minimum_is_recomputed(length: int, reused: int) -> None:
    one = scheduler(1, min_tokens=9)
    run(one, ask(1))
    end(one, 1)
    run(one, ask(2, SHARED[:length], max_tokens=None))
    sequence = one.remove(2)
    assert sequence is not None
    assert sequence.reused == reused


def test_inexact_rows_are_reused_at_chunk_ends_only() -> None:
    one = scheduler(exact=False)
    run(one, ask(1, tuple(range(22))))
    end(one, 1)
    works = run(one, ask(2, tuple(range(21))))
    # Both have chunks that end at 8 and 16; the first went on to 22 and the second ends at 21.
    assert works[0].copy == PrefixCopy(0, 1, 16)
    assert [len(work.chunk.tokens) for work in works] == [5]


def test_inexact_rows_that_were_copied_are_copied_again() -> None:
    one = scheduler(exact=False)
    run(one, ask(1, tuple(range(22))))
    end(one, 1)
    run(one, ask(2, tuple(range(21))))
    one.slots.evict(0)
    one.slots.clean(0)
    assert run(one, ask(3, tuple(range(20))))[0].copy == PrefixCopy(1, 0, 16)


def test_no_later_prompt_overtakes_one_that_the_budget_has_no_room_for() -> None:
    one = scheduler(3, step_tokens=8)
    for stream, length in enumerate((3, 4, 2)):
        one.submit(ask(stream, tuple(range(20 * stream, 20 * stream + length))), 0.0)
    admit(one)
    # 3+1 leave 4, and the last chunk of the second one would take 4+1.
    assert [work.sequence.request.stream for work in prefill(one)] == [0]


def test_of_equal_prefixes_the_slot_with_the_fewest_other_rows_is_taken_over() -> None:
    one = scheduler(3)
    run(one, ask(1, (*SHARED[:12], *range(30, 36))), ask(2, (*SHARED[:12], 40)), ask(3, (*SHARED[:12], *range(50, 53))))
    end(one, 1, 2, 3)
    [work] = run(one, ask(4, (*SHARED[:12], 60)))
    assert work.copy == PrefixCopy(1, 1, 12)


def test_of_equal_slots_the_least_recently_used_is_taken_over() -> None:
    one = scheduler(3)
    run(one, ask(1, (*SHARED[:12], 40)), ask(2, (*SHARED[:12], 41)))
    end(one, 2, 1)
    [work] = run(one, ask(4, (*SHARED[:12], 60)))
    assert work.copy == PrefixCopy(1, 1, 12)


def test_exact_rows_are_split_by_the_budget() -> None:
    one = scheduler(step_tokens=5)
    one.submit(ask(1), 0.0)
    sizes = []
    while not one.decoding():
        admit(one)
        sizes += [len(work.chunk.tokens) for work in prefill(one)]
    assert sizes == [4, 4, 4, 4, 4]


def test_failed_rows_are_not_retained_and_their_source_is_evicted() -> None:
    one = scheduler(4)
    run(one, ask(1), ask(2, tuple(range(40, 60))), ask(3, tuple(range(60, 80))))
    end(one, 1, 3)
    (work,) = run(one, ask(4, (*SHARED[:10], 7)))
    assert work.copy == PrefixCopy(0, 3, 10)
    failed = one.remove(4, failed=True)
    assert failed is not None
    assert list(one.slots.dirty) == [3]
    one.evict_suspects(failed, non_finite=False)
    assert list(one.slots.dirty) == [0, 3], "not the rows of stream 3, which it has not copied"
    assert one.slots.retained_tokens == 20


@pytest.mark.parametrize("tenant", ["", "other"])
def test_rows_without_a_token_are_evicted_after_non_finite_logits_of_their_tenant(tenant: str) -> None:
    one = scheduler(4, step_tokens=4)
    one.submit(ask(1, tenant=tenant), 0.0)
    admit(one)
    assert prefill(one), "the first chunk of a prompt"
    end(one, 1)
    one.submit(ask(2, (90, 91)), 0.0)
    admit(one)
    prefill(one)
    failed = one.remove(2, failed=True)
    assert failed is not None
    one.evict_suspects(failed, non_finite=False)
    assert list(one.slots.dirty) == [failed.slot]
    one.evict_suspects(failed, non_finite=True)
    assert list(one.slots.dirty) == ([failed.slot] if tenant else [0, failed.slot])


def test_a_single_row_without_a_token_is_evicted_too() -> None:
    one = scheduler(4, step_tokens=5)
    first, second = run(one, ask(1, (90, 91, 92)), ask(2))
    assert len(second.chunk.tokens) == 1, "the budget has room for one row after the first prompt"
    end(one, 2)
    failed = one.remove(1, failed=True)
    assert failed is not None
    one.evict_suspects(failed, non_finite=True)
    assert list(one.slots.dirty) == [first.chunk.slot, second.chunk.slot]


def test_a_slot_that_was_taken_over_is_empty_after_its_rows_are_suspect() -> None:
    one = scheduler(2, step_tokens=4)
    run(one, ask(1))
    end(one, 1)
    one.submit(ask(2), 0.0)
    admit(one)
    failed = one.remove(2)
    assert failed is not None, "it left before it began, and its slot has the unproven rows of stream 1"
    one.submit(ask(3), 0.0)
    admit(one)
    one.evict_suspects(failed, non_finite=True)
    assert prefill(one)[0].copy == PrefixCopy(0, 0, 0)
    one.submit(ask(4), 0.0)
    end(one, 3)
    admit(one)
    one.evict_suspects(failed, non_finite=True)
    end(one, 4)
    assert (one.slots.dirty, one.slots.free_rows) == ((0,), 64), "it left before it began"


def test_no_more_is_retained_than_the_bound() -> None:
    one = scheduler(3, prefixes=PrefixPolicy(max_rows=40, min_tokens=1))
    run(one, ask(1), ask(2, tuple(range(40, 60))), ask(3, tuple(range(60, 81))))
    end(one, 1, 2)
    assert (one.slots.retained_tokens, one.slots.dirty) == (40, ())
    end(one, 3)
    assert (one.slots.retained_tokens, one.slots.dirty) == (21, (0, 1)), "41 are over it, and so the two oldest go"


def test_without_a_prefix_cache_nothing_is_retained_or_copied() -> None:
    one = scheduler(3, prefixes=PrefixPolicy(enabled=False, min_tokens=1))
    run(one, ask(1))
    assert run(one, ask(2))[0].copy is None
    end(one, 1)
    assert one.slots.dirty == (0,)


def test_a_sequence_cancelled_before_its_first_chunk_leaves_the_retained_rows() -> None:
    one = scheduler(1)
    run(one, ask(1))
    end(one, 1)
    one.submit(ask(2, (*SHARED, 50, 60)), 0.0)
    admit(one)
    assert (one.slots.active, one.slots.retained_tokens) == (1, 0)
    end(one, 2)
    assert (one.slots.active, one.slots.retained_tokens, one.slots.free_rows) == (0, 20, 12)
    assert run(one, ask(3))[0].sequence.reused == 19


def test_a_cancelled_prompt_is_reused_up_to_its_last_chunk() -> None:
    one = scheduler(step_tokens=8)
    run(one, ask(1))
    end(one, 1)
    assert run(one, ask(2))[0].copy == PrefixCopy(0, 0, 8)


@pytest.mark.parametrize(("headroom", "running"), [(0.0, 4), (0.25, 3), (0.26, 2), (0.9, 1)])
def test_sequences_leave_the_headroom_free_while_others_run(headroom: float, running: int) -> None:
    one = scheduler(4, kv_tokens=32, prefixes=PrefixPolicy(headroom=headroom))
    for stream in range(4):
        one.submit(ask(stream, (stream,) * 4), 0.0)
    admit(one)
    assert one.slots.active == running
    assert one.queued == 4 - running


def test_retained_rows_within_the_headroom_are_not_evicted_for_a_further_sequence() -> None:
    one = scheduler(4, kv_tokens=32, prefixes=PrefixPolicy(min_tokens=1, headroom=0.5))
    run(one, ask(0, (1,) * 8, max_tokens=4))
    end(one, 0)
    kept = one.slots.retained_tokens
    run(one, ask(1, (2,) * 8, max_tokens=8))
    one.submit(ask(2, (3,) * 8, max_tokens=8), 0.0)
    assert admit(one) == []
    assert (one.queued, one.slots.retained_tokens) == (1, kept)
    end(one, 1)
    admit(one)
    assert one.queued == 0
