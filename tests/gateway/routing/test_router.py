"""Admission, choice of a worker, and the one end of every sequence, without HTTP."""

import json
from typing import Any

import anyio
import pytest

from actors.process.exit_cause import Origin
from actors.supervision.life import Terms
from actors.supervision.messages import Exited, LinkLost
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import WorkerState
from actors.system import ActorSystem
from gateway.errors import RequestError
from gateway.generation.request import GenerationRequest
from gateway.openai.decoding import RequestDecoder
from gateway.routing.admission.request_admission import DEADLINE_MARGIN_S
from gateway.routing.circuit_breaker import TRIP_AFTER, Circuit
from gateway.routing.quarantine import Quarantine
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from protocol.events import Failed, Gauges, Step
from protocol.request import Input, Sampling, TextInput
from tests.actors.fake_peer import FakePeer, started
from tests.actors.supervision.processes import submit
from tests.gateway.harness.fakes import FakeWorker

pytestmark = pytest.mark.anyio


def plan(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "prompt": "hi", "stream": True, "max_tokens": 8} | fields
    return RequestDecoder(GatewaySettings()).completion(json.dumps(body).encode()).request


def numbers(group: RequestGroup) -> list[int]:
    return [sequence.submit.stream for sequence in group.sequences]


async def test_the_least_loaded_ready_worker_is_chosen() -> None:
    router = Router(GatewaySettings(worker_wait_s=0))
    first, second = FakeWorker("a").join(router), FakeWorker("b").join(router)
    workers = [router.admission.open(plan(n=n), "r").worker for n in (3, 1, 1, 1, 2)]
    assert workers == ["a", "b", "b", "b", "a"]
    first.change(state=WorkerState.DRAINING)
    assert router.admission.open(plan(), "r").worker == "b"
    second.change(state=WorkerState.BACKOFF)
    with pytest.raises(RequestError) as caught:
        router.admission.open(plan(), "r")
    assert (caught.value.status, caught.value.code) == (503, "unavailable")
    assert (b"retry-after", b"1") in caught.value.headers


async def test_what_a_worker_has_for_other_gateways_is_load() -> None:
    router = Router(GatewaySettings(worker_wait_s=0))
    FakeWorker("a", slots=4).join(router).change(gauges=Gauges(others=2))
    FakeWorker("b", slots=4).join(router)
    assert [router.admission.open(plan(), "r").worker for _ in range(4)] == ["b", "b", "a", "b"]
    FakeWorker("c", slots=4).join(router).change(gauges=Gauges(others=4))
    assert [router.admission.open(plan(), "r").worker for _ in range(2)] == ["a", "b"], "a slot is free there"
    # Full workers get what a gateway may have there, as the worker has turns for it.
    assert {router.admission.open(plan(), "r").worker for _ in range(8)} == {"a", "b", "c"}


async def test_a_request_goes_to_a_worker_of_its_model() -> None:
    router = Router(GatewaySettings())
    FakeWorker("a", model="small").join(router)
    FakeWorker("b", model="large").join(router)
    assert router.admission.open(plan(model="large"), "r").worker == "b"
    with pytest.raises(RequestError, match="'small', 'large'") as caught:
        router.admission.open(plan(model="huge"), "r")
    assert (caught.value.status, caught.value.field) == (404, "model")


async def test_the_context_of_a_model_is_that_of_its_largest_worker() -> None:
    router = Router(GatewaySettings())
    workers = [FakeWorker(name, context=context).join(router) for name, context in (("a", 64), ("b", 256), ("c", 128))]
    FakeWorker("d", context=512, model="other").join(router)
    assert (router.pool.context("tiny"), router.pool.context("none")) == (256, None)
    workers[1].change(hello=None)
    assert router.pool.context("tiny") == 128


async def test_only_a_standby_without_sequences_is_removed() -> None:
    router = Router(GatewaySettings())
    FakeWorker("a").join(router)
    standby = FakeWorker("b").join(router, Role.STANDBY)
    with pytest.raises(ValueError, match="'a' is in use"):
        router.remove("a")
    router.pool.swap(router.pool["a"], router.pool["b"])
    group = router.admission.open(plan(), "r")
    router.pool.swap(router.pool["b"], router.pool["a"])
    with pytest.raises(ValueError, match="'b' is in use"):
        router.remove("b")
    standby.finish(numbers(group)[0])
    router.remove("b")
    assert [handle.name for handle in router.pool] == ["a"]


async def test_streams_of_a_worker_are_bounded_at_the_edge() -> None:
    router = Router(GatewaySettings(max_streams_per_worker=64, max_waiting_streams=0))
    worker = FakeWorker(slots=100).join(router)
    group = router.admission.open(plan(n=63), "r")
    router.admission.open(plan(), "r")
    with pytest.raises(RequestError) as caught:
        router.admission.open(plan(), "r")
    assert (caught.value.status, caught.value.code) == (429, "overloaded")
    worker.finish(numbers(group)[0])
    router.admission.open(plan(), "r")


async def test_another_worker_takes_what_a_full_link_refuses() -> None:
    router = Router(GatewaySettings())
    first, _ = FakeWorker("a").join(router), FakeWorker("b").join(router)
    first.full = True
    assert router.admission.open(plan(), "r").worker == "b"
    assert first.sent == []


async def test_frames_of_an_old_incarnation_are_not_taken_for_new() -> None:
    router = Router(GatewaySettings())
    worker = FakeWorker().join(router)
    worker.die()
    worker.come_back()
    group = router.admission.open(plan(), "r")
    worker.say_old(numbers(group)[0])
    assert not group.ended


