"""Workers that somebody else ends: no evidence against a request, but nothing is tried without end."""

from typing import Any

import pytest

from actors.process.exit_cause import Origin
from gateway.routing.failure_attribution import MAX_TRIES
from protocol.errors import ErrorCode
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, clear, failure, last, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def kill(worker: FakeWorker) -> None:
    worker.die(origin=Origin.OUTSIDE)
    worker.come_back()


async def test_all_go_on_at_once_and_together() -> None:
    world = World(slots=8)
    groups = [world.open() for _ in range(8)]
    kill(world["a"])
    assert len(world["a"].submits) == 16
    assert not any(group.waiting for group in groups)
    for group in groups:
        world["a"].finish(number(group))
    assert world.replays() == {("killed", "resumed"): 8}
    assert world["a"].exempted == [], "the worker did die"


async def test_one_is_not_tried_more_often_than_the_bound_and_the_last_time_apart() -> None:
    world = World()
    first, second = world.open("first"), world.open("second")
    for _ in range(MAX_TRIES - 1):
        kill(world["a"])
    assert (first.waiting, second.waiting) == (False, True)
    kill(world["a"])
    assert failure(first) is ErrorCode.QUARANTINED
    assert not second.waiting
    world["a"].finish(number(second))
    assert second.failure is None
    assert world["a"].exempted == [1, 2, 3, 4], "they were attributed to the first one"


async def test_one_that_progresses_between_the_deaths_is_never_a_suspect() -> None:
    world = World()
    group = world.open()
    for _ in range(3 * MAX_TRIES):
        kill(world["a"])
        clear(world["a"], last(world["a"]))
    assert not group.ended
    assert world["a"].exempted == []


async def test_one_that_kills_is_found_among_kills_from_outside() -> None:
    world = World("a", "b", "c")
    group = world.open()
    world["a"].die()
    kill(world["b"])
    world["c"].die()
    assert failure(group) is ErrorCode.QUARANTINED
    assert [world[name].exempted for name in "abc"] == [[1], [], [1]], "the one from outside counts"


async def test_a_client_that_leaves_takes_no_death_from_outside_with_it() -> None:
    world = World()
    group = world.open()
    kill(world["a"])
    group.cancel_nowait()
    assert world["a"].exempted == []
