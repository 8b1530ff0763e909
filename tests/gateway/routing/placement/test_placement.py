"""Placement of sequences on workers, and what is counted and observed of them."""

from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.actor import Terminated
from actors.process.exit_cause import Origin
from actors.supervision.worker import GraceEnded, WorkerState
from gateway.body_budget import HeldBody
from gateway.openai.rerank.decoding import ComparisonDecoder
from gateway.openai.scores.decoding import ScoreDecoder
from gateway.settings import GatewaySettings
from protocol.bounds import MAX_SLOTS
from protocol.errors import ErrorCode
from protocol.events import Gauges, Heartbeat, Step, Usage
from protocol.scheduling import ahead
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def fail_step(worker: FakeWorker, stream: int) -> None:
    worker.change(gauges=Gauges(steps_failed=worker.status.gauges.steps_failed + 1))
    worker.fail(stream, ErrorCode.STEP)


def seconds(world: World, name: str, worker: str = "a") -> tuple[float, float]:
    """Count and sum of a worker's histogram."""
    families = text_string_to_metric_families(world.router.metrics.render().decode())
    samples = {
        sample.name.removeprefix(name): sample.value
        for family in families
        for sample in family.samples
        if sample.name in (f"{name}_count", f"{name}_sum") and sample.labels["worker"] == worker
    }
    return samples["_count"], round(samples["_sum"], 6)


