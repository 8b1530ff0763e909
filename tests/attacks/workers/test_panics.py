"""Bugs in the gateway while it handles one event of a worker: the rest of the step arrives, and supervision goes on."""

import functools
import os
import signal
from typing import Any

import anyio
import httpx
import pytest
import structlog

from actors.supervision.output_check import OutputCheck
from actors.supervision.worker import WorkerState, WorkerStatus
from actors.system import ActorSystem
from gateway.fleet.fleet import Fleet
from gateway.fleet.messages import AwaitSettled, StopAll
from gateway.routing.router import Router
from gateway.routing.sequence import LiveSequence
from gateway.settings import GatewaySettings
from protocol.events import Delta, Event, Finished, Step
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION
from tests.pids import pid_of

pytestmark = pytest.mark.anyio

BODY = COMPLETION | {"seed": 7, "ignore_eos": True, "max_tokens": 40}


class Once:
    """In the place of a method: raises at the first call for which `wrong` is true."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str, wrong: Any) -> None:
        original = getattr(owner, name)
        self.raised = 0

        def method(this: Any, *args: Any, **fields: Any) -> Any:
            if not self.raised and wrong(this, *args):
                self.raised += 1
                raise LookupError("a bug")
            return original(this, *args, **fields)

        patch.setattr(owner, name, method)


def is_delta_of_the_second(sequence: LiveSequence, event: Delta | Finished) -> bool:
    return sequence.index == 1 and len(sequence.tokens) == 5


def is_second(sequence: LiveSequence, *_: Any) -> bool:
    return sequence.index == 1


def is_step(_: OutputCheck, event: Event, now: float) -> bool:
    return isinstance(event, Step) and bool(event.deltas)


async def ask_all(real: Real) -> list[httpx.Response]:
    """One request of two sequences, and beside it four of one."""
    bodies = [BODY | {"n": 2}, *[BODY] * 4]
    calls = [functools.partial(real.client.post, "/v1/completions", json=body) for body in bodies]
    return await gather(*calls)


async def alone(real: Real) -> str:
    """The text that each sequence must have."""
    text: str = (await real.client.post("/v1/completions", json=BODY)).json()["choices"][0]["text"]
    return text


def check(answers: list[httpx.Response], text: str, first: int) -> None:
    """The first request got that status, and the others are unaltered."""
    assert [answer.status_code for answer in answers] == [first] + [200] * 4, [each.text for each in answers]
    assert [answer.json()["choices"][0]["text"] for answer in answers[1:]] == [text] * 4


@pytest.mark.parametrize(
    ("method", "wrong"), [("push", is_delta_of_the_second), ("finish", is_second)], ids=["a delta", "an end"]
)
async def test_an_event_that_cannot_be_handled_ends_one_request(
    method: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: the tokens of the sequences behind it in the step were lost, and a sequence without its end hung."""
    async with real_gateway(launch("a", slots=8, rate=100.0)) as real:
        text, once = await alone(real), Once(monkeypatch, LiveSequence, method, wrong)
        check(await ask_all(real), text, 500)
        assert once.raised == 1
        assert real.status().incarnation == 1
        assert await alone(real) == text


@pytest.mark.parametrize(
    ("method", "status"),
    [("leave", 502), ("submit_as", 500)],
    ids=["as it loses its worker", "as it is sent again"],
)
async def test_a_sequence_that_cannot_be_replayed_ends_and_the_others_continue(
    method: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: none of the worker's sequences was replayed, and all of them hung; or none behind it in the queue."""
    async with real_gateway(launch("a", slots=8, rate=50.0)) as real:
        text = await alone(real)
        once = Once(monkeypatch, LiveSequence, method, lambda each, *_: each.index == 1 and each.tokens)
        async with anyio.create_task_group() as group:
            group.start_soon(real.until, functools.partial(far, real), functools.partial(kill, real))
            check(await ask_all(real), text, status)
        assert once.raised == 1
        assert await alone(real) == text


def far(real: Real) -> bool:
    live = real.router.pool["a"].live.values()
    return len(live) == 6 and all(len(each.tokens) > 5 for each in live)


def kill(real: Real) -> None:
    os.kill(pid_of(real.status()), signal.SIGKILL)


async def test_a_failure_of_supervision_ends_the_incarnation_and_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with real_gateway(launch("a", slots=8, rate=100.0)) as real:
        text, once = await alone(real), Once(monkeypatch, OutputCheck, "check", is_step)
        check(await ask_all(real), text, 200)
        assert once.raised == 1
        failure = real.status().last_failure
        assert failure is not None
        assert failure.reason == "its supervision failed: LookupError: a bug"
        assert await alone(real) == text


async def test_a_display_that_fails_disturbs_neither_the_fleet_nor_who_waits_for_it() -> None:
    """Before: a reply that waited for the worker was sent no more."""
    shown: list[WorkerState] = []

    def show(status: WorkerStatus) -> None:
        shown.append(status.state)
        raise BrokenPipeError("the terminal is gone")

    with structlog.testing.capture_logs() as logs:
        async with ActorSystem() as system:
            router = Router(GatewaySettings())
            routes = system.spawn("router", router)
            fleet = system.spawn("fleet", Fleet(router, routes, [launch("a")], on_status=show))
            assert await fleet.ask(AwaitSettled, timeout=60) == ""
            assert await fleet.ask(StopAll, timeout=60)
    assert WorkerState.READY in shown
    assert {line["actor"] for line in logs if line["event"] == "actor_failed"} == {"fleet"}
