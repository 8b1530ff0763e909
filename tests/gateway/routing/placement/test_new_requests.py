"""Requests that come while their model has no worker."""

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actors.process.exit_cause import Origin
from actors.supervision.worker import WorkerState
from gateway.errors import RequestError
from protocol.errors import ErrorCode
from tests.gateway.harness.fakes import DIGEST, FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, failure, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_they_wait_for_the_restart_behind_what_was_lost() -> None:
    world = World(slots=1)
    world.open("lost")
    world["a"].die()
    world["a"].status = replace(world["a"].status, hello=None, ready=None)
    group = world.open("new", n=2)
    assert group.waiting
    assert group.config_digest == ""
    world["a"].status = replace(world["a"].status, hello=FakeWorker("a").status.hello)
    world["a"].come_back()
    assert [submit.request for submit in world["a"].submits] == ["lost", "lost", "new", "new"]
    assert group.config_digest == DIGEST


async def test_they_overtake_nobody_though_a_worker_has_room_for_them() -> None:
    """A suspect waits for a free slot; a new request could be queued at the worker."""
    world = World("a", "b", slots=2)
    lost, kept = world.open("lost"), world.open("kept", n=2)
    assert (lost.worker, kept.worker) == ("a", "b")
    world["a"].die()
    new = world.open("new")
    assert lost.waiting
    assert world.router.waiting() == {"tiny": 2}
    assert not new.waiting, "a worker is there: the status of its response can wait"
    world["b"].finish(number(kept))
    assert [submit.request for submit in world["b"].submits] == ["kept", "kept", "lost", "new"]


async def test_they_are_bounded_at_the_edge() -> None:
    world = World(max_waiting_streams=3)
    world["a"].die()
    world.open(n=2)
    world.open()
    with pytest.raises(RequestError) as caught:
        world.open()
    assert (caught.value.status, caught.value.code) == (429, "overloaded")


@pytest.mark.parametrize("how", ["no wait", "given up"])
async def test_they_are_refused_where_none_is_waited_for(how: str) -> None:
    world = World(worker_wait_s=0 if how == "no wait" else 60)
    world["a"].die()
    if how == "given up":
        world["a"].change(state=WorkerState.GIVEN_UP)
    with pytest.raises(RequestError) as caught:
        world.open()
    assert (caught.value.status, caught.value.code) == (503, "unavailable")


async def test_their_wait_ends_typed() -> None:
    world = World(worker_wait_s=5)
    world["a"].die()
    group = world.open()
    await anyio.sleep(5.1)
    assert failure(group) is ErrorCode.UNAVAILABLE
    assert world.replays() == {}


async def test_the_end_of_the_gateway_ends_those_that_wait() -> None:
    world = World()
    lost = world.open()
    world["a"].die()
    new = world.open()
    world.router.ends.fail_all("bye")
    assert (failure(lost), failure(new)) == (ErrorCode.DRAINING, ErrorCode.DRAINING)
    await world.router.idle()


async def test_a_short_wait_is_a_wait() -> None:
    world = World(worker_wait_s=0.5)
    world["a"].die()
    group = world.open()
    assert group.waiting
    await anyio.sleep(0.6)
    assert failure(group) is ErrorCode.UNAVAILABLE


async def test_those_that_wait_fail_at_once_when_the_last_worker_is_given_up() -> None:
    world = World("a", "b")
    lost = world.open()
    for worker in world.workers.values():
        worker.die(origin=Origin.OUTSIDE)
    new = world.open()
    world["a"].change(state=WorkerState.GIVEN_UP, reason="no device")
    assert lost.waiting
    assert new.waiting
    world["b"].change(state=WorkerState.STOPPED, reason="stopped")
    assert (failure(lost), failure(new)) == (ErrorCode.LOST, ErrorCode.UNAVAILABLE)
    await world.router.idle()
    assert world.replays() == {("killed", "lost_again"): 1, ("killed", "worker_lost"): 1}
