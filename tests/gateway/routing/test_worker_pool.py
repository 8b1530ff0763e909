"""Roles: which workers take requests, which standby takes the place of one that cannot, and what clients get if none
does."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.supervision.worker import WorkerState
from gateway.errors import RequestError
from gateway.generation.request import GenerationRequest
from gateway.openai.decoding import RequestDecoder
from gateway.routing.circuit_breaker import FIRST_COOLDOWN_S, TRIP_AFTER, Circuit
from gateway.routing.failure_attribution import CLEARED_AFTER, MAX_EXEMPT
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings
from protocol.commands import Stop
from protocol.errors import ErrorCode
from protocol.events import SILENT_S, Failed, Gauges, Step
from tests.gateway.harness.fakes import FakeWorker

pytestmark = pytest.mark.anyio


def plan(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "prompt": "hi", "stream": True, "max_tokens": 8} | fields
    return RequestDecoder(GatewaySettings()).completion(json.dumps(body).encode()).request


def pair(*standbys: str) -> tuple[Router, FakeWorker, list[FakeWorker]]:
    router = Router(GatewaySettings())
    active = FakeWorker("a").join(router)
    return router, active, [FakeWorker(name).join(router, Role.STANDBY) for name in standbys]


def served_by(router: Router) -> str:
    """The worker that gets a request, which ends at once."""
    group = router.admission.open(plan(), "r")
    group.cancel_nowait()
    return group.worker


def roles(router: Router) -> dict[str, str]:
    return {handle.name: handle.role.value for handle in router.pool}


def fail(router: Router, worker: FakeWorker, times: int) -> None:
    """So many requests to this worker fail, each by itself."""
    for number in range(1, times + 1):
        group = router.admission.open(plan(), "r")
        assert group.worker == worker.name
        worker.fail(group.sequences[0].submit.stream, ErrorCode.INTERNAL, f"bug {number}")


def fail_step(worker: FakeWorker, *groups: RequestGroup) -> None:
    """A step of a worker fails with these."""
    worker.change(gauges=Gauges(steps_failed=worker.status.gauges.steps_failed + 1))
    for group in groups:
        worker.fail(group.sequences[0].submit.stream, ErrorCode.STEP)


def circuit(router: Router, worker: str = "a") -> Circuit:
    return router.pool[worker].breaker.state(asyncio.get_running_loop().time())


async def test_a_standby_gets_no_requests() -> None:
    router, active, (standby,) = pair("s")
    assert [router.admission.open(plan(), "r").worker for _ in range(3)] == ["a", "a", "a"]
    assert standby.sent == []
    active.full = True
    router.admission.open(plan(), "r")
    assert router.waiting() == {"tiny": 1}, "a full worker is not a lost one"
    assert standby.sent == []


async def test_a_lost_worker_changes_places_with_a_standby_before_its_streams_are_sent_again() -> None:
    router, active, (standby,) = pair("s")
    group = router.admission.open(plan(), "r")
    active.die()
    assert group.worker == "s"
    standby.finish(group.sequences[0].submit.stream)
    assert roles(router) == {"a": "standby", "s": "active"}
    assert served_by(router) == "s"
    active.come_back()
    assert roles(router) == {"a": "standby", "s": "active"}
    assert served_by(router) == "s"
    assert [handle.promotions for handle in router.pool] == [0, 1]
    standby.die()
    assert served_by(router) == "a"


@pytest.mark.parametrize("state", sorted(set(WorkerState) - {WorkerState.READY}))
async def test_only_a_ready_standby_is_promoted(state: WorkerState) -> None:
    router, active, (first, second) = pair("s", "t")
    first.change(state=state)
    active.change(state=WorkerState.DRAINING)
    assert roles(router) == {"a": "standby", "s": "standby", "t": "active"}
    second.die()
    assert roles(router)["t"] == "active", "there is nobody better"
    first.change(state=WorkerState.READY)
    assert roles(router) == {"a": "standby", "s": "active", "t": "standby"}


async def test_a_standby_serves_its_own_model_only() -> None:
    router, active, _ = pair()
    FakeWorker("s", model="other").join(router, Role.STANDBY)
    active.die()
    assert roles(router) == {"a": "active", "s": "standby"}


async def test_a_worker_whose_requests_keep_failing_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    router, active, _ = pair()
    now = [1000.0]
    monkeypatch.setattr(router.pool, "_clock", lambda: now[0])
    fail(router, active, MAX_EXEMPT + TRIP_AFTER)
    with pytest.raises(RequestError, match="keep failing") as caught:
        router.admission.open(plan(), "r")
    assert (caught.value.status, caught.value.code) == (503, "unavailable")
    now[0] += FIRST_COOLDOWN_S
    probe = router.admission.open(plan(), "r")
    with pytest.raises(RequestError, match="keep failing"):
        router.admission.open(plan(), "r")
    active.finish(probe.sequences[0].submit.stream)
    assert [router.admission.open(plan(), "r").worker for _ in range(2)] == ["a", "a"]


async def test_a_cancelled_request_is_no_sign_of_health() -> None:
    router, active, _ = pair()
    fail(router, active, MAX_EXEMPT + TRIP_AFTER - 1)
    gone = router.admission.open(plan(), "r")
    gone.cancel_nowait()
    active.say_cancelled(gone.sequences[0].submit.stream)
    fail(router, active, 1)
    assert circuit(router) is Circuit.OPEN


async def test_a_standby_takes_over_from_a_worker_whose_requests_keep_failing() -> None:
    router, active, _ = pair("s")
    fail(router, active, MAX_EXEMPT + TRIP_AFTER)
    assert roles(router) == {"a": "standby", "s": "active"}
    assert active.sent[-1] == [Stop()], "and starts again, for one that fails its requests is no standby"
    assert router.admission.open(plan(), "r").worker == "s"
    active.die()
    active.come_back()
    assert [handle.breaker.state(0.0) for handle in router.pool] == [Circuit.CLOSED] * 2


async def test_one_bad_step_of_many_rows_and_bad_requests_open_nothing() -> None:
    router, active, _ = pair()
    group = router.admission.open(plan(n=64), "r")
    active.say(Step((), Gauges(steps_failed=1)))
    for number in [sequence.submit.stream for sequence in group.sequences]:
        active.fail(number, ErrorCode.STEP)
    group.cancel_nowait()
    tried_again = {ErrorCode.STEP, ErrorCode.NOT_FINITE, ErrorCode.LOST, ErrorCode.DRAINING}
    for code in ErrorCode:
        if code in tried_again | {ErrorCode.INTERNAL}:  # which count, or have tests of their own
            continue
        for _ in range(TRIP_AFTER):
            active.fail(router.admission.open(plan(), "r").sequences[0].submit.stream, code)
    assert router.admission.open(plan(), "r").worker == "a"


async def test_only_internal_errors_use_up_exemptions_and_count_without_one() -> None:
    """Other failures before them make no difference."""
    router, _, _ = pair()
    handle = router.pool["a"]
    for number, code in enumerate(sorted(set(ErrorCode) - {ErrorCode.INTERNAL, ErrorCode.STEP}) * MAX_EXEMPT):
        router.pool.note_end(handle, Failed(number, code, ""))
    for number in range(1000, 1000 + MAX_EXEMPT):
        router.pool.note_end(handle, Failed(number, ErrorCode.INTERNAL, ""))
    for number in range(2000, 2000 + TRIP_AFTER):
        assert circuit(router) is Circuit.CLOSED
        router.pool.note_end(handle, Failed(number, ErrorCode.INTERNAL, ""))
    assert circuit(router) is Circuit.OPEN


async def test_one_clients_failing_requests_open_nothing_for_the_others() -> None:
    """Each fails two steps, the second one alone; another one, whose steps they fail, gets on meanwhile."""
    router, active, _ = pair()
    neighbour = router.admission.open(plan(max_tokens=100), "n")
    for _ in range(2 * MAX_EXEMPT):
        bad = router.admission.open(plan(), "bad")
        fail_step(active, bad, neighbour)
        fail_step(active, bad)
        assert bad.failure is not None
        assert bad.failure.code is ErrorCode.STEP
        assert circuit(router) is Circuit.CLOSED
        active.token(neighbour.sequences[0].submit.stream, "x", *range(CLEARED_AFTER))
    assert not neighbour.ended


async def test_requests_without_numbers_open_nothing_however_many_and_alone() -> None:
    """The worker says that it is well, so that nothing has to be exempted."""
    router, active, _ = pair()
    for steps in range(2 * MAX_EXEMPT):
        bad = router.admission.open(plan(), "bad")
        for again in range(2):
            active.say(Step((), Gauges(steps_failed=2 * steps + again + 1)))
            assert bad.failure is None
            active.fail(bad.sequences[0].submit.stream, ErrorCode.NOT_FINITE)
        assert bad.failure is not None
        assert bad.failure.code is ErrorCode.NOT_FINITE
        assert circuit(router) is Circuit.CLOSED
    assert router.admission.open(plan(), "r").worker == "a"
    assert all(handle.exemptions.add("a step") for handle in router.pool), "no exemption is used up"


async def test_the_failures_of_one_that_leaves_go_with_it() -> None:
    router, active, _ = pair()
    for _ in range(MAX_EXEMPT):
        bad = router.admission.open(plan(), "bad")
        fail_step(active, bad)
        bad.cancel_nowait()
    assert circuit(router) is Circuit.CLOSED
    for _ in range(TRIP_AFTER):
        bad = router.admission.open(plan(), "bad")
        fail_step(active, bad)
        bad.cancel_nowait()
    assert circuit(router) is Circuit.OPEN, "and nothing good came between"


async def test_a_device_that_fails_every_step_opens_the_circuit() -> None:
    """Each request looks like the cause, but none fares better."""
    router, active, (standby,) = pair("s")
    failed = 0
    while router.pool["a"].role is Role.ACTIVE:
        group = router.admission.open(plan(), "r")
        while not group.ended and group.worker == "a":
            fail_step(active, group)
            failed += 1
    assert failed == MAX_EXEMPT + TRIP_AFTER
    assert standby.submits, "which takes over from there"


async def test_a_failure_that_is_attributed_to_its_request_does_not_open_the_circuit_for_a_moment() -> None:
    router, active, (_,) = pair("s")
    suspects = [router.admission.open(plan(), str(number)) for number in range(TRIP_AFTER - 1)]
    for group in suspects:
        fail_step(active, group)
    fail_step(active, suspects[0])
    assert suspects[0].failure is not None
    assert circuit(router) is Circuit.CLOSED
    assert roles(router) == {"a": "active", "s": "standby"}


async def test_a_model_whose_workers_are_out_of_service_is_refused_at_once_and_by_name() -> None:
    router, active, (standby,) = pair("s")
    FakeWorker("b", model="other").join(router)
    assert router.pool.hopeless("tiny") is None
    active.change(state=WorkerState.GIVEN_UP, reason="failed 5 times")
    standby.change(state=WorkerState.BACKOFF)
    assert router.pool.hopeless("tiny") is None, "one may come back"
    standby.change(state=WorkerState.STOPPED, reason="stopped")
    assert router.pool.hopeless("tiny") == "worker a is given up: failed 5 times; worker s is stopped: stopped"
    with pytest.raises(RequestError, match="'tiny' are out of service") as caught:
        router.admission.open(plan(), "r")
    assert (caught.value.status, caught.value.code) == (503, "unavailable")
    assert router.admission.open(plan(model="other"), "r").worker == "b"


STATES = st.sampled_from([WorkerState.READY, WorkerState.BACKOFF, WorkerState.LOADING, WorkerState.GIVEN_UP])


@settings(max_examples=300)
@given(
    active=st.integers(1, 2),
    standby=st.integers(0, 2),
    story=st.lists(st.tuples(st.integers(0, 3), STATES, st.booleans()), max_size=12),
)
async def test_any_story_keeps_the_number_of_active_workers_and_uses_every_fit_one(
    active: int, standby: int, story: list[tuple[int, WorkerState, bool]]
) -> None:
    router = Router(GatewaySettings())
    names = [f"w{number}" for number in range(active + standby)]
    workers = [
        FakeWorker(name).join(router, Role.ACTIVE if number < active else Role.STANDBY)
        for number, name in enumerate(names)
    ]
    now = asyncio.get_running_loop().time()
    for index, state, silent in story:
        workers[index % len(workers)].change(state=state, last_frame=now - (SILENT_S if silent else 0.0))
        ready = [worker.status for worker in workers if worker.status.state is WorkerState.READY]
        heartbeats = sum(status.last_frame > now - SILENT_S for status in ready)
        found = list(router.pool.candidates("tiny"))
        assert list(roles(router).values()).count("active") == active
        assert len(found) == min(active, len(ready)), "one that is silent is better than none"
        assert sum(handle.status.last_frame > now - SILENT_S for handle in found) == min(active, heartbeats)
