"""Time limits of a request, for its first turn and in all: those of the settings, or of its headers."""

from typing import Any

import anyio
import httpx
import pytest

from actors.process.exit_cause import Origin
from gateway.errors import RequestError
from gateway.routing.admission.time_limits import RequestTimeLimits
from gateway.routing.worker_handle import FULL_S
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from protocol.events import Usage
from tests.gateway.harness.serving import COMPLETION, serving
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, failure, last, number

pytestmark = pytest.mark.anyio

SETTINGS = GatewaySettings(request_timeout_s=100.0, max_queue_s=20.0)


def limits(headers: dict[str, str], settings: GatewaySettings = SETTINGS) -> RequestTimeLimits:
    return RequestTimeLimits.of(lambda name: headers.get(name.decode(), ""), settings)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, RequestTimeLimits(100.0, 20.0)),
        ({"x-max-queue-s": "0.5", "x-request-timeout-s": "7"}, RequestTimeLimits(7.0, 0.5)),
        ({"x-max-queue-s": "20.1", "x-request-timeout-s": "100.1"}, RequestTimeLimits(100.0, 20.0)),
        ({"x-request-timeout-s": "20"}, RequestTimeLimits(20.0, 0.0)),
        ({"x-max-queue-s": "0.001"}, RequestTimeLimits(100.0, 0.001)),
    ],
    ids=["settings", "headers", "longer", "total", "least"],
)
async def test_headers_make_the_limits_of_the_settings_shorter(
    headers: dict[str, str], expected: RequestTimeLimits
) -> None:
    assert limits(headers) == expected


async def test_without_a_bound_the_wait_is_part_of_the_total() -> None:
    assert limits({}, GatewaySettings(request_timeout_s=9.0)) == RequestTimeLimits(9.0, 0.0)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "0.0009"])
@pytest.mark.parametrize("name", ["x-max-queue-s", "x-request-timeout-s"])
async def test_a_wrong_header_is_named(name: str, value: str) -> None:
    with pytest.raises(RequestError) as refused:
        limits({name: value})
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID, name)


