"""The handle of one worker: what its status and its live sequences make of it."""

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actors.supervision.worker import WorkerState
from gateway.routing.worker_handle import CANCEL_RETRY_S, FULL_S, STALLS, Role, WorkerHandle
from protocol.events import SILENT_S, Gauges
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def handle(world: World, name: str = "a") -> WorkerHandle:
    return world.router.pool[name]


async def test_a_sample_shows_free_slots_of_an_active_worker_that_is_ready() -> None:
    world = World(slots=4)
    gauges = Gauges(steps=8, slots_active=3, queue_depth=5, kv_tokens=70, retained_tokens=9)
    world["a"].change(gauges=gauges, restarts=2)
    world.open()
    sample = handle(world).sample()
    assert sample.counts("steps") == 8
    assert (sample.slots_available, sample.queue_depth, sample.kv_tokens, sample.retained_tokens) == (1, 5, 70, 9)
    assert (sample.live, sample.ready, sample.restarts, sample.standby, sample.circuit_open) == (
        1,
        True,
        2,
        False,
        False,
    )
    world["a"].change(gauges=Gauges(slots_active=5))
    assert handle(world).sample().slots_available == 0, "it may report more than it has while it changes"
    world["a"].change(gauges=Gauges(slots_active=1), state=WorkerState.DRAINING)
    assert (handle(world).sample().slots_available, handle(world).sample().ready) == (0, False)
    world["a"].change(state=WorkerState.READY)
    handle(world).role = Role.STANDBY
    assert (handle(world).sample().slots_available, handle(world).sample().standby) == (0, True)


async def test_a_sample_counts_what_was_reported_since_the_last_change_of_its_status() -> None:
    world = World()
    world["a"].status = replace(world["a"].status, gauges=Gauges(steps=8))
    assert handle(world).sample().counts("steps") == 8


async def test_a_failed_step_is_known_by_its_incarnation_and_its_number() -> None:
    world = World()
    assert handle(world).failed_step == (1, 0)
    world["a"].change(gauges=Gauges(steps_failed=2))
    assert handle(world).failed_step == (1, 2)
    world["a"].die()
    world["a"].come_back()
    assert handle(world).failed_step == (2, 0)


async def test_it_is_full_from_a_refusal_until_its_time_or_until_something_ends() -> None:
    world = World()
    group = world.open()
    full = handle(world)
    assert not full.full(0.0)
    full.refused(10.0)
    assert (full.full(10.0), full.full(10.0 + FULL_S)) == (True, False)
    full.remove(group.sequences[0])
    assert not full.full(10.0)


async def test_it_is_silent_after_its_missed_heartbeats() -> None:
    world = World("a", "b")
    now = anyio.current_time()
    world["a"].change(last_frame=now - SILENT_S)
    world["b"].change(last_frame=now - SILENT_S + 0.5)
    assert [handle(world, name).silent(now) for name in "ab"] == [True, False]
    assert [handle(world, name).usefulness(now) for name in "ab"] == [1, 2]
    assert world.open().worker == "b"


async def test_it_stalls_when_it_has_work_and_a_quarter_of_the_time_of_a_hang_has_passed() -> None:
    world = World()
    now = anyio.current_time()
    world["a"].change(hang_s=8.0, last_progress=now - 8.0 / STALLS)
    assert not handle(world).stalled(now), "it has nothing to do"
    world.open()
    assert handle(world).stalled(now), "at the edge, too"
    assert not handle(world).stalled(now - 0.1)
    world["a"].change(hang_s=0.0)
    assert not handle(world).stalled(now), "the time of a hang is not known yet"


async def test_it_progresses_while_its_last_progress_is_recent() -> None:
    world = World()
    now = anyio.current_time()
    world["a"].change(last_progress=now - 10.0)
    assert [handle(world).progressing(now, timeout_s) for timeout_s in (10.0, 10.1)] == [False, True]
    world["a"].change(state=WorkerState.BACKOFF)
    assert not handle(world).progressing(now, 10.1)


async def test_a_worker_without_a_suspect_is_preferred() -> None:
    world = World("a", "b", "c")
    suspect = world.open()
    world["a"].die()
    assert suspect.worker == "b", "which now tries it"
    world["a"].come_back()
    assert [world.open().worker for _ in range(4)] == ["c", "a", "c", "a"]
    assert [handle(world, name).tries_suspect for name in "abc"] == [False, True, False]


async def test_a_cancel_that_a_full_link_refused_is_not_sent_to_the_next_incarnation() -> None:
    world = World()
    group = world.open()
    world["a"].full = True
    group.cancel_nowait()
    world["a"].die()
    world["a"].full = False
    world["a"].come_back()
    await anyio.sleep(2 * CANCEL_RETRY_S)
    assert world["a"].cancels == []
