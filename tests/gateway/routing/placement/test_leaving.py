"""Workers that leave, fail or fall silent, and what they had and would have got."""

import asyncio
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actors.process.exit_cause import Origin
from actors.supervision.worker import IncarnationLost, WorkerState
from gateway.routing.failure_attribution import suspect
from gateway.routing.worker_handle import Role
from protocol.errors import ErrorCode
from protocol.events import SILENT_S
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, failure, last, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_a_worker_that_leaves_makes_no_suspects_and_gets_nothing_more() -> None:
    world = World("a", "b")
    first, second = world.open(n=2), world.open()
    world["a"].fail(number(first, 0), ErrorCode.DRAINING)
    world["a"].fail(number(first, 1), ErrorCode.DRAINING)
    assert [len(world[name].submits) for name in "ab"] == [2, 3]
    assert not any(suspect(stream) for stream in (*first.sequences, *second.sequences))
    assert {world.open().worker for _ in range(2)} == {"b"}


async def test_a_worker_that_fails_with_last_words_makes_suspects_of_all_that_ran() -> None:
    """An error for each is no reason to hand them on one by one: its loss is judged as a whole."""
    world = World("a", "b")
    first, second = world.open(n=2), world.open()
    for index in range(2):
        world["a"].fail(number(first, index), ErrorCode.LOST, "a bug")
    assert len(world["b"].submits) == 1
    assert {world.open().worker for _ in range(2)} == {"b"}, "it gets nothing more meanwhile"
    world["a"].die()
    assert [suspect(stream) for stream in (*first.sequences, *second.sequences)] == [True, True, False]
    assert world.replays() == {}, "one has gone on, one waits for its turn"


async def test_the_same_request_is_not_tried_a_third_time_whatever_the_workers_said() -> None:
    world = World("a", "b", "c")
    group = world.open()
    for name in "ab":
        world[name].fail(number(group), ErrorCode.LOST, "a bug")
        world[name].die()
    assert failure(group) is ErrorCode.QUARANTINED
    assert world["c"].submits == []


async def test_a_worker_that_was_stopped_makes_no_suspects() -> None:
    world = World("a", "b")
    group = world.open()
    world["a"].status = replace(world["a"].status, state=WorkerState.STOPPED)
    world.router.handle(IncarnationLost("a", 1, "stopped", Origin.OUTSIDE, asked=True))
    assert last(world["b"]).request == "r"
    assert not suspect(group.sequences[0])


async def test_streams_are_moved_off_a_worker_that_lives() -> None:
    world = World("a", "b")
    group = world.open()
    world["a"].token(number(group), "x", 5)
    old = number(group)
    world.router.migrate("a")
    assert world["a"].cancels == [old]
    assert last(world["b"]).resume == (5,)
    world["a"].token(old, "late", 6)
    world["a"].say_cancelled(old)
    assert group.sequences[0].tokens == [5]
    assert world.open().worker == "b", "it gets nothing new"
    world["b"].finish(number(group))
    assert world.replays() == {("moved", "resumed"): 1}
    world["a"].come_back()
    assert world.open().worker == "a"


async def test_moved_streams_wait_where_there_is_nobody_else() -> None:
    world = World()
    group = world.open()
    world.router.migrate("a")
    assert group.waiting
    world["a"].come_back()
    assert not group.waiting


async def test_requests_go_to_the_one_that_beats() -> None:
    world, now = World("a", "b"), asyncio.get_running_loop().time()
    world["a"].change(last_frame=now)
    world["b"].change(last_frame=now + 1)
    await anyio.sleep(SILENT_S - 0.01)
    assert world.open().worker == "a"
    world.open().cancel_nowait()
    await anyio.sleep(0.01)
    assert [world.open().worker for _ in range(3)] == ["b", "b", "b"]
    await anyio.sleep(1)
    assert world.open().worker == "a", "where all are silent, the load decides"
    world["b"].change(last_frame=now + SILENT_S + 1)
    assert world.open().worker == "b"


async def test_a_worker_that_sent_what_it_was_not_asked_for_gets_requests_after_all_others_for_five_minutes() -> None:
    world = World("a", "b")
    world["a"].die(origin=Origin.MISBEHAVED)
    world["a"].come_back()
    assert [world.open().worker for _ in range(3)] == ["b", "b", "b"]
    await anyio.sleep(299.9)
    assert world.open().worker == "b"
    await anyio.sleep(0.1)
    assert world.open().worker == "a"


async def test_requests_go_to_the_one_that_gets_on() -> None:
    """It sends heartbeats, but finishes no step: perhaps it hangs, and no request is to wait there to find that out."""
    world, now = World("a", "b"), asyncio.get_running_loop().time()
    for name in "ab":
        world[name].change(hang_s=8.0, last_progress=now)
    world.open()
    await anyio.sleep(1.9)
    world.open().cancel_nowait()
    assert [len(world[name].submits) for name in "ab"] == [1, 1]
    await anyio.sleep(0.2)
    assert world.open().worker == "b", "it had nothing to do"
    world["b"].change(last_progress=now + 2)
    assert [world.open().worker for _ in range(2)] == ["b", "b"]
    world["a"].change(last_progress=now + 2)
    assert world.open().worker == "a"


async def test_a_standby_takes_the_place_of_one_that_does_not_get_on() -> None:
    world, now = World(), asyncio.get_running_loop().time()
    FakeWorker("s").join(world.router, Role.STANDBY)
    world["a"].change(hang_s=8.0, last_progress=now)
    group = world.open()
    await anyio.sleep(2.1)
    assert (group.worker, world.open().worker) == ("a", "s")
    world["a"].finish(number(group))
    assert group.ended


async def test_a_standby_that_may_hang_is_better_than_nobody() -> None:
    """It was active, and has work of that time with which it does not get on."""
    world, now = World(), asyncio.get_running_loop().time()
    standby = FakeWorker("s").join(world.router, Role.STANDBY)
    world["a"].change(hang_s=8.0, last_progress=now)
    standby.change(last_progress=now + 100)
    world.open()
    await anyio.sleep(2.1)
    assert world.open().worker == "s"
    standby.change(state=WorkerState.BACKOFF)
    assert world.open().worker == "a", "which stands by, and finishes no step"


async def test_a_standby_that_beats_takes_the_place_of_one_that_does_not() -> None:
    world, now = World(), asyncio.get_running_loop().time()
    standby = FakeWorker("s").join(world.router, Role.STANDBY)
    world["a"].change(last_frame=now)
    standby.change(last_frame=now)
    await anyio.sleep(SILENT_S)
    assert world.open().worker == "a", "the standby is as silent"
    standby.change(last_frame=now + SILENT_S)
    assert world.open().worker == "s"