def ends(world: World) -> dict[str, float]:
    """Ends of sequences by outcome."""
    families = text_string_to_metric_families(world.router.metrics.render().decode())
    return {
        sample.labels["outcome"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "baton_sequences_ended_total"
    }


async def test_the_router_is_idle_when_nothing_runs_and_nothing_waits() -> None:
    world = World("a", "b")
    idle = anyio.Event()

    async def wait() -> None:
        await world.router.idle()
        idle.set()

    running, other, waiting = world.open(), world.open(), world.open()
    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        world[other.worker].finish(number(other))
        await anyio.wait_all_tasks_blocked()
        assert not idle.is_set(), "two run"
        for worker in world.workers.values():
            worker.die(origin=Origin.OUTSIDE)
        assert running.waiting
        assert waiting.waiting
        running.cancel_nowait()
        await anyio.wait_all_tasks_blocked()
        assert not idle.is_set(), "one waits"
        waiting.cancel_nowait()
        await anyio.wait_all_tasks_blocked()
        assert idle.is_set()


async def test_a_sequence_whose_step_failed_goes_to_another_worker() -> None:
    world = World("a", "b")
    group = world.open()
    busy = [world.open() for _ in range(2)]
    assert [group.worker, *(one.worker for one in busy)] == ["a", "b", "a"]
    world["a"].finish(number(busy[1]))
    fail_step(world["a"], number(group))
    assert group.worker == "b", "although the first one has fewer sequences"


async def test_a_sequence_whose_step_failed_stays_if_there_is_no_other_worker() -> None:
    world = World("a")
    group = world.open()
    fail_step(world["a"], number(group))
    assert (group.worker, group.waiting, len(world["a"].submits)) == ("a", False, 2)


async def test_the_times_of_a_sequence_are_observed() -> None:
    world = World("a")
    group = world.open()
    await anyio.sleep(2.0)
    world["a"].token(number(group), "a", 1)
    await anyio.sleep(3.0)
    world["a"].token(number(group), "bc", 2, 3)
    await anyio.sleep(1.0)
    world["a"].finish(number(group), usage=Usage(3, 3, queue_ms=250))
    assert seconds(world, "baton_time_to_first_token_seconds") == (1, 2.0)
    assert seconds(world, "baton_inter_token_latency_seconds") == (2, 3.0)
    assert seconds(world, "baton_queue_wait_seconds") == (1, 0.25)
    assert seconds(world, "baton_request_seconds") == (1, 6.0)
    assert ends(world) == {"stop": 1}


async def test_a_sequence_that_fails_is_counted_by_its_error() -> None:
    world = World("a")
    world["a"].fail(number(world.open()), ErrorCode.CONTEXT)
    assert ends(world) == {"context_length_exceeded": 1}


async def test_the_gap_of_a_lost_sequence_is_observed_once_it_continues() -> None:
    world = World("a", "b")
    begun, fresh = world.open(), world.open()
    world["a"].token(number(begun), "a", 1)
    await anyio.sleep(2.0)
    world["a"].die()
    await anyio.sleep(3.0)
    world["b"].token(number(begun), "b", 2)
    assert seconds(world, "baton_replay_gap_seconds", "b") == (1, 5.0)
    world["b"].token(number(fresh), "x", 3)
    assert world.gaps() == 1


async def test_a_worker_learns_which_sequence_is_a_suspect() -> None:
    world = World("a", "b")
    world.open()
    world["a"].token(1, "a", 1)
    world["a"].die()
    world.open()
    assert [(each.stream, each.suspect) for each in world["b"].submits] == [(2, True), (3, False)]


async def test_a_worker_whose_actor_has_ended_is_left() -> None:
    world = World("a", "b")
    group = world.open()
    world.router.handle(Terminated("a", OSError("its supervision failed")))
    assert (group.worker, world["a"].cancels) == ("b", [1])
    world.router.handle(Terminated("unknown", None))


async def test_the_refusal_says_why_no_worker_takes_a_request() -> None:
    world = World("a", "b")
    pool = world.router.pool
    world["b"].change(state=WorkerState.BACKOFF)
    assert pool.excuse("tiny") == "the requests of model 'tiny' keep failing; its workers get a pause"
    world["a"].change(state=WorkerState.LOADING)
    assert pool.excuse("tiny") == "no worker of model 'tiny' is ready"
    for worker in world.workers.values():
        worker.change(state=WorkerState.GIVEN_UP)
    assert pool.excuse("tiny") == "the workers of model 'tiny' are out of service"


async def test_a_worker_that_was_not_started_yet_may_still_serve() -> None:
    world = World("a")
    world["a"].change(state=WorkerState.STOPPED, incarnation=0)
    assert world.router.pool.hopeless("tiny") is None
    world["a"].change(state=WorkerState.STOPPED, incarnation=1, reason="stopped")
    assert world.router.pool.hopeless("tiny") == "worker a is stopped: stopped"


async def test_a_worker_whose_grace_has_ended_is_left_unless_it_was_an_earlier_incarnation() -> None:
    world = World("a", "b")
    group = world.open()
    world.router.handle(GraceEnded("a", 0))
    assert group.worker == "a"
    world.router.handle(GraceEnded("a", 1))
    assert group.worker == "b"


async def test_a_body_counts_once_for_each_sequence_of_a_prompt_until_the_worker_has_answered() -> None:
    world = World("a")
    bodies = world.router.bodies
    body = HeldBody(bodies)
    body.grow(100)
    request = world.decoder.completion(b'{"model": "tiny", "prompt": "hi", "n": 3, "max_tokens": 9}').request
    group = world.router.admission.open(request, "r", body)
    body.release()
    assert bodies.held == 300
    for index in range(3):
        assert bodies.held == 300
        world["a"].finish(number(group, index))
    assert bodies.held == 0


async def test_a_body_whose_prompts_share_a_text_counts_once_for_each_of_them() -> None:
    """Before: once for all, so that a body of 250 KB took 16 MB that were not counted."""
    world = World("a")
    score = b'{"model": "tiny", "prompt": "long", "completion": ["a", "b", "c"]}'
    apart = b'{"model": "tiny", "prompt": ["x", "y", "z"], "completion": ["a", "b", "c"]}'
    infill = b'{"model": "tiny", "prompt": ["x", "y", "z"], "suffix": "long", "n": 2, "max_tokens": 9}'
    scores = ScoreDecoder(GatewaySettings(), ComparisonDecoder(world.router, GatewaySettings()).score)
    for request, copies in (
        (scores.score(score).request, 3),
        (scores.score(apart).request, 1),
        (world.decoder.completion(infill).request, 6),
    ):
        body = HeldBody(world.router.bodies)
        body.grow(100)
        group = world.router.admission.open(request, "r", body)
        body.release()
        assert world.router.bodies.held == copies * 100
        for index in range(len(group.sequences)):
            world["a"].finish(number(group, index))
        assert world.router.bodies.held == 0


async def test_a_cancelled_sequence_is_counted_as_such() -> None:
    world = World("a")
    world.open(n=2).cancel_nowait()
    assert ends(world) == {"cancelled": 2}


async def test_a_worker_with_a_free_slot_is_preferred_to_one_with_fewer_sequences() -> None:
    world = World("a", slots=2)
    FakeWorker("b", slots=4).join(world.router)
    assert [world.open().worker for _ in range(7)] == ["a", "b", "a", "b", "b", "b", "a"]


async def test_the_last_counts_of_an_incarnation_are_kept() -> None:
    world = World("a")
    world["a"].say(Step((), Gauges(steps=5)))
    world["a"].say(Heartbeat(Gauges(steps=7)))
    world["a"].die(reached=0)
    world["a"].come_back()
    world["a"].say(Step((), Gauges(steps=1)))
    assert world.router.pool["a"].counters.total("steps") == 8


async def test_a_worker_without_a_hello_gets_nothing() -> None:
    world = World("a")
    world["a"].change(hello=None)
    world.open()
    assert world.router.waiting() == {"tiny": 1}
    assert world["a"].submits == []


def test_a_worker_may_start_what_it_has_in_any_order() -> None:
    """Failures are attributed to the first of its sequences, twice as many as slots."""
    assert all(1 <= ahead(slots) <= slots for slots in range(1, MAX_SLOTS + 1))
