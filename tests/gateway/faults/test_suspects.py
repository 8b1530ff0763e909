"""The rule of `gateway.routing.failure_attribution`, at work in the real router."""

from typing import Any

import anyio
import pytest

from gateway.errors import RequestError
from gateway.routing.failure_attribution import CLEARED_AFTER, MAX_EXEMPT, suspect
from gateway.routing.quarantine import REFUSED_AFTER, REMEMBERED_S
from gateway.routing.request_group import RequestGroup
from protocol.errors import ErrorCode
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, clear, failure, last, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def step(worker: FakeWorker, groups: list[RequestGroup]) -> None:
    """Two tokens for each that runs, up to the twenty that end it."""
    for group in groups:
        if not group.ended and group.sequences[0].worker:
            worker.token(number(group), "y", 2)
            if len(group.sequences[0].tokens) == 20:
                worker.finish(number(group))


async def test_the_same_request_is_not_tried_a_third_time() -> None:
    world = World("a", "b", "c")
    group = world.open()
    world["a"].die()
    world["b"].die()
    assert failure(group) is ErrorCode.QUARANTINED
    assert world["c"].submits == []
    assert world.replays() == {("died", "lost_again"): 1, ("died", "quarantined"): 1}


async def test_the_neighbours_of_a_poison_request_survive() -> None:
    """Any worker that runs it dies; no other request may be harmed."""
    world = World(slots=8)
    groups = [world.open(str(index)) for index in range(8)]
    poison, worker = groups[3], world["a"]
    for group in groups:
        worker.token(number(group), "x", 1)
    deaths = 0
    while any(not group.ended for group in groups):
        if not poison.ended and poison.sequences[0].worker:
            deaths += 1
            worker.die()
            worker.come_back()
        else:
            step(worker, groups)
    assert deaths == 2
    assert failure(poison) is ErrorCode.QUARANTINED
    assert [group for group in groups if group.failure is not None] == [poison]


async def test_the_deaths_by_a_poison_request_are_exempted_wherever_they_were() -> None:
    world = World("a", "b")
    world.open()
    world["a"].die()
    world["a"].come_back()
    assert (world["a"].exempted, world["b"].exempted) == ([], [])
    world["b"].die()
    assert (world["a"].exempted, world["b"].exempted) == ([1], [1])


async def test_a_death_that_is_attributed_to_no_request_counts() -> None:
    world = World()
    group = world.open()
    world["a"].die()
    world["a"].come_back()
    clear(world["a"], last(world["a"]))
    world["a"].die()
    assert not group.ended
    assert world["a"].exempted == []


async def test_a_suspect_whose_client_leaves_takes_the_death_with_it() -> None:
    """Or a client that always leaves in time would use up the restarts."""
    world = World()
    for incarnation in (1, 2):
        group = world.open()
        world["a"].die()
        group.cancel_nowait()
        world["a"].come_back()
        assert world["a"].exempted == list(range(1, incarnation + 1))


async def test_a_worker_that_does_nothing_but_die_is_not_exempted_for_ever() -> None:
    world = World()
    for index in range(MAX_EXEMPT):
        world.open(prompt=f"{index}")
        for _ in range(2):
            world["a"].die()
            world["a"].come_back()
    assert world["a"].exempted == list(range(1, MAX_EXEMPT + 1))
    world["a"].finish(number(world.open(prompt="good")))
    bad = world.open(prompt="bad")
    world["a"].die()
    world["a"].come_back()
    world["a"].die()
    assert failure(bad) is ErrorCode.QUARANTINED
    assert len(world["a"].exempted) == MAX_EXEMPT + 2


async def test_a_request_that_was_quarantined_twice_is_refused_at_once_for_a_while() -> None:
    world = World()
    for _ in range(REFUSED_AFTER):
        group = world.open()
        for _ in range(2):
            world["a"].die()
            world["a"].come_back()
        assert failure(group) is ErrorCode.QUARANTINED
    with pytest.raises(RequestError, match="not tried again") as refused:
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


