"""Many sequences are ended, moved, or sent to a worker, in several turns of the event loop."""

from typing import Any

import anyio.lowlevel
import pytest

from actors.process.exit_cause import Origin
from actors.supervision.worker import WorkerState
from gateway.body_budget import HeldBody
from gateway.routing.placement.lost_sequences import MOVED_AT_ONCE
from gateway.routing.placement.placement import SENT_AT_ONCE
from gateway.routing.placement.wait_ends import ENDED_AT_ONCE
from gateway.routing.request_group import RequestGroup
from protocol.errors import ErrorCode
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, failure, number

pytestmark = pytest.mark.anyio

MANY = 600
"""Slots: more than what moves in one turn."""


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_sequences_without_hope_are_ended_in_portions() -> None:
    world = World(slots=MANY)
    groups = [world.open() for _ in range(2 * ENDED_AT_ONCE + 1)]
    world["a"].die()
    world["a"].change(state=WorkerState.GIVEN_UP)
    ended = []
    for _ in range(3):
        ended.append(sum(group.ended for group in groups))
        await anyio.lowlevel.checkpoint()
    assert ended == [ENDED_AT_ONCE, 2 * ENDED_AT_ONCE, 2 * ENDED_AT_ONCE + 1]
    assert {failure(group) for group in groups} == {ErrorCode.LOST}


@pytest.mark.parametrize(
    ("size", "portions"),
    [(1 << 23, [3, 5]), (1 << 24, [2, 4, 5]), ((1 << 24) + 1, [1, 2, 3, 4, 5])],
    ids=["8 MiB", "16 MiB", "more"],
)
async def test_large_bodies_are_sent_to_the_next_worker_in_portions(size: int, portions: list[int]) -> None:
    """A portion ends with the body that exceeds 16 MiB."""
    world = World("a", slots=100)
    request = world.decoder.completion(b'{"model": "tiny", "prompt": "hi", "stream": true, "max_tokens": 9}').request
    for index in range(5):
        body = HeldBody(world.router.bodies)
        body.grow(size)
        world.router.admission.open(request, f"r{index}", body)
    world["a"].die(origin=Origin.OUTSIDE)
    sent = len(world["a"].submits)
    world["a"].come_back()
    counts = []
    for _ in portions:
        counts.append(len(world["a"].submits) - sent)
        await anyio.lowlevel.checkpoint()
    assert counts == portions
    assert [submit.request for submit in world["a"].submits[sent:]] == [f"r{index}" for index in range(5)]


def opened(world: World, count: int) -> list[RequestGroup]:
    return [world.open(f"r{index}") for index in range(count)]


def ended(groups: list[RequestGroup]) -> int:
    return sum(group.ended for group in groups)


def placed(groups: list[RequestGroup], worker: str) -> int:
    return sum(group.sequences[0].worker == worker for group in groups if group.sequences)


