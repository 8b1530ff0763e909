"""Sequences whose worker is lost, on the real router over workers that the test speaks for."""

import asyncio
from typing import Any

import anyio
import pytest
import structlog

from actors.supervision.worker import WorkerState
from gateway.generation.delta import StopReason, TextDelta, TokenCounts
from gateway.routing.admission.request_admission import DEADLINE_MARGIN_S
from gateway.routing.sequence import MAX_REPLAYS
from gateway.routing.worker_handle import Role
from protocol.errors import ErrorCode
from protocol.events import Usage
from protocol.request import TextInput
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, clear, failure, last, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_the_stream_of_a_lost_worker_continues_on_another() -> None:
    world = World("a", "b")
    group, kept = world.open(return_token_ids=True), world.open()
    world["a"].token(number(group), "Hel", 5, 6)
    before = last(world["a"])
    world["a"].die()
    again = last(world["b"])
    assert not group.ended
    assert again.resume == (5, 6)
    assert (again.request, again.input, again.sampling) == (before.request, before.input, before.sampling)
    assert again.stream != before.stream, "frames of the dead one match no sequence"
    world["b"].token(again.stream, "lo", 7)
    world["b"].finish(again.stream, "!", usage=Usage(2, 3))
    assert group.take() == [TextDelta(index=0, text="Hello!", tokens=(5, 6, 7), stop=StopReason.END)]
    assert group.token_counts() == TokenCounts(2, 3, 0)
    assert not group.continued
    assert not kept.ended
    assert world.replays() == {("died", "resumed"): 1}
    assert world.gaps() == 1


async def test_the_log_names_each_request_that_lost_its_worker_and_what_it_lost_it_to() -> None:
    world = World("a", "b")
    world.open("first", n=2)
    with structlog.testing.capture_logs() as logs:
        world["a"].die()
        world["b"].fail(last(world["b"]).stream, ErrorCode.STEP)
    lost = [line for line in logs if line["event"] == "stream_lost"]
    assert [(line["request"], line["choice"], line["worker"], line["cause"]) for line in lost] == [
        ("first", 0, "a", "died"),
        ("first", 1, "a", "died"),
    ], "with the failed step the request ends"
    assert all("worker a was lost" in line["reason"] for line in lost)


async def test_a_queued_sequence_is_replayed_from_its_start() -> None:
    world = World(slots=1)
    first, queued = world.open(), world.open(prompt="b")
    world["a"].die()
    world["a"].come_back()
    world["a"].finish(last(world["a"]).stream, "all of the first")
    assert [submit.resume for submit in world["a"].submits[2:]] == [(), ()]
    assert last(world["a"]).input == TextInput("b")
    assert world.gaps() == 0, "nobody saw a gap"
    assert first.ended
    assert not queued.ended


async def test_without_another_worker_it_waits_for_the_restart() -> None:
    world = World()
    group = world.open()
    world["a"].token(number(group), "x", 5)
    world["a"].die()
    assert (group.waiting, world.router.waiting()) == (True, {"tiny": 1})
    world["a"].come_back()
    assert not group.waiting
    assert last(world["a"]).resume == (5,)
    world["a"].say_old(number(group))
    assert not group.ended


async def test_a_standby_takes_the_streams_of_the_one_that_it_replaces() -> None:
    world = World()
    standby = FakeWorker("s").join(world.router, Role.STANDBY)
    group = world.open()
    world["a"].token(number(group), "x", 5)
    world["a"].die()
    assert last(standby).resume == (5,)
    assert not group.waiting


@pytest.mark.parametrize("how", ["in time", "given up", "at once"])
async def test_without_another_worker_the_stream_ends_with_an_error(how: str) -> None:
    world = World(worker_wait_s=0 if how == "at once" else 60)
    group = world.open()
    world["a"].die()
    if how == "given up":
        world["a"].change(state=WorkerState.GIVEN_UP)
        assert group.ended
    else:
        await anyio.sleep(0.01 if how == "at once" else 59.9)
        assert group.ended == (how == "at once")
        await anyio.sleep(0.2)
    assert failure(group) is ErrorCode.LOST
    assert group.failure is not None
    assert "killed by signal 9" in group.failure.text
    assert world.replays() == {("died", "worker_lost"): 1}
    await world.router.idle()


