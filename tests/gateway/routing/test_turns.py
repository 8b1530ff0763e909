"""Many waiting sequences are ended, or sent to a worker, in several turns of the event loop."""

from typing import Any

import anyio.lowlevel
import pytest

from actors.process.exit_cause import Origin
from actors.supervision.worker import WorkerState
from gateway.body_budget import HeldBody
from gateway.routing.placement import ENDED_AT_ONCE, SERVED_BYTES
from protocol.errors import ErrorCode
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, failure

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_sequences_without_hope_are_ended_in_portions() -> None:
    world = World(slots=600)
    groups = [world.open() for _ in range(2 * ENDED_AT_ONCE + 1)]
    world["a"].die()
    world["a"].change(state=WorkerState.GIVEN_UP)
    ended = []
    for _ in range(3):
        ended.append(sum(group.ended for group in groups))
        await anyio.lowlevel.checkpoint()
    assert ended == [ENDED_AT_ONCE, 2 * ENDED_AT_ONCE, 2 * ENDED_AT_ONCE + 1]
    assert {failure(group) for group in groups} == {ErrorCode.LOST}


async def test_large_bodies_are_sent_to_the_next_worker_in_portions() -> None:
    world = World("a", slots=100)
    request = world.decoder.completion(b'{"model": "tiny", "prompt": "hi", "stream": true, "max_tokens": 9}').request
    bodies = [HeldBody(world.router.bodies) for _ in range(5)]
    for number, body in enumerate(bodies):
        body.grow(SERVED_BYTES // 2)
        world.router.open(request, f"r{number}", body)
    world["a"].die(origin=Origin.OUTSIDE)
    sent = len(world["a"].submits)
    world["a"].come_back()
    counts = []
    for _ in range(2):
        counts.append(len(world["a"].submits) - sent)
        await anyio.lowlevel.checkpoint()
    assert counts == [3, 5]
    assert [submit.request for submit in world["a"].submits[sent:]] == [f"r{number}" for number in range(5)]
