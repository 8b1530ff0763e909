"""Failures of a worker's own actor: another incarnation follows, or the worker is given up, and nobody waits."""

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog

from actors.actor import Actor
from actors.join.request import JoinRequest
from actors.mailbox import CAPACITY, RESERVE
from actors.process.exit_cause import Origin
from actors.supervision.life import Terms
from actors.supervision.messages import Admit, Exited, LinkLost, RestartWorker, StartWorker, StopWorker
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import IncarnationLost, WorkerChanged, WorkerEvent, WorkerState
from actors.system import ActorSystem
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import encode
from protocol.commands import Welcome
from protocol.events import Gauges, Heartbeat, Hello, Step
from tests.actors.fake_peer import FakeLink, FakePeer, started
from tests.actors.inbox import Inbox
from tests.actors.supervision.processes import WAIT_S

pytestmark = pytest.mark.anyio
AT_ONCE = Terms(RestartPolicy(max_failures=10, first_delay_s=0.0, max_delay_s=0.0))


class Failing:
    """In the place of a method: raises at its first `times` calls."""

    def __init__(self, owner: Any, name: str, times: int) -> None:
        self.left = times
        self._original = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *args: Any) -> Any:
        if self.left:
            self.left -= 1
            raise OSError("one more error")
        return self._original(*args)


def dies(peer: FakePeer) -> None:
    peer.report(Exited(peer.number, "exited with status 3", Origin.WITHIN, clean=False))
    peer.report(LinkLost(peer.number, "it is gone", Origin.WITHIN, final=True))


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.002)


@pytest.mark.parametrize("failing", ["close", "end", "_follow"])
async def test_an_error_while_an_incarnation_is_ended_is_survived(failing: str) -> None:
    async with ActorSystem() as system:
        peer, inbox = FakePeer(), Inbox()
        worker, actor = await started(system, peer, AT_ONCE)
        worker.ref.watch(inbox.ref, IncarnationLost)
        peer.serve()
        owner: Any = {"close": peer.link, "end": peer, "_follow": actor.life}[failing]
        with structlog.testing.capture_logs() as logs:
            Failing(owner, failing, 1)
            dies(peer)
            await until(lambda: worker.status.incarnation == 2)
        assert [line["event"] for line in logs].count("actor_failed") == 1
        assert [each.incarnation for each in inbox.messages] == [1]
        assert (worker.status.state, worker.status.incarnation) == (WorkerState.STARTING, 2)
        peer.serve()
        assert worker.status.state is WorkerState.READY


async def test_an_end_that_fails_twice_gives_the_worker_up_until_it_is_started_again() -> None:
    async with ActorSystem() as system:
        peer, inbox = FakePeer(), Inbox()
        worker, actor = await started(system, peer, AT_ONCE)
        worker.ref.watch(inbox.ref, WorkerChanged)
        peer.serve()
        with structlog.testing.capture_logs():
            Failing(actor.life, "_follow", 2)
            worker.ref.tell(RestartWorker(0.0))
            dies(peer)
            await until(lambda: not worker.status.running)
        last = inbox.messages[-1].status
        assert (last, last.state, last.running) == (worker.status, WorkerState.GIVEN_UP, False)
        assert last.reason == "its supervision failed: OSError: one more error"
        worker.ref.tell(StartWorker())
        assert (worker.ref.end, worker.status.state, worker.status.incarnation) == (None, WorkerState.STARTING, 2)


async def test_an_actor_that_ends_leaves_a_worker_that_does_not_run() -> None:
    """Its watchers are notified of what is lost, though its peer never ends."""
    inbox = Inbox()
    with structlog.testing.capture_logs():
        async with ActorSystem() as system:
            peer = FakePeer()
            worker, _ = await started(system, peer, AT_ONCE, stop_s=0.01)
            worker.ref.watch(inbox.ref)
            peer.serve()
            Failing(peer, "end", 99)
            worker.ref.tell(StopWorker())
            assert isinstance((await worker.ref.wait_stopped()).error, OSError)
    assert (worker.status.state, worker.status.running) == (WorkerState.GIVEN_UP, False)
    assert [type(each).__name__ for each in inbox.messages[-4:]] == [
        "WorkerChanged",
        "IncarnationLost",
        "WorkerChanged",
        "Terminated",
    ]


async def test_a_mailbox_without_room_for_frames_closes_the_link_and_reports_one_loss() -> None:
    async with ActorSystem() as system:
        peer, inbox = FakePeer(), Inbox()
        worker, _ = await started(system, peer)
        worker.ref.watch(inbox.ref, IncarnationLost)
        peer.serve()
        peer.link.waiting = [[encode(Step(()))] for _ in range(1000)]

        def fill() -> None:
            for _ in range(CAPACITY):
                worker.ref.tell(StartWorker())
            peer.link.drain_now()

        system.spawn("busy", Busy()).tell(fill)
        await until(lambda: inbox.messages != [])
        assert peer.link.closed
        assert len(peer.link.waiting) == 999
        assert [(each.incarnation, each.reason) for each in inbox.messages] == [
            (1, f"its link was lost: {CAPACITY} messages wait already")
        ]


