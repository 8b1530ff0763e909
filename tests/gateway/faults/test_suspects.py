"""The rule of `gateway.routing.failure_attribution`, at work in the real router."""

from typing import Any

import anyio
import pytest

from gateway.http.errors import ApiError
from gateway.routing.failure_attribution import CLEARED_AFTER, MAX_PARDONS, suspect
from gateway.routing.quarantine import REFUSED_AFTER, REMEMBERED_S
from gateway.routing.request_group import Call
from protocol.errors import ErrorCode
from tests.gateway.fakes import FakeWorker
from tests.gateway.virtual import BACKEND
from tests.gateway.world import World, clear, failure, last, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def step(worker: FakeWorker, calls: list[Call]) -> None:
    """Two tokens for each that runs, up to the twenty that end it."""
    for call in calls:
        if not call.ended and call.streams[0].worker:
            worker.token(number(call), "y", 2)
            if len(call.streams[0].tokens) == 20:
                worker.finish(number(call))


async def test_the_same_request_is_not_tried_a_third_time() -> None:
    world = World("a", "b", "c")
    call = world.open()
    world["a"].die()
    world["b"].die()
    assert failure(call) is ErrorCode.QUARANTINED
    assert world["c"].submits == []
    assert world.replays() == {("died", "lost_again"): 1, ("died", "quarantined"): 1}


async def test_the_neighbours_of_a_poisonous_request_survive() -> None:
    """Whoever runs it dies; nobody else may come to harm."""
    world = World(slots=8)
    calls = [world.open(str(index)) for index in range(8)]
    poison, worker = calls[3], world["a"]
    for call in calls:
        worker.token(number(call), "x", 1)
    deaths = 0
    while any(not call.ended for call in calls):
        if not poison.ended and poison.streams[0].worker:
            deaths += 1
            worker.die()
            worker.come_back()
        else:
            step(worker, calls)
    assert deaths == 2
    assert failure(poison) is ErrorCode.QUARANTINED
    assert [call for call in calls if call.failure is not None] == [poison]


async def test_the_deaths_by_a_culprit_are_pardoned_wherever_they_were() -> None:
    world = World("a", "b")
    world.open()
    world["a"].die()
    world["a"].come_back()
    assert (world["a"].exempted, world["b"].exempted) == ([], [])
    world["b"].die()
    assert (world["a"].exempted, world["b"].exempted) == ([1], [1])


async def test_a_death_that_nobody_was_guilty_of_counts() -> None:
    world = World()
    call = world.open()
    world["a"].die()
    world["a"].come_back()
    clear(world["a"], last(world["a"]))
    world["a"].die()
    assert not call.ended
    assert world["a"].exempted == []


async def test_a_suspect_whose_client_leaves_takes_the_death_with_it() -> None:
    """Or a client that always leaves in time would use up the restarts."""
    world = World()
    for incarnation in (1, 2):
        call = world.open()
        world["a"].die()
        call.cancel_nowait()
        world["a"].come_back()
        assert world["a"].exempted == list(range(1, incarnation + 1))


async def test_a_worker_that_does_nothing_but_die_is_not_pardoned_for_ever() -> None:
    world = World()
    for index in range(MAX_PARDONS):
        world.open(prompt=f"{index}")
        for _ in range(2):
            world["a"].die()
            world["a"].come_back()
    assert world["a"].exempted == list(range(1, MAX_PARDONS + 1))
    world["a"].finish(number(world.open(prompt="good")))
    bad = world.open(prompt="bad")
    world["a"].die()
    world["a"].come_back()
    world["a"].die()
    assert failure(bad) is ErrorCode.QUARANTINED
    assert len(world["a"].exempted) == MAX_PARDONS + 2


async def test_a_request_that_was_quarantined_twice_is_refused_at_once_for_a_while() -> None:
    world = World()
    for _ in range(REFUSED_AFTER):
        call = world.open()
        for _ in range(2):
            world["a"].die()
            world["a"].come_back()
        assert failure(call) is ErrorCode.QUARANTINED
    with pytest.raises(ApiError, match="not tried again") as refused:
        world.open(seed=7)
    assert (refused.value.status, refused.value.code) == (500, "quarantined")
    assert not world.open(prompt="another").ended
    await anyio.sleep(REMEMBERED_S)
    assert not world.open().ended