class TestQueueTime:
    @pytest.fixture
    def anyio_backend(self) -> Any:
        return BACKEND

    async def test_a_request_gives_up_at_its_bound_and_not_before(self) -> None:
        world = World(slots=1, max_queue_s=5.0, retry_after_s=3)
        running, ahead, waits = (world.open(each) for each in ("running", "ahead", "waits"))
        await anyio.sleep(4.9)
        assert not waits.ended
        await anyio.sleep(0.2)
        assert failure(waits) is ErrorCode.QUEUE_TIMEOUT
        assert waits.failure is not None
        assert (waits.failure.retry_after_s, "5 s in the queue" in waits.failure.text) == (3, True)
        assert not running.ended
        assert not ahead.ended, "it is on its worker"
        assert world.router.waiting() == {"tiny": 0}

    async def test_the_worker_gets_what_is_left_of_the_bound(self) -> None:
        world = World(slots=1, max_queue_s=5.0)
        running, _, waits = (world.open(each) for each in ("running", "ahead", "waits"))
        await anyio.sleep(1.5)
        world["a"].finish(number(running))
        assert [submit.limits.queue_ms for submit in world["a"].submits] == [5000, 5000, 3500]
        world["a"].fail(number(waits), ErrorCode.QUEUE_TIMEOUT)
        assert failure(waits) is ErrorCode.QUEUE_TIMEOUT
        assert waits.failure is not None
        assert "5 s in the queue" in waits.failure.text
        assert waits.failure.retry_after_s >= 1

    async def test_a_request_that_had_its_turn_has_no_bound_on_the_next_worker(self) -> None:
        world = World(max_queue_s=5.0)
        world.open()
        world["a"].die(origin=Origin.OUTSIDE)
        world["a"].come_back()
        assert [submit.limits.queue_ms for submit in world["a"].submits] == [5000, 0]

    async def test_a_request_that_its_worker_did_not_begin_keeps_its_bound(self) -> None:
        """One of three with two slots has begun; the prompt of the second one was not made, and the third one had no
        slot."""
        world = World(slots=2, max_queue_s=5.0)
        begun, _, _ = groups = [world.open(each) for each in ("begun", "prompt", "behind")]
        await anyio.sleep(1.5)
        world["a"].die(reached=number(begun), origin=Origin.OUTSIDE)
        world["a"].come_back()
        assert [submit.limits.queue_ms for submit in world["a"].submits] == [5000, 5000, 5000, 0, 3500, 3500]
        world["a"].reach()
        world["a"].die(origin=Origin.OUTSIDE)
        await anyio.sleep(3.6)
        assert [failure(group) for group in groups] == [None, None, ErrorCode.QUEUE_TIMEOUT]
        assert groups[2].failure is not None
        assert "5 s in the queue" in groups[2].failure.text

    async def test_a_request_that_delivered_something_has_begun(self) -> None:
        world = World(slots=1, max_queue_s=5.0)
        _, preempting = world.open("first"), world.open("ahead")
        world["a"].token(number(preempting), "x")
        world["a"].die(reached=0, origin=Origin.OUTSIDE)
        await anyio.sleep(5.1)
        assert failure(preempting) is None

    async def test_a_request_that_workers_had_no_room_for_keeps_its_bound(self) -> None:
        world = World("a", "b", slots=1, max_queue_s=5.0)
        group = world.open()
        await anyio.sleep(1.0)
        world[group.worker].fail(number(group), ErrorCode.OVERLOADED)
        assert last(world[group.worker]).limits.queue_ms == 4000, "the other one"
        for worker in world.workers.values():
            worker.full = True
        world[group.worker].die(reached=0)
        await anyio.sleep(4.1)
        assert failure(group) is ErrorCode.QUEUE_TIMEOUT

    @pytest.mark.parametrize(
        ("code", "reached", "left"),
        [(ErrorCode.OVERLOADED, None, 3750), (ErrorCode.DRAINING, 0, 4000), (ErrorCode.STEP, 0, 0)],
        ids=["no room", "drains", "step failed"],
    )
    async def test_what_a_refusal_makes_of_the_bound(self, code: ErrorCode, reached: int | None, left: int) -> None:
        """A step fails only after the request has begun."""
        world = World(slots=1, max_queue_s=5.0)
        world["a"].die()
        group = world.open()
        world["a"].come_back()
        await anyio.sleep(1.0)
        world["a"].reach(reached)
        world["a"].fail(number(group), code)
        world["a"].die()
        world["a"].come_back()
        await anyio.sleep(FULL_S)
        assert last(world["a"]).limits.queue_ms == left

    async def test_without_a_bound_a_timeout_is_the_error_of_the_worker(self) -> None:
        world = World()
        asked = world.open()
        world["a"].fail(number(asked), ErrorCode.QUEUE_TIMEOUT)
        assert asked.failure is not None
        assert (asked.failure.code, world["a"].submits[0].limits.queue_ms) == (ErrorCode.QUEUE_TIMEOUT, 0)

    async def test_a_request_that_had_its_turn_does_not_give_up(self) -> None:
        world = World(max_queue_s=5.0)
        lost = world.open()
        world["a"].die()
        await anyio.sleep(20)
        assert not lost.ended
        world["a"].come_back()
        world["a"].finish(number(lost))
        assert lost.failure is None

    async def test_a_turn_before_the_bound_ends_the_wait(self) -> None:
        world = World(slots=1, max_queue_s=5.0)
        running, _, waits = (world.open(each) for each in ("running", "ahead", "waits"))
        world["a"].finish(number(running))
        await anyio.sleep(6)
        assert not waits.ended
        assert waits.worker == "a"

    async def test_those_in_line_wait_for_a_worker_from_the_time_at_which_there_is_none(self) -> None:
        world = World(slots=1, worker_wait_s=60.0)
        waits = [world.open() for _ in range(3)][-1]
        await anyio.sleep(59.0)
        assert (waits.waiting, world.router.waiting()) == (False, {"tiny": 1})
        world["a"].die()
        assert waits.waiting
        await anyio.sleep(59.0)
        assert not waits.ended
        await anyio.sleep(1.1)
        assert failure(waits) is ErrorCode.UNAVAILABLE

    async def test_the_wait_in_both_queues_is_measured(self) -> None:
        world = World(slots=1)
        running, ahead, waits = (world.open(each) for each in ("running", "ahead", "waits"))
        await anyio.sleep(2.0)
        world["a"].finish(number(running))
        await anyio.sleep(1.0)
        world["a"].finish(number(waits), usage=Usage(3, 1, queue_ms=500))
        world["a"].finish(number(ahead), usage=Usage(3, 1, queue_ms=2000))
        assert [group.sequences[0].queue_s for group in (running, ahead, waits)] == [0.0, 2.0, 2.5]
        shown = world.router.metrics.render().decode()
        (total,) = [line for line in shown.splitlines() if line.startswith("baton_queue_wait_seconds_sum{")]
        assert total.split()[-1] == "4.5"

    async def test_the_bound_holds_while_there_is_no_worker(self) -> None:
        world = World(max_queue_s=5.0, worker_wait_s=60.0)
        world["a"].die()
        waits = world.open()
        await anyio.sleep(5.1)
        assert failure(waits) is ErrorCode.QUEUE_TIMEOUT


async def test_a_client_gets_its_own_bound_as_an_error_of_its_dialect() -> None:
    got: list[httpx.Response] = []

    async def post(headers: dict[str, str]) -> None:
        got.append(await served.client.post("/v1/completions", json=COMPLETION, headers=headers))

    async with serving(max_waiting_streams=1) as served, anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(post, {})
        submits = await served.worker.wait_submits(6)
        await post({"x-max-queue-s": "0.01"})
        await post({"x-max-queue-s": "long"})
        for submit in submits:
            served.worker.finish(submit.stream)
    timed_out, wrong = got[:2]
    assert (timed_out.status_code, timed_out.json()["error"]["code"]) == (503, "queue_timeout")
    assert timed_out.headers["retry-after"] == "1"
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-max-queue-s")
