"""Routing of lost sequences and new requests when workers have no room."""

from typing import Any

import anyio
import pytest

from gateway.routing.worker_handle import FULL_S
from protocol.errors import ErrorCode
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, failure, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_a_worker_without_room_is_not_flooded() -> None:
    world = World("a", "b", slots=64, max_streams_per_worker=64, max_waiting_streams=0)
    lost, kept = world.open(n=64), world.open(n=64)
    assert (lost.worker, kept.worker) == ("a", "b")
    world["a"].die()
    assert len(world["b"].submits) == 64
    world["b"].finish(number(kept))
    assert len(world["b"].submits) == 65, "one suspect has a free slot, and the others wait"


async def test_overloaded_on_one_is_tried_on_another() -> None:
    world = World("a", "b", "c")
    group = world.open()
    world["a"].die()
    assert group.worker == "b"
    world["b"].fail(number(group), ErrorCode.OVERLOADED)
    assert group.worker == "c"
    world["c"].fail(number(group), ErrorCode.OVERLOADED)
    assert group.waiting, "and then it waits"
    await anyio.sleep(FULL_S)
    assert not group.waiting


async def test_overloaded_is_asked_again_when_something_ends_there() -> None:
    world = World("a", "b")
    group, other = world.open(), world.open()
    world["a"].die()
    world["b"].fail(number(group), ErrorCode.OVERLOADED)
    assert group.waiting
    world["b"].finish(number(other))
    assert not group.waiting


async def test_a_new_request_is_refused_when_its_worker_is_overloaded() -> None:
    world = World()
    group = world.open()
    world["a"].fail(number(group), ErrorCode.OVERLOADED)
    assert failure(group) is ErrorCode.OVERLOADED


async def test_a_request_that_may_come_back_later_is_refused_and_its_worker_has_room() -> None:
    world = World("a", "b")
    group = world.open()
    assert group.worker == "a"
    world["a"].fail(number(group), ErrorCode.OVERLOADED, field="guided_json", retry_after_s=60)
    assert failure(group) is ErrorCode.OVERLOADED
    assert group.failure is not None
    assert (group.failure.field, group.failure.retry_after_s) == ("guided_json", 60)
    assert not world["b"].submits, "no other worker is asked"
    assert {world.open().worker for _ in range(2)} == {"a", "b"}, "it is not full"


async def test_a_new_request_that_one_worker_has_no_room_for_is_given_to_another() -> None:
    world = World("a", "b", "c")
    group = world.open()
    assert group.worker == "a"
    world["a"].fail(number(group), ErrorCode.OVERLOADED)
    assert group.worker == "b"
    world["c"].full = True
    world["b"].fail(number(group), ErrorCode.OVERLOADED)
    assert group.waiting, "the link to the last one may have room soon"
    await anyio.sleep(FULL_S)
    assert not group.waiting


async def test_a_new_request_is_given_to_another_worker_that_has_no_free_slot_but_room_in_its_queue() -> None:
    world = World("a", "b", slots=1)
    group, other = world.open(), world.open()
    assert (group.worker, other.worker) == ("a", "b")
    world["a"].fail(number(group), ErrorCode.OVERLOADED)
    assert group.worker == "b"


async def test_a_new_request_that_no_worker_has_room_for_is_refused() -> None:
    world = World("a", "b", "c")
    refused = world.open()
    for name in "abc":
        assert not refused.ended
        world[name].fail(number(refused), ErrorCode.OVERLOADED)
    assert failure(refused) is ErrorCode.OVERLOADED
    assert world.replays() == {}
    assert not any(refused.sequences[0] in handle.live.values() for handle in world.router.pool)


async def test_a_full_link_is_tried_again() -> None:
    world = World("a", "b")
    group = world.open()
    world["b"].full = True
    world["a"].die()
    assert group.waiting
    world["b"].full = False
    await anyio.sleep(FULL_S)
    assert group.worker == "b"