async def test_the_next_suspect_runs_when_one_ends() -> None:
    world = World()
    first, second = world.open("first"), world.open("second")
    world["a"].die()
    world["a"].come_back()
    world["a"].finish(number(first))
    assert last(world["a"]).request == "second"
    assert not second.ended


async def test_a_suspect_that_was_cleared_starts_anew() -> None:
    world = World()
    group = world.open()
    for _ in range(5):
        world["a"].die()
        world["a"].come_back()
        clear(world["a"], last(world["a"]))
    assert not group.ended


async def test_what_only_waited_for_a_slot_is_no_suspect() -> None:
    world = World(slots=1)
    runs, next_one, queued = world.open("runs"), world.open("next"), world.open("queued")
    world["a"].die()
    suspects = [suspect(group.sequences[0]) for group in (runs, next_one, queued)]
    assert suspects == [True, True, False], "the next one may have got the slot, and no frame reported it"


async def test_a_prompt_that_kills_is_found_behind_a_long_queue() -> None:
    """The worker dies as soon as it looks at it; eight others run or wait before it, and come to no harm."""
    world = World(slots=1)
    groups, worker = [world.open(str(index)) for index in range(8)], world["a"]
    worker.reach()
    poison = world.open("poison")
    deaths = 0
    while any(not group.ended for group in (*groups, poison)):
        if not poison.ended and poison.sequences[0].worker:
            deaths += 1
            worker.die(number(poison) - 1)
            worker.come_back()
            continue
        worker.reach()
        step(worker, groups)
    assert deaths == 2
    assert failure(poison) is ErrorCode.QUARANTINED
    assert [group for group in groups if group.failure is not None] == []


async def test_a_suspect_is_not_given_to_a_worker_whose_slots_are_taken() -> None:
    world = World("a", "b", slots=1)
    group, other = world.open("suspect"), world.open("other")
    world["a"].die()
    assert group.waiting
    world["b"].finish(number(other))
    assert last(world["b"]).request == "suspect"


async def test_no_request_waits_for_a_suspect_before_its_turn_and_its_slot_is_kept() -> None:
    world = World(slots=3)
    first, second = world.open("first"), world.open("second")
    world["a"].die()
    world["a"].come_back()
    new, newer = world.open("new"), world.open("newer")
    assert [submit.request for submit in world["a"].submits[2:]] == ["first", "new"]
    assert (second.waiting, new.waiting, newer.waiting) == (True, False, False)
    assert world.router.waiting() == {"tiny": 2}
    clear(world["a"], world["a"].submits[2])
    assert [submit.request for submit in world["a"].submits[4:]] == ["second", "newer"]
    assert not first.ended


async def test_a_new_request_keeps_away_from_suspects_as_long_as_there_is_a_free_slot() -> None:
    world = World("a", "b", slots=4)
    world.open("other")
    group = world.open("suspect")
    world["b"].die()
    world["b"].come_back()
    assert group.worker == "a"
    assert [world.open("new").worker for _ in range(5)] == ["b", "b", "b", "b", "a"]


async def test_the_choices_of_a_quarantined_request_are_not_tried() -> None:
    world = World("a", "b", "c")
    group = world.open(n=2)
    world["a"].die()
    world["b"].die()
    world["c"].die()
    assert failure(group) is ErrorCode.QUARANTINED
    tried = [len(world[name].submits) for name in "bc"]
    assert tried == [1, 1]
    group.cancel_nowait()
    await world.router.idle()


async def test_a_failed_step_is_tried_once_more_and_apart() -> None:
    world = World()
    group = world.open()
    world["a"].token(number(group), "x", 1)
    world["a"].fail(number(group), ErrorCode.STEP)
    assert last(world["a"]).resume == (1,)
    assert not group.ended
    world["a"].fail(number(group), ErrorCode.STEP, "again")
    assert failure(group) is ErrorCode.STEP
    assert world.replays() == {("step_failed", "step_failed"): 1}


async def test_a_failed_step_is_tried_elsewhere_first() -> None:
    world = World("a", "b")
    group, _ = world.open(), world.open()
    world["a"].fail(number(group), ErrorCode.STEP)
    assert last(world["b"]).request == "r"
    assert len(world["b"].submits) == 2
