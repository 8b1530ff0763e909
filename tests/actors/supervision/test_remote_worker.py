"""A worker that comes by itself: who is let in, when, and what becomes of the one that was there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import msgspec
import pytest

from actors.join.request import Arrival
from actors.process.exit_cause import Origin
from actors.supervision import remote_worker
from actors.supervision.policy import RestartPolicy
from actors.supervision.remote_worker import RemoteWorker
from actors.supervision.worker import Deadlines, WorkerState
from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Command, Welcome
from protocol.errors import ByeReason
from protocol.events import Bye, Capabilities, Event, Gauges, Heartbeat, Hello, Ready
from tests.actors.supervision.processes import PATIENT, WAIT_S, Recorder, submit

pytestmark = pytest.mark.anyio

HELLO = Hello(
    protocol=PROTOCOL_VERSION, worker="x", incarnation=0, pid=7, model="m", backend="b", device="d", slots=1, context=1
)
AT_ONCE = RestartPolicy(max_failures=10, first_delay_s=0.0, max_delay_s=0.0)


class Far:
    """The other end of one connection."""

    def __init__(self, address: str) -> None:
        self.heard: list[Command] = []
        self.lost: list[str] = []
        self.link = Link.connect(
            address, lambda frames: self.heard.extend(map(decode_command, frames)), on_lost=self.lost.append
        )

    def say(self, *events: Event) -> None:
        self.link.send_nowait([encode(event) for event in events])

    async def until_heard(self, count: int) -> None:
        with anyio.fail_after(WAIT_S):
            while len(self.heard) < count and not self.lost:  # noqa: ASYNC110
                await anyio.sleep(0.002)


@asynccontextmanager
async def far(worker: RemoteWorker, hello: Hello = HELLO) -> AsyncIterator[Far]:
    """Somebody comes and says hello."""
    with LocalEndpoint() as endpoint:
        link = Link.bind(endpoint.address, lambda frames: None)
        there = Far(endpoint.address)
        try:
            await there.link.send([b"the door has read it"])
            while not link.received:  # noqa: ASYNC110
                await anyio.sleep(0.002)
            worker.arrive(Arrival("w", "10.0.0.7:1", hello, link))
            yield there
        finally:
            there.link.close(0)


@asynccontextmanager
async def awaited(
    policy: RestartPolicy = AT_ONCE, deadlines: Deadlines = PATIENT
) -> AsyncIterator[tuple[RemoteWorker, Recorder]]:
    heard = Recorder()
    worker = RemoteWorker("w", heard, policy=policy, deadlines=deadlines)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            yield worker, heard
            group.cancel_scope.cancel()
    heard.check()


async def test_each_arrival_is_another_incarnation() -> None:
    async with awaited() as (worker, heard):
        for number in (1, 2, 3):
            async with far(worker) as there:
                await there.until_heard(1)
                assert there.heard == [Welcome(number)]
                there.say(Ready(capabilities=Capabilities()))
                status = await heard.until_state(WorkerState.READY)
                assert (status.incarnation, status.pid, status.address) == (number, 7, "10.0.0.7:1")
                worker.send_nowait([submit(number), Cancel(number)])
                await there.until_heard(3)
            await heard.until(lambda: len(heard.lost) == number)  # noqa: B023
            await heard.until_state(WorkerState.BACKOFF)
        assert worker.status.restarts == 3


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (msgspec.structs.replace(HELLO, incarnation=1), "incarnation"),
        (msgspec.structs.replace(HELLO, protocol=PROTOCOL_VERSION + 1), "version"),
    ],
)
async def test_an_earlier_life_and_another_version_are_refused_and_may_come_again(hello: Hello, reason: str) -> None:
    async with awaited() as (worker, heard):
        async with far(worker, hello) as there:
            await there.until_heard(1)
            assert isinstance(there.heard[0], Welcome)
            assert "is not" in there.heard[0].refusal
            await heard.until_state(WorkerState.BACKOFF)
        assert {why: count for why, count in worker.refusals.total.items() if count} == {reason: 1}
        async with far(worker) as there:
            await there.until_heard(1)
            assert there.heard == [Welcome(2)]


async def test_a_second_one_is_declined_until_the_first_has_been_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with awaited() as (worker, heard), far(worker) as first:
        await first.until_heard(1)
        async with far(worker) as second:
            await second.until_heard(1)
            assert isinstance(second.heard[0], Welcome)
            assert "is here already" in second.heard[0].refusal
        first.say(Heartbeat(Gauges()))
        monkeypatch.setattr(remote_worker, "TAKE_OVER_S", 0.0)
        async with far(worker) as third:
            await third.until_heard(1)
            assert third.heard == [Welcome(2)]
            await heard.until(lambda: [number for number, _ in heard.lost] == [1])
            with anyio.fail_after(WAIT_S):
                while not first.lost:  # noqa: ASYNC110
                    await anyio.sleep(0.002)
        assert worker.refusals.total["taken"] == 1


@pytest.mark.parametrize(
    ("reason", "origin"),
    [
        (ByeReason.DIED, Origin.WITHIN),
        (ByeReason.INTERNAL, Origin.WITHIN),
        (ByeReason.KILLED, Origin.OUTSIDE),
        (ByeReason.STOPPED, Origin.OUTSIDE),
        (None, Origin.OUTSIDE),
    ],
    ids=lambda value: value or "link lost",
)
async def test_how_it_went_says_who_ended_it(reason: ByeReason | None, origin: Origin) -> None:
    async with awaited() as (worker, heard), far(worker) as there:
        await there.until_heard(1)
        if reason is None:
            there.link.close(0)
        else:
            there.say(Bye(reason, "gone"))
        await heard.until(lambda: bool(heard.lost))
        assert heard.origins == [origin]


@pytest.mark.parametrize("limit", ["beat", "loading", "hang"])
async def test_one_that_says_nothing_is_cut_off_and_one_that_does_not_get_on_hangs(limit: str) -> None:
    deadlines = replace(PATIENT, **{limit: 0.2})
    async with awaited(deadlines=deadlines) as (worker, heard), far(worker) as there:
        await there.until_heard(1)
        if limit == "hang":
            there.say(Ready(capabilities=Capabilities()))
            await heard.until_state(WorkerState.READY)
            worker.send_nowait([submit()])
        await heard.until(lambda: bool(heard.lost))
        assert heard.origins == [Origin.WITHIN if limit == "loading" else Origin.OUTSIDE]


async def test_one_whose_machine_beats_for_it_hangs_by_itself() -> None:
    async with awaited(deadlines=replace(PATIENT, hang=1.0)) as (worker, heard), far(worker) as there:
        await there.until_heard(1)
        there.say(Ready(capabilities=Capabilities()))
        await heard.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        while not heard.lost:
            there.say(Heartbeat(Gauges(slots_active=1)))
            await anyio.sleep(0.02)
        assert heard.origins == [Origin.WITHIN]


async def test_one_that_failed_waits_and_one_that_fails_for_ever_is_given_up() -> None:
    slow = replace(AT_ONCE, max_failures=2, first_delay_s=30.0, max_delay_s=30.0)
    async with awaited(slow) as (worker, heard):
        async with far(worker) as there:
            await there.until_heard(1)
            there.say(Bye(ByeReason.DIED, "killed"))
            await heard.until_state(WorkerState.BACKOFF)
        async with far(worker) as there:
            await there.until_heard(1)
            assert isinstance(there.heard[0], Welcome)
            assert "come again in" in there.heard[0].refusal
        worker._not_before = 0.0
        async with far(worker) as there:
            await there.until_heard(1)
            there.say(Bye(ByeReason.DIED, "killed"))
            await heard.until_state(WorkerState.GIVEN_UP)
        async with far(worker) as there:
            await there.until_heard(1)
            assert isinstance(there.heard[0], Welcome)
            assert there.heard[0].refusal