async def turns(count: int = 2) -> None:
    """By default one in which sequences move, and one in which they are sent."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_shutdown_ends_sequences_in_portions(beyond: int) -> None:
    world = World()
    groups = opened(world, ENDED_AT_ONCE + beyond)
    world.router.ends.fail_all("bye")
    assert ended(groups) == ENDED_AT_ONCE
    await anyio.lowlevel.checkpoint()
    assert ended(groups) == ENDED_AT_ONCE + beyond
    assert {failure(group) for group in groups} == {ErrorCode.DRAINING}
    await world.router.idle()


async def test_a_shutdown_sends_nothing_that_waits_to_workers() -> None:
    world = World("a", max_waiting_streams=1000)
    groups = opened(world, 2)
    world["a"].die(origin=Origin.OUTSIDE)
    world["a"].come_back()
    world["a"].full = True
    world["a"].die(origin=Origin.OUTSIDE)
    sent = len(world["a"].submits)
    world["a"].full = False
    world.router.ends.fail_all("bye")
    assert (ended(groups), len(world["a"].submits)) == (2, sent)


@pytest.mark.parametrize("beyond", [0, 1])
async def test_sequences_of_a_lost_worker_move_in_the_same_turn_up_to_a_bound(beyond: int) -> None:
    world = World("a", slots=MANY)
    groups = opened(world, MOVED_AT_ONCE + beyond)
    world.workers["b"] = FakeWorker("b", slots=MANY).join(world.router)
    world["a"].die(origin=Origin.OUTSIDE)
    assert placed(groups, "b") == MOVED_AT_ONCE
    await turns()
    assert placed(groups, "b") == len(groups)
    assert [submit.request for submit in world["b"].submits] == [f"r{index}" for index in range(len(groups))]


async def test_a_sequence_that_is_still_to_move_is_cancelled_after_its_worker_was_removed() -> None:
    world = World("a", slots=MANY)
    groups = opened(world, MOVED_AT_ONCE + 1)
    world["a"].die(origin=Origin.OUTSIDE)
    world["a"].change(running=False, state=WorkerState.STOPPED)
    world.router.remove("a")
    assert groups[-1].sequences[0].worker == "a"
    for group in groups:
        group.close()
    assert world.router.is_idle


async def test_the_bound_is_that_of_a_turn_whatever_was_lost_in_it() -> None:
    world = World("a", "b", slots=MANY)
    groups = opened(world, 2 * 200)
    world["a"].die(origin=Origin.OUTSIDE)
    assert placed(groups, "b") == 400
    world["b"].die(origin=Origin.OUTSIDE)
    assert world.router.waiting() == {"tiny": MOVED_AT_ONCE - 200}
    await turns()
    assert world.router.waiting() == {"tiny": len(groups)}


async def test_a_worker_that_leaves_gives_its_sequences_away_in_portions() -> None:
    world = World("a", slots=MANY)
    groups = opened(world, MOVED_AT_ONCE + 3)
    world.workers["b"] = FakeWorker("b", slots=MANY).join(world.router)
    for group in groups:
        world["a"].fail(number(group), ErrorCode.DRAINING)
    assert placed(groups, "b") == MOVED_AT_ONCE
    await turns()
    assert placed(groups, "b") == len(groups)


@pytest.mark.parametrize("how", ["cancelled", "failed", "too late"])
async def test_a_sequence_that_ends_while_others_move_is_not_moved(how: str) -> None:
    world = World("a", slots=MANY, request_timeout_s=60)
    groups = opened(world, MOVED_AT_ONCE + 2)
    lost, last = groups[-2:]
    world.workers["b"] = FakeWorker("b", slots=MANY).join(world.router)
    world["a"].die(origin=Origin.OUTSIDE)
    if how == "cancelled":
        lost.close()
    elif how == "failed":
        world.router.ends.fail_all("bye")
        assert (failure(lost), failure(last)) == (ErrorCode.DRAINING, ErrorCode.DRAINING)
    else:
        world.router.ends.expire(lost, 60.0)
        assert failure(lost) is ErrorCode.DEADLINE
    await turns()
    sent = [submit.request for submit in world["b"].submits]
    assert lost.request_id not in sent
    assert (last.request_id in sent) == (how != "failed")
    for group in groups:
        group.close()
    await world.router.idle()


async def test_it_is_not_idle_while_sequences_move() -> None:
    world = World("a", slots=MANY, worker_wait_s=10)
    groups = opened(world, MOVED_AT_ONCE + 1)
    world["a"].die(origin=Origin.OUTSIDE)
    for group in groups[:-1]:
        group.close()
    assert not world.router.is_idle
    assert world.router._placement.live() == [groups[-1].sequences[0]]
    groups[-1].close()
    await world.router.idle()


async def test_many_waiting_sequences_are_sent_to_the_next_worker_in_portions() -> None:
    world = World("a", slots=MANY, max_waiting_streams=1000)
    world["a"].change(state=WorkerState.LOADING)
    groups = opened(world, SENT_AT_ONCE + 1)
    world["a"].change(state=WorkerState.READY)
    assert placed(groups, "a") == SENT_AT_ONCE
    await anyio.lowlevel.checkpoint()
    assert placed(groups, "a") == SENT_AT_ONCE + 1


@pytest.mark.parametrize("beyond", [0, 1])
async def test_sequences_that_have_waited_too_long_are_ended_in_portions(beyond: int) -> None:
    """All that wait when the last worker is lost wait from then on, and equally long."""
    world = World("a", max_waiting_streams=1000, worker_wait_s=10)
    running = opened(world, 6)
    groups = opened(world, ENDED_AT_ONCE + beyond)
    world["a"].die(origin=Origin.OUTSIDE)
    for group in running:
        group.close()
    before = world.router._loop.time()
    await anyio.sleep(10)
    counts = [ended(groups)]
    while counts[-1] < len(groups):
        await anyio.lowlevel.checkpoint()
        counts.append(ended(groups))
    assert counts == [ENDED_AT_ONCE, ENDED_AT_ONCE + 1][: 1 + beyond]
    assert world.router._loop.time() == before + 10
    assert {failure(group) for group in groups} == {ErrorCode.UNAVAILABLE}


async def test_a_sequence_that_is_sent_while_others_are_ended_is_not_ended() -> None:
    world = World("a", max_waiting_streams=1000, worker_wait_s=10)
    running = opened(world, 6)
    groups = opened(world, ENDED_AT_ONCE + 2)
    world["a"].die(origin=Origin.OUTSIDE)
    for group in running:
        group.close()
    await anyio.sleep(10)
    left = [group for group in groups if not group.ended]
    world["a"].come_back()
    await turns(3)
    assert (len(left), placed(left, "a")) == (2, 2)
    assert ended(groups) == ENDED_AT_ONCE