async def test_suspects_run_apart_until_they_are_past_the_point() -> None:
    world = World()
    first, second = world.open("first"), world.open("second")
    world["a"].die()
    world["a"].come_back()
    assert [submit.request for submit in world["a"].submits[2:]] == ["first"]
    for _ in range(CLEARED_AFTER - 1):
        world["a"].token(number(first), "x", 1)
    assert second.waiting
    world["a"].token(number(first), "x", 1)
    assert last(world["a"]).request == "second"
    assert not second.waiting


async def test_a_suspect_that_ends_makes_way_too() -> None:
    world = World()
    first, second = world.open("first"), world.open("second")
    world["a"].die()
    world["a"].come_back()
    world["a"].finish(number(first))
    assert last(world["a"]).request == "second"
    assert not second.ended


async def test_a_suspect_that_was_cleared_starts_anew() -> None:
    world = World()
    call = world.open()
    for _ in range(5):
        world["a"].die()
        world["a"].come_back()
        clear(world["a"], last(world["a"]))
    assert not call.ended


async def test_what_only_waited_for_a_slot_is_innocent() -> None:
    world = World(slots=1)
    runs, next_one, queued = world.open("runs"), world.open("next"), world.open("queued")
    world["a"].die()
    suspects = [suspect(call.streams[0]) for call in (runs, next_one, queued)]
    assert suspects == [True, True, False], "the next one may have got the slot, and nobody had heard"


async def test_a_prompt_that_kills_is_found_behind_a_long_queue() -> None:
    """The worker dies as soon as it looks at it; eight others run or wait before it, and come to no harm."""
    world = World(slots=1)
    calls, worker = [world.open(str(index)) for index in range(8)], world["a"]
    worker.reach()
    poison = world.open("poison")
    deaths = 0
    while any(not call.ended for call in (*calls, poison)):
        if not poison.ended and poison.streams[0].worker:
            deaths += 1
            worker.die(number(poison) - 1)
            worker.come_back()
            continue
        worker.reach()
        step(worker, calls)
    assert deaths == 2
    assert failure(poison) is ErrorCode.QUARANTINED
    assert [call for call in calls if call.failure is not None] == []


async def test_a_suspect_is_not_given_to_a_worker_whose_slots_are_taken() -> None:
    world = World("a", "b", slots=1)
    call, other = world.open("suspect"), world.open("other")
    world["a"].die()
    assert call.waiting
    world["b"].finish(number(other))
    assert last(world["b"]).request == "suspect"


async def test_nobody_waits_for_a_suspect_whose_turn_has_not_come_and_its_slot_is_kept() -> None:
    world = World(slots=3)
    first, second = world.open("first"), world.open("second")
    world["a"].die()
    world["a"].come_back()
    new, newer = world.open("new"), world.open("newer")
    assert [submit.request for submit in world["a"].submits[2:]] == ["first", "new"]
    assert (second.waiting, new.waiting, newer.waiting) == (True, False, True)
    clear(world["a"], world["a"].submits[2])
    assert [submit.request for submit in world["a"].submits[4:]] == ["second", "newer"]
    assert not first.ended


async def test_a_newcomer_keeps_away_from_suspects_as_long_as_there_is_a_free_slot() -> None:
    world = World("a", "b", slots=4)
    world.open("other")
    call = world.open("suspect")
    world["b"].die()
    world["b"].come_back()
    assert call.worker == "a"
    assert [world.open("new").worker for _ in range(5)] == ["b", "b", "b", "b", "a"]


async def test_the_choices_of_a_quarantined_request_are_not_tried() -> None:
    world = World("a", "b", "c")
    call = world.open(n=2)
    world["a"].die()
    world["b"].die()
    world["c"].die()
    assert failure(call) is ErrorCode.QUARANTINED
    tried = [len(world[name].submits) for name in "bc"]
    assert tried == [1, 1]
    call.cancel_nowait()
    await world.router.idle()


async def test_a_failed_step_is_tried_once_more_and_apart() -> None:
    world = World()
    call = world.open()
    world["a"].token(number(call), "x", 1)
    world["a"].fail(number(call), ErrorCode.STEP)
    assert last(world["a"]).resume == (1,)
    assert not call.ended
    world["a"].fail(number(call), ErrorCode.STEP, "again")
    assert failure(call) is ErrorCode.STEP
    assert world.replays() == {("step_failed", "step_failed"): 1}


async def test_a_failed_step_is_tried_elsewhere_first() -> None:
    world = World("a", "b")
    call, _ = world.open(), world.open()
    world["a"].fail(number(call), ErrorCode.STEP)
    assert last(world["b"]).request == "r"
    assert len(world["b"].submits) == 2