async def test_much_that_arrived_before_an_exit_is_handled_before_it_in_several_turns() -> None:
    async with ActorSystem() as system:
        peer, inbox = FakePeer(), Inbox()
        worker, _ = await started(system, peer)
        worker.ref.watch(inbox.ref, WorkerEvent, IncarnationLost)
        peer.serve()
        peer.link.at_once, peer.link.waiting = 4, [[encode(Step(()))] for _ in range(10)]
        peer.report(Exited(1, "exited with status 3", Origin.WITHIN, clean=False))
        handled = []
        for _ in range(3):
            handled.append(len(inbox.messages))
            await anyio.lowlevel.checkpoint()
        assert handled == [4, 8, 10]
        peer.report(LinkLost(1, "it is gone", Origin.WITHIN, final=True))
        assert inbox.messages[-1].reason == "its process exited with status 3"


async def test_a_flood_that_never_ends_does_not_hide_an_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ActorSystem() as system:
        peer, inbox = FakePeer(), Inbox()
        worker, _ = await started(system, peer)
        worker.ref.watch(inbox.ref, IncarnationLost)
        peer.serve()
        monkeypatch.setattr(peer.link, "drain_now", lambda: True)
        monkeypatch.setattr(peer.link, "drain_turn", lambda: True)
        peer.report(Exited(1, "exited with status 3", Origin.WITHIN, clean=False))
        await until(lambda: bool(inbox.messages))
        assert inbox.messages[0].reason == "its process exited with status 3"


async def test_reports_that_wait_keep_their_order() -> None:
    async with ActorSystem() as system:
        peer, inbox = FakePeer(), Inbox()
        worker, _ = await started(system, peer)
        worker.ref.watch(inbox.ref, IncarnationLost)
        peer.serve()
        peer.link.at_once, peer.link.waiting = 1, [[encode(Step(()))] for _ in range(3)]
        for reason in ("first", "second", "third"):
            peer.report(Exited(1, reason, Origin.WITHIN, clean=False))
        for _ in range(3 + 3):
            await anyio.lowlevel.checkpoint()
        peer.report(LinkLost(1, "it is gone", Origin.WITHIN, final=True))
        assert inbox.messages[0].reason == "its process third", "of several the last one counts"


class Busy(Actor[Callable[[], None]]):
    """Runs what it gets. Other actors handle nothing before that returns."""

    def handle(self, message: Callable[[], None]) -> None:
        message()


class Asking:
    """A worker that asks to join. `link` has what it was sent, and whether it is closed."""

    def __init__(self) -> None:
        self.link: Any = FakeLink(lambda frames: None)
        hello = Hello(PROTOCOL_VERSION, "w", 0, 7, "m", "b", "d", 4, 100)
        self.request = JoinRequest("w", "10.0.0.7:1", hello, self.link)  # type: ignore[arg-type]

    @property
    def refusals(self) -> list[str]:
        return [each.refusal for each in self.link.sent if isinstance(each, Welcome)]


async def test_a_join_request_without_room_is_declined() -> None:
    async with ActorSystem() as system:
        asking, peer = Asking(), FakePeer()
        worker, actor = await started(system, peer)

        def fill() -> None:
            for _ in range(CAPACITY):
                worker.ref.tell(StartWorker())
            actor._report(Admit(asking.request))

        system.spawn("busy", Busy()).tell(fill)
        await until(lambda: asking.link.closed)
    assert asking.refusals == ["the gateway has no room for another join request: come again"]


async def test_a_timer_that_finds_the_mailbox_full_is_set_again() -> None:
    async with ActorSystem() as system:
        worker, actor = await started(system, FakePeer())

        def fill() -> None:
            for _ in range(CAPACITY + RESERVE):
                worker.ref.tell(StartWorker(), urgent=True)
            actor._due()
            assert actor._timer is None

        with structlog.testing.capture_logs() as logs:
            system.spawn("busy", Busy()).tell(fill)
            await until(lambda: actor._timer is not None)
    assert [line for line in logs if line["event"] == "actor_failed"] == []


async def test_a_deadline_waits_for_what_has_arrived_in_turns_of_the_loop_of_their_own() -> None:
    async with ActorSystem() as system:
        peer = FakePeer()
        worker, actor = await started(system, peer)
        peer.serve()
        peer.link.waiting = [[encode(Heartbeat(Gauges(steps=number)))] for number in range(1, 4)]
        seen = []
        for _ in range(4):
            actor._due()
            seen.append((len(peer.link.waiting), actor._delays))
        assert seen == [(2, 1), (1, 2), (0, 0), (0, 0)]
        assert worker.status.gauges.steps == 3


@pytest.mark.parametrize("admitted", [False, True], ids=["before its turn", "before it was decided"])
async def test_a_join_request_that_waits_when_the_actor_ends_is_declined(admitted: bool) -> None:
    asking = Asking()
    async with ActorSystem() as system:
        worker, actor = await started(system, FakePeer(), stop_s=0.01)
        actor.context._mailbox._idle = False  # as if the dispatcher had still to come to it
        worker.ref.tell(Admit(asking.request) if admitted else asking.request)
    assert asking.refusals == ["the gateway is shutting down"]
    assert asking.link.closed


async def test_an_exemption_is_no_error_after_the_actor_has_ended() -> None:
    async with ActorSystem() as system:
        worker, _ = await started(system, FakePeer())
        worker.ref.stop()
        await worker.ref.wait_stopped()
        worker.exempt_nowait(1)