async def test_what_is_left_of_a_request_that_failed_is_cancelled_though_its_client_is_away() -> None:
    """As one that is kept for a client which comes back may be, for minutes."""
    router = Router(GatewaySettings())
    worker = FakeWorker().join(router)
    group = router.admission.open(plan(n=2), "r")
    first, second = numbers(group)
    worker.fail(first, ErrorCode.INTERNAL)
    await router.idle()
    assert worker.cancels == [second]
    assert group.failure is not None
    group.cancel_nowait()
    assert worker.cancels == [second]


async def test_a_cancel_is_posted_at_once_and_once() -> None:
    router = Router(GatewaySettings())
    worker = FakeWorker().join(router)
    group = router.admission.open(plan(n=3), "r")
    first, second, third = numbers(group)
    worker.finish(second)
    group.cancel_nowait()
    group.cancel_nowait()
    assert worker.cancels == [first, third]
    assert all(stream.ended for stream in group.sequences)
    with anyio.fail_after(5):
        await router.idle()


async def test_a_cancel_that_a_full_link_refused_goes_again() -> None:
    router = Router(GatewaySettings())
    worker = FakeWorker().join(router)
    one, two = router.admission.open(plan(), "r"), router.admission.open(plan(), "r")
    worker.full = True
    one.cancel_nowait()
    two.cancel_nowait()
    assert worker.cancels == []
    worker.full = False
    assert await worker.wait_cancels(2) == [*numbers(one), *numbers(two)]
    assert len(worker.sent) == 3, "both in one message"


async def test_a_deadline_ends_a_stream_that_the_worker_forgot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routing.admission.request_admission.DEADLINE_MARGIN_S", 0.0)
    assert DEADLINE_MARGIN_S > 0, "the worker is asked first"
    router = Router(GatewaySettings(request_timeout_s=0.01))
    worker = FakeWorker().join(router)
    group = router.admission.open(plan(n=2), "r")
    worker.finish(numbers(group)[0])
    while not group.ended:
        await group.wait()
        group.take()
    assert group.failure is not None
    assert group.failure.code is ErrorCode.DEADLINE
    assert worker.cancels == [numbers(group)[1]]


async def test_the_timer_of_a_request_ends_with_it() -> None:
    """It refers to the request, which would stay in memory until its deadline."""
    router = Router(GatewaySettings())
    FakeWorker().join(router)
    group = router.admission.open(plan(), "r")
    assert group.deadline is not None
    assert not group.deadline.cancelled()
    group.close()
    assert group.deadline.cancelled()


async def test_the_end_of_the_gateway_is_typed() -> None:
    router = Router(GatewaySettings())
    worker = FakeWorker().join(router)
    group = router.admission.open(plan(), "r")
    router.admission.drain_nowait()
    with pytest.raises(RequestError) as caught:
        router.admission.open(plan(), "r")
    assert (caught.value.status, caught.value.code) == (503, "draining")
    assert not group.ended, "what lives may finish"
    worker.token(numbers(group)[0], "x")
    router.ends.fail_all("bye")
    assert group.failure is not None
    assert group.failure.code is ErrorCode.DRAINING
    with anyio.fail_after(5):
        await router.idle()


async def test_two_workers_of_one_name_are_refused() -> None:
    router = Router(GatewaySettings())
    FakeWorker().join(router)
    with pytest.raises(ValueError, match="w0"):
        FakeWorker().join(router)


async def test_each_notice_is_handled_as_of_its_own_frame() -> None:
    """A worker's actor handles all frames of a message before the router gets the notices of the first one."""
    async with ActorSystem() as system:
        router, peer = Router(GatewaySettings()), FakePeer()
        routes = system.spawn("router", router)
        worker, _ = await started(system, peer, Terms(RestartPolicy(first_delay_s=0.0, max_delay_s=0.0)))
        router.add(worker, "w", "m")
        worker.ref.watch(routes)
        peer.serve()
        steps = [
            (Step((), Gauges(steps=number, steps_failed=number)), Failed(number, ErrorCode.STEP, "no"))
            for number in range(1, TRIP_AFTER + 1)
        ]
        handle = router.pool["w"]
        worker.send_nowait([submit(number) for number in range(1, TRIP_AFTER + 1)])
        peer.say(*(event for step in steps[1:] for event in step))
        assert handle.breaker.state(anyio.current_time()) is Circuit.CLOSED
        peer.say(*steps[0])
        assert handle.breaker.state(anyio.current_time()) is Circuit.OPEN, "each step counts"
        peer.report(Exited(1, "exited with status 3", Origin.WITHIN, clean=False))
        peer.report(LinkLost(1, "it is gone", Origin.WITHIN, final=True))
        await anyio.wait_all_tasks_blocked()
        assert (handle.incarnation, handle.failed_step) == (2, (2, 0))


async def test_quarantine_looks_at_each_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a digest of the prompt, and the sequences of one prompt differ in the seed alone."""
    looked: list[str] = []

    def refuses(self: Quarantine, model: str, prompt: Input, sampling: Sampling) -> bool:
        assert isinstance(prompt, TextInput)
        looked.append(prompt.text)
        return False

    monkeypatch.setattr(Quarantine, "refuses", refuses)
    router = Router(GatewaySettings())
    FakeWorker("a", slots=16).join(router)
    router.admission.open(plan(prompt=["one", "two"], n=8), "r")
    assert looked == ["one", "two"]