async def test_its_deadline_applies_while_it_waits() -> None:
    world = World(request_timeout_s=10, worker_wait_s=60)
    group = world.open()
    await anyio.sleep(4)
    world["a"].die()
    await anyio.sleep(2)
    world["a"].come_back()
    assert last(world["a"]).limits.deadline_ms == 4000
    clear(world["a"], last(world["a"]))
    world["a"].die()
    await anyio.sleep(4 + DEADLINE_MARGIN_S)
    assert failure(group) is ErrorCode.DEADLINE
    world["a"].come_back()
    assert len(world["a"].submits) == 2, "an expired stream is not replayed"


async def test_a_cancelled_stream_is_not_replayed() -> None:
    world = World()
    gone, stays = world.open("gone", n=2), world.open("stays")
    world["a"].die()
    gone.cancel_nowait()
    assert not gone.waiting
    world["a"].come_back()
    assert [submit.request for submit in world["a"].submits[3:]] == ["stays"]
    assert world["a"].cancels == [], "the next incarnation knows nothing of them"
    stays.cancel_nowait()
    assert world["a"].cancels == [number(stays)]
    await world.router.idle()
    assert world.replays() == {("died", "cancelled"): 3}


async def test_each_choice_continues_by_itself() -> None:
    world = World("a", "b")
    group = world.open(n=3)
    first, second, third = (number(group, index) for index in range(3))
    world["a"].token(first, "A", 1)
    world["a"].token(second, "B", 2)
    world["a"].finish(third, "C")
    world["a"].die()
    world["a"].come_back()
    (one,) = world["b"].submits
    (other,) = world["a"].submits[3:]
    assert (one.resume, other.resume) == ((1,), (2,)), "two suspects, two workers"
    world["a"].finish(other.stream, "b")
    world["b"].finish(one.stream, "a")
    texts = {delta.index: delta.text for delta in group.take() if isinstance(delta, TextDelta)}
    assert texts == {0: "Aa", 1: "Bb", 2: "C"}
    assert group.ended
    assert group.failure is None


async def test_a_worker_with_another_backend_continues_and_the_answer_reports_it() -> None:
    world = World("a", "b")
    hello = world["b"].status.hello
    assert hello is not None
    world["b"].change(hello=type(hello)(1, "b", 1, 1, "tiny", "other", "none", 4, 64, "another digest"))
    fresh, begun = world.open(), world.open()
    assert (fresh.worker, begun.worker) == ("a", "b")
    world["b"].token(number(begun), "x", 5)
    world["b"].die()
    assert begun.worker == "a"
    world["a"].token(number(begun), "y", 6)
    assert begun.continued
    assert not fresh.continued
    assert world.replays() == {("died", "continued"): 1}


async def test_one_that_had_nothing_yet_is_not_called_continued() -> None:
    world = World("a", "b")
    hello = world["b"].status.hello
    assert hello is not None
    world["b"].change(hello=type(hello)(1, "b", 1, 1, "tiny", "other", "none", 4, 64, "another digest"))
    group = world.open()
    world["a"].die()
    world["b"].finish(number(group), "all of it")
    assert not group.continued


async def test_a_waiting_call_wakes_an_eager_client_once() -> None:
    """So that it can begin to comment; nothing is there to take yet."""
    world = World()
    group = world.open()
    news = asyncio.ensure_future(group.wait())
    await asyncio.sleep(0)
    world["a"].die()
    assert await news is False
    assert group.waiting


async def test_the_time_between_tokens_is_not_that_of_a_part_of_them() -> None:
    """A worker reports how long it decoded, and how many tokens the sequence has with those of the lost worker."""
    world = World("a", "b")
    group = world.open()
    world["a"].token(number(group), "Hel", 5, 6)
    world["a"].die()
    world["b"].finish(last(world["b"]).stream, "!", usage=Usage(2, 3, decode_ms=100))
    assert group.ended
    assert [handle.observed.output_token.count for handle in world.router.pool] == [0, 0]
    assert [handle.observed.decode.count for handle in world.router.pool] == [0, 1]


async def test_the_first_gaps_of_a_sequence_are_kept_and_the_last() -> None:
    world = World("a", "b")
    group = world.open()
    for turn in range(MAX_REPLAYS + 2):
        name = group.worker
        world.router.migrate(name)
        world[name].come_back()
        assert group.worker != name
        world[group.worker].token(last(world[group.worker]).stream, "a", turn)
    (sequence,) = group.sequences
    assert len(sequence.replays) == MAX_REPLAYS
    assert sequence.replays[-1].resumed_at == sequence.last_at
