"""The handling of a request looks at few workers, however many there are."""

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.routing.placement.prefill_choice import LONG_S
from gateway.routing.prefixes.prefix_routing import PREFILL_RATE
from gateway.routing.worker_handle import Role
from protocol.scheduling import PriorityClass
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World

pytestmark = pytest.mark.anyio

CLASSES: dict[str, PriorityClass] = {"hasty": "high", "patient": "low"}
FEW, MANY = 80, 400
SLOTS = 2
HELD = 3
"""Sequences that a worker with so many slots has."""
LONG = "a long " * int(LONG_S * PREFILL_RATE)


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def world(workers: int) -> World:
    made = World(*(f"w{index}" for index in range(workers)), slots=SLOTS)
    made.router.admission._class_of = lambda client: CLASSES.get(client, "normal")
    return made


def fill(one: World, client: str) -> None:
    for _ in range(HELD * len(one.workers)):
        one.open(client=client)


def calls(function: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(function)
    counted: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return counted


def whole_answer(one: World) -> Callable[[], object]:
    """Its context is checked, and how many sequences it has."""
    one.open()
    return lambda: one.open(stream=False, n=2)


def beside_standby(one: World) -> Callable[[], object]:
    FakeWorker("standby", slots=SLOTS).join(one.router, Role.STANDBY)
    one.open()
    return one.open


def query(one: World) -> Callable[[], object]:
    return lambda: one.router._queries._candidate("tiny", set())


def preempts(one: World) -> Callable[[], object]:
    one.open(client="hasty")
    fill(one, "patient")
    return lambda: one.open(client="hasty")


def preempts_nobody(one: World) -> Callable[[], object]:
    one.open(client="patient").cancel_nowait()
    fill(one, "hasty")
    return lambda: one.open(client="hasty")


def ends_while_urgent_ones_wait(one: World) -> Callable[[], object]:
    preempts_nobody(one)
    first = one.router.sequences()[0]
    for _ in range(10):
        one.open(client="hasty")
    return lambda: one[first.worker].finish(first.submit.stream)


def with_prefill_workers(one: World, prefill: int) -> None:
    """Make some of the workers prefill workers, and let each of the others have a sequence."""
    for number, worker in enumerate(one.workers.values()):
        hello, ready = worker.status.hello, worker.status.ready
        assert hello is not None
        assert ready is not None
        worker.change(
            hello=replace(hello, phases="prefill" if number < prefill else "decode"),
            ready=replace(ready, rows_format="rows", row_bytes=1),
        )
    for _ in range(len(one.workers) - prefill):
        one.open()


def long_prompt(one: World) -> Callable[[], object]:
    with_prefill_workers(one, len(one.workers) // 2)
    assert one.router.pool[one.open(prompt=LONG).worker].prefills
    return lambda: one.open(prompt=LONG)


def stream_that_no_worker_has_a_slot_for(one: World) -> Callable[[], object]:
    with_prefill_workers(one, 2)
    stream = one.open(prompt=LONG).sequences[0]
    for _ in one.workers:
        one.open()
    source = one.router.pool[stream.worker]
    assert source.prefills
    return lambda: one.router._transfers._target(source, stream)


@pytest.mark.parametrize(
    "case",
    [
        whole_answer,
        beside_standby,
        query,
        preempts,
        preempts_nobody,
        ends_while_urgent_ones_wait,
        long_prompt,
        stream_that_no_worker_has_a_slot_for,
    ],
)
async def test_the_cost_does_not_grow_with_the_workers(case: Callable[[World], Callable[[], object]]) -> None:
    few, many = (calls(case(world(workers))) for workers in (FEW, MANY))
    assert many < 1.1 * few + 20
