"""A worker that joins by itself: which join requests are admitted, when, and what becomes of the one before."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import msgspec
import pytest

from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision import life
from actors.supervision.deadlines import Deadlines
from actors.supervision.messages import StartWorker
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import WorkerState
from actors.supervision.worker_actor import WorkerRef, spawn_worker
from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from actors.transport.rejections import Rejections
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Command, Welcome
from protocol.errors import ByeReason
from protocol.events import Bye, Capabilities, Event, Gauges, Heartbeat, Hello, Ready
from tests.actors.supervision.processes import PATIENT, WAIT_S, Recorder, Watched, submit

pytestmark = pytest.mark.anyio

HELLO = Hello(
    protocol=PROTOCOL_VERSION, worker="x", incarnation=0, pid=7, model="m", backend="b", device="d", slots=1, context=1
)
AT_ONCE = RestartPolicy(max_failures=10, first_delay_s=0.0, max_delay_s=0.0)


class Far:
    """The other end of one connection."""

    def __init__(self, address: str) -> None:
        self.received: list[Command] = []
        self.lost: list[str] = []
        self.link = Link.connect(
            address, lambda frames: self.received.extend(map(decode_command, frames)), on_lost=self.lost.append
        )

    def say(self, *events: Event) -> None:
        self.link.send_nowait([encode(event) for event in events])

    async def until_received(self, count: int) -> None:
        with anyio.fail_after(WAIT_S):
            while len(self.received) < count and not self.lost:  # noqa: ASYNC110
                await anyio.sleep(0.002)


@asynccontextmanager
async def far(worker: WorkerRef, hello: Hello = HELLO) -> AsyncIterator[Far]:
    """A worker connects and says Hello."""
    with LocalEndpoint() as endpoint:
        link = Link.bind(endpoint.address, lambda frames: None)
        remote = Far(endpoint.address)
        try:
            await remote.link.send([b"the listener has read it"])
            while not link.received:  # noqa: ASYNC110
                await anyio.sleep(0.002)
            worker.ref.tell(JoinRequest("w", "10.0.0.7:1", hello, link))
            yield remote
        finally:
            remote.link.close(0)


@asynccontextmanager
async def awaited(
    policy: RestartPolicy = AT_ONCE, deadlines: Deadlines = PATIENT
) -> AsyncIterator[tuple[WorkerRef, Recorder, Rejections]]:
    rejections = Rejections()
    with anyio.fail_after(WAIT_S):
        async with Watched(None) as system:
            worker = spawn_worker(system, "w", life.Terms(policy, deadlines, rejections))
            system.watch(worker)
            worker.ref.tell(StartWorker())
            yield worker, system.recorder, rejections
    system.recorder.check()


async def test_each_join_is_another_incarnation() -> None:
    async with awaited() as (worker, recorder, _):
        for number in (1, 2, 3):
            async with far(worker) as remote:
                await remote.until_received(1)
                assert remote.received == [Welcome(number)]
                remote.say(Ready(capabilities=Capabilities()))
                status = await recorder.until_state(WorkerState.READY)
                assert (status.incarnation, status.pid, status.address) == (number, 7, "10.0.0.7:1")
                worker.send_nowait([submit(number), Cancel(number)])
                await remote.until_received(3)
            await recorder.until(lambda: len(recorder.lost) == number)  # noqa: B023
            await recorder.until_state(WorkerState.BACKOFF)
        assert worker.status.restarts == 3


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (msgspec.structs.replace(HELLO, incarnation=1), "incarnation"),
        (msgspec.structs.replace(HELLO, protocol=PROTOCOL_VERSION + 1), "version"),
    ],
)
async def test_an_earlier_life_and_another_version_are_refused_and_may_come_again(hello: Hello, reason: str) -> None:
    async with awaited() as (worker, recorder, rejections):
        async with far(worker, hello) as remote:
            await remote.until_received(1)
            assert isinstance(remote.received[0], Welcome)
            assert "is not" in remote.received[0].refusal
            await recorder.until_state(WorkerState.BACKOFF)
        assert {why: count for why, count in rejections.total.items() if count} == {reason: 1}
        async with far(worker) as remote:
            await remote.until_received(1)
            assert remote.received == [Welcome(2)]


async def test_a_second_one_is_declined_until_the_first_has_been_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with awaited() as (worker, recorder, rejections), far(worker) as first:
        await first.until_received(1)
        async with far(worker) as second:
            await second.until_received(1)
            assert isinstance(second.received[0], Welcome)
            assert "is here already" in second.received[0].refusal
        first.say(Heartbeat(Gauges()))
        monkeypatch.setattr(life, "TAKE_OVER_S", 0.0)
        async with far(worker) as third:
            await third.until_received(1)
            assert third.received == [Welcome(2)]
            await recorder.until(lambda: [number for number, _ in recorder.lost] == [1])
            with anyio.fail_after(WAIT_S):
                while not first.lost:  # noqa: ASYNC110
                    await anyio.sleep(0.002)
        assert rejections.total["taken"] == 1


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
    async with awaited() as (worker, recorder, _), far(worker) as remote:
        await remote.until_received(1)
        if reason is None:
            remote.link.close(0)
        else:
            remote.say(Bye(reason, "gone"))
        await recorder.until(lambda: bool(recorder.lost))
        assert recorder.origins == [origin]


@pytest.mark.parametrize("limit", ["heartbeat", "loading", "hang"])
async def test_one_that_says_nothing_is_cut_off_and_one_that_does_not_get_on_hangs(limit: str) -> None:
    deadlines = replace(PATIENT, **{limit: 0.2})
    async with awaited(deadlines=deadlines) as (worker, recorder, _), far(worker) as remote:
        await remote.until_received(1)
        if limit == "hang":
            remote.say(Ready(capabilities=Capabilities()))
            await recorder.until_state(WorkerState.READY)
            worker.send_nowait([submit()])
        await recorder.until(lambda: bool(recorder.lost))
        assert recorder.origins == [Origin.WITHIN if limit == "loading" else Origin.OUTSIDE]


async def test_one_whose_machine_beats_for_it_hangs_by_itself() -> None:
    async with awaited(deadlines=replace(PATIENT, hang=1.0)) as (worker, recorder, _), far(worker) as remote:
        await remote.until_received(1)
        remote.say(Ready(capabilities=Capabilities()))
        await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        while not recorder.lost:
            remote.say(Heartbeat(Gauges(slots_active=1)))
            await anyio.sleep(0.02)
        assert recorder.origins == [Origin.WITHIN]


async def test_one_that_failed_waits_and_one_that_fails_for_ever_is_given_up() -> None:
    slow = replace(AT_ONCE, max_failures=2, first_delay_s=0.5, max_delay_s=0.5)
    async with awaited(slow) as (worker, recorder, _):
        async with far(worker) as remote:
            await remote.until_received(1)
            remote.say(Bye(ByeReason.DIED, "killed"))
            await recorder.until_state(WorkerState.BACKOFF)
        declined = []
        while recorder.states[-1] is not WorkerState.GIVEN_UP:
            async with far(worker) as remote:
                await remote.until_received(1)
                assert isinstance(remote.received[0], Welcome)
                if remote.received[0].refusal:
                    declined.append(remote.received[0].refusal)
                    continue
                remote.say(Bye(ByeReason.DIED, "killed"))
                await recorder.until_state(WorkerState.GIVEN_UP)
        assert "come again in" in declined[0]
        async with far(worker) as remote:
            await remote.until_received(1)
            assert isinstance(remote.received[0], Welcome)
            assert remote.received[0].refusal


async def test_one_that_is_stopped_is_left_and_kept_out_until_it_is_started() -> None:
    async with awaited() as (worker, recorder, _):
        async with far(worker) as remote:
            await remote.until_received(1)
            stopped = await recorder.stop(worker)
            assert (stopped.state, recorder.lost) == (WorkerState.STOPPED, [(1, "stopped")])
            with anyio.fail_after(WAIT_S):
                while not remote.lost:  # noqa: ASYNC110
                    await anyio.sleep(0.002)
            assert remote.received == [Welcome(1)], "it may serve another gateway"
        async with far(worker) as remote:
            await remote.until_received(1)
            assert isinstance(remote.received[0], Welcome)
            assert "was stopped here" in remote.received[0].refusal
        worker.ref.tell(StartWorker())
        async with far(worker) as remote:
            await remote.until_received(1)
            assert remote.received == [Welcome(2)]
