"""Batches whose texts are made one after the other: half-way, whatever ends them leaves nothing behind."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.body_budget import HeldBody
from gateway.generation.builder import POOLED_AT_ONCE
from gateway.openai.embeddings.decoding import EmbeddingsDecoder
from gateway.routing.admission.request_admission import RequestAdmission
from gateway.routing.placement.placement import Placement
from gateway.routing.request_group import RequestGroup
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from protocol.events import Finished, Usage
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World

pytestmark = pytest.mark.anyio
TEXTS = 100
DONE = 40
"""Texts that have ended when something happens."""
VECTOR = b"\0\0\0\0"


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def batch(world: World, count: int = TEXTS, request: str = "r", **settings: Any) -> RequestGroup:
    """Open a batch, as an endpoint does, which releases the body then."""
    raw = json.dumps({"model": "tiny", "input": [f"text {number}" for number in range(count)]}).encode()
    body = HeldBody(world.router.bodies)
    body.grow(len(raw))
    wanted = EmbeddingsDecoder(GatewaySettings(**settings)).embeddings(raw).request
    group = world.router.admission.open(wanted, request, body)
    body.release()
    return group


def finish(world: World, count: int) -> None:
    """Let so many texts end on the first worker, the oldest first."""
    for _ in range(count):
        handle = next(each for each in world.router.pool if each.live)
        stream = next(iter(handle.live))
        world[handle.name].say(Finished(stream, "stop", Usage(3, 0), vector=VECTOR))


def raise_at(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let further calls of a method raise."""

    def method(*_: Any, **__: Any) -> None:
        raise LookupError("a bug")

    patch.setattr(owner, name, method)


async def let_pass(seconds: float) -> None:
    await asyncio.sleep(seconds)  # of the virtual clock


Happening = Callable[[World, RequestGroup, pytest.MonkeyPatch], float]
"""Returns the seconds after which the batch must have ended."""


def no_text_can_be_made(world: World, group: RequestGroup, patch: pytest.MonkeyPatch) -> float:
    raise_at(patch, RequestAdmission, "_submit")
    finish(world, 1)
    return 0


def no_text_can_be_admitted(world: World, group: RequestGroup, patch: pytest.MonkeyPatch) -> float:
    raise_at(patch, Placement, "_find_worker")
    finish(world, 1)
    return 0


def a_text_is_too_long(world: World, group: RequestGroup, patch: pytest.MonkeyPatch) -> float:
    world["a"].fail(group.sequences[60].submit.stream, ErrorCode.CONTEXT, "5000 tokens", "prompt")
    return 0


def the_deadline_comes(world: World, group: RequestGroup, patch: pytest.MonkeyPatch) -> float:
    return 13


def the_last_worker_is_lost(world: World, group: RequestGroup, patch: pytest.MonkeyPatch) -> float:
    world["a"].die()
    return 6


def the_gateway_ends(world: World, group: RequestGroup, patch: pytest.MonkeyPatch) -> float:
    world.router.admission.drain_nowait()
    world.router.ends.fail_all("the gateway is shutting down")
    return 0


def its_answer_is_too_large(world: World, group: RequestGroup, patch: pytest.MonkeyPatch) -> float:
    assert group.answer is not None
    group.answer.grow(1 << 30)
    return 0


HAPPENINGS: dict[str, tuple[Happening, ErrorCode, str]] = {
    "answer-too-large": (its_answer_is_too_large, ErrorCode.INVALID, "answer"),
    "deadline": (the_deadline_comes, ErrorCode.DEADLINE, "10 s"),
    "gateway-ends": (the_gateway_ends, ErrorCode.DRAINING, "shutting down"),
    "not-admitted": (no_text_can_be_admitted, ErrorCode.INTERNAL, "LookupError"),
    "not-made": (no_text_can_be_made, ErrorCode.INTERNAL, "LookupError"),
    "too-long": (a_text_is_too_long, ErrorCode.CONTEXT, "`input[60]`: 5000 tokens"),
    "worker-lost": (the_last_worker_is_lost, ErrorCode.LOST, "was lost"),
}


@pytest.mark.parametrize("case", sorted(HAPPENINGS))
async def test_what_ends_a_batch_half_way_leaves_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    happen, code, text = HAPPENINGS[case]
    world = World("a", slots=64, request_timeout_s=10, worker_wait_s=5)
    group = batch(world)
    assert len(group.sequences) == POOLED_AT_ONCE
    finish(world, DONE)
    made = len(group.sequences)
    assert (made, group.ended, len(world.router.sequences())) == (DONE + POOLED_AT_ONCE, False, POOLED_AT_ONCE)
    ended = asyncio.create_task(group.wait())
    await asyncio.sleep(0)
    with capture_logs():  # tracebacks with all texts take seconds to write
        await let_pass(happen(world, group, monkeypatch))
    monkeypatch.undo()
    assert group.failure is not None
    assert group.failure.code == code
    assert text in group.failure.text
    await asyncio.sleep(0)
    assert ended.done()  # its client is notified
    await asyncio.sleep(0.5)
    assert world.router.is_idle
    if case == "gateway-ends":
        world["a"].die()  # it is stopped then
    for stream in world["a"].cancels:  # which the worker may read until then
        world["a"].say_cancelled(stream)
    assert world.router.bodies.held == 0
    assert len(group.sequences) <= made + 1
    group.close()
    group.close()
    assert world.router.bodies.held == 0
    assert world.router.answers.held == 0
    if case not in ("gateway-ends", "worker-lost"):  # the worker has room again
        after = batch(world, POOLED_AT_ONCE + 1, "after")
        finish(world, POOLED_AT_ONCE + 1)
        assert (after.failure, after.ended, world.router.bodies.held) == (None, True, 0)


async def test_a_full_queue_does_not_end_a_batch_that_was_admitted() -> None:
    """A text that follows another one waits in its place; the order of the answer is that of the request."""
    world = World("a", slots=2, max_waiting_streams=6)
    room = next(iter(world.router.pool)).room
    first = batch(world, 20, max_waiting_streams=6)
    assert len(first.sequences) == 6
    others: list[RequestGroup] = []
    while sum(world.router.waiting().values()) < 6:
        others.append(batch(world, 1, f"r{len(others)}"))
    live = len(world.router.sequences())
    assert live == room + 6
    for _ in range(100):
        if world.router.is_idle:
            break
        finish(world, 1)
        assert len(world.router.sequences()) <= live
        await asyncio.sleep(0)
    assert [each.failure for each in (first, *others)] == [None] * (1 + len(others))
    assert [delta.index for delta in sorted(first.take_all(), key=lambda delta: delta.index)][::2] == list(range(20))
    assert world.router.bodies.held == 0


async def test_a_drain_waits_for_texts_that_follow_the_only_live_one() -> None:
    """Between the end of one and the next the router was idle for an instant."""
    world = World("a", slots=1, max_waiting_streams=0, max_streams_per_worker=1, max_choices=1)
    group = batch(world, 3, max_waiting_streams=0)
    assert len(group.sequences) == 1
    world.router.admission.drain_nowait()
    idle = asyncio.create_task(world.router.idle())
    for left in (2, 1, 0):
        await let_pass(1)
        assert not idle.done()
        finish(world, 1)
        assert len(world.router.sequences()) == bool(left)
    await idle
    assert (group.failure, group.ended) == (None, True)
