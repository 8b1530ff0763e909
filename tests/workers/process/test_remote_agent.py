"""The remote agent: its messages to and from a gateway, and the time between two links. See also
tests/gateway/fleet/test_remote.py."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from actors.actor import Ref
from actors.join.join_keys import NOT_ENROLLED, REVOKED, JoinKeys
from actors.join.request import JoinRequest
from actors.mailbox import MailboxFull
from actors.process.exit_cause import Origin
from actors.process.service_manager import ServiceManager
from actors.supervision.messages import RestartWorker, StartWorker, StopWorker
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import (
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerState,
    WorkerStatus,
    WorkerUnavailable,
)
from actors.supervision.worker_actor import WorkerRef
from actors.system import ActorSystem
from actors.transport.endpoint import EndpointError
from actors.transport.join_tokens import parse_token
from actors.transport.keys import KeyPair
from actors.transport.link import CurveKeys
from protocol.bounds import MAX_FRAMES_PER_MESSAGE, PROTOCOL_VERSION
from protocol.codec import decode_event, encode
from protocol.commands import Cancel, Command, Drain, Stop, Tokenize, Welcome
from protocol.errors import ByeReason, ErrorCode
from protocol.events import (
    Bye,
    Capabilities,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    HeldPrefix,
    Hello,
    Ready,
    Step,
    Tokenized,
    Usage,
)
from protocol.request import TokensInput
from tests.actors.inbox import Inbox
from tests.actors.join.entrance import WAIT_S, Entrance, entrance
from tests.actors.supervision.processes import submit
from workers.process.gateways import connection
from workers.process.gateways.address import GatewayAddress
from workers.process.gateways.connection import GatewayFrames
from workers.process.remote_agent import RemoteAgent, StopAgent

pytestmark = pytest.mark.anyio

HELLO = Hello(
    protocol=PROTOCOL_VERSION, worker="w", incarnation=5, pid=1, model="m", backend="b", device="d", slots=1, context=1
)
READY = Ready(capabilities=Capabilities())
STEP = Step(deltas=())
FINISHED = Finished(stream=1, reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=1))
NEVER = WorkerStatus("w", WorkerState.STOPPED, 0, 0, running=False)
SERVES = replace(NEVER, state=WorkerState.READY, pid=1, incarnation=5, hello=HELLO, ready=READY, running=True)
LOADS = replace(SERVES, state=WorkerState.LOADING, ready=None)


class Stub(WorkerRef):
    """A worker for which the test speaks."""

    def __init__(self) -> None:
        self.name = "w"
        self.inbox = Inbox()
        self.ref = self.inbox.ref
        self.now = NEVER
        self.sent: list[Command] = []
        self.messages: list[int] = []
        self.full = False

    @property
    def status(self) -> WorkerStatus:
        return self.now

    def send_nowait(self, commands: Sequence[Command]) -> None:
        if self.full:
            raise WorkerUnavailable("not now")
        self.sent += commands
        self.messages.append(len(commands))


class Agent(RemoteAgent):
    """One whose worker is a stub."""

    def __init__(self, gateways: Sequence[GatewayAddress], **options: Any) -> None:
        super().__init__("w", lambda endpoint, incarnation: ["false"], gateways, **options)
        self.stub = Stub()

    def supervise(self) -> WorkerRef:
        return self.stub

    def live(self, gateway: int) -> bool:
        """A gateway has sequences here or on the worker."""
        return self._shared.live(gateway)

    def tell(self, *notices: Any) -> None:
        for notice in notices:
            self.context.ref.tell(notice)

    def worker_is(self, status: WorkerStatus) -> None:
        self.stub.now = status
        self.tell(WorkerChanged(status))


@asynccontextmanager
async def agent(*gateways: GatewayAddress, **options: Any) -> AsyncIterator[Agent]:
    async with ActorSystem() as system:
        made = Agent(gateways, **options)
        system.spawn("agent", made)
        await anyio.wait_all_tasks_blocked()
        yield made


class Joined:
    """An agent that has joined, and the gateway's end of its link."""

    def __init__(self, made: Agent, door: Entrance) -> None:
        self.agent = made
        self.stub = made.stub
        self.door = door

    @property
    def received(self) -> list[Event]:
        """The events that the gateway got, without heartbeats."""
        events = [decode_event(frame) for frames in self.door.received for frame in frames]
        return [event for event in events if not isinstance(event, Heartbeat)]

    def say(self, *commands: Command) -> None:
        self.door.requests[-1].link.send_nowait([encode(command) for command in commands])

    async def until(self, true: Callable[[], bool]) -> None:
        await self.door.until(true)

    async def until_received(self, *events: Event) -> None:
        await self.until(lambda: self.received[-len(events) :] == list(events))


def address_of(door: Entrance, keys: JoinKeys | None = None) -> GatewayAddress:
    return GatewayAddress(f"tcp://127.0.0.1:{door.port}", keys or JoinKeys(door.keys()))


@asynccontextmanager
async def joined(folder: Path) -> AsyncIterator[Joined]:
    async with entrance(folder) as door, agent(address_of(door)) as made:
        there = Joined(made, door)
        made.worker_is(SERVES)
        await there.until_received(READY)
        yield there


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY", RestartPolicy(max_failures=64, first_delay_s=0.001, max_delay_s=0.001))


async def test_it_forwards_frames_in_both_directions(tmp_path: Path) -> None:
    async with joined(tmp_path) as there:
        assert there.stub.inbox.messages == [StartWorker()]
        assert there.door.requests[0].hello.incarnation == 0, "the gateway gives it a number of its own"
        there.say(submit(1), Cancel(7), Cancel(1))
        await there.until(lambda: there.stub.sent == [submit(1), Cancel(1)])  # there is no sequence 7
        there.agent.tell(WorkerEvent("w", 5, STEP), WorkerEvent("w", 5, FINISHED))
        await there.until_received(STEP, FINISHED)


async def test_it_sends_heartbeats_when_nothing_else_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.01)
    async with joined(tmp_path) as there:
        before = len(there.door.received)
        await there.until(lambda: len(there.door.received) > before + 3)
        assert there.received == [READY]


async def test_a_gateway_that_joins_again_is_told_what_the_worker_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.01)
    held = (HeldPrefix(0, 40, (1, 2)),)

    def reports(there: Joined) -> int:
        events = [decode_event(frame) for frames in there.door.received for frame in frames]
        return sum(isinstance(event, Heartbeat) and event.prefixes == held for event in events)

    async with joined(tmp_path) as there:
        there.agent.tell(WorkerEvent("w", 5, Heartbeat(Gauges(), held)))
        await there.until(lambda: reports(there) == 1)
        there.door.requests[0].link.close(0)
        await there.until(lambda: len(there.door.requests) == 2 and reports(there) == 2)


async def test_it_reports_that_it_is_ready_for_as_long_as_it_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age of its health file shows it."""
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.01)
    reports: list[None] = []
    monkeypatch.setattr(ServiceManager, "ready", lambda self: reports.append(None))
    async with joined(tmp_path) as there:
        before = len(reports)
        await there.until(lambda: len(reports) > before + 3)
        there.agent.worker_is(LOADS)
        await anyio.wait_all_tasks_blocked()
        before, received = len(reports), len(there.door.received)
        await there.until(lambda: len(there.door.received) > received + 3)
        assert len(reports) == before


async def test_what_the_worker_does_not_take_is_answered(tmp_path: Path) -> None:
    async with joined(tmp_path) as there:
        there.say(submit(2))
        await there.until(lambda: there.stub.sent == [submit(2)])
        there.stub.full = True
        there.say(submit(1))
        await there.until_received(Failed(1, ErrorCode.OVERLOADED, "not now"))
        there.say(Cancel(2))
        await there.until(lambda: there.stub.inbox.messages[1:] == [RestartWorker(0.0)])
        there.agent.tell(IncarnationLost("w", 5, "stopped", Origin.OUTSIDE, asked=True))
        # A slot would compute for nothing: the gateway gets a new incarnation.
        await there.until(lambda: len(there.door.requests) == 2 and there.door.lost != [])


async def test_queries_and_their_answers_are_forwarded(tmp_path: Path) -> None:
    asked, answer = Tokenize(7, "r", TokensInput((1,))), Tokenized(7, 1)
    async with joined(tmp_path) as there:
        there.say(asked)
        await there.until(lambda: there.stub.sent == [asked])
        there.agent.tell(WorkerEvent("w", 5, Tokenized(99, 1)), WorkerEvent("w", 5, answer))
        await there.until_received(READY, answer)
        there.stub.full = True
        there.say(asked)
        await there.until_received(Tokenized(7, text="not now", code=ErrorCode.OVERLOADED))


async def test_all_that_a_lost_gateway_had_is_cancelled_before_it_joins_again(tmp_path: Path) -> None:
    async with joined(tmp_path) as there:
        there.say(submit(1), submit(2))
        await there.until(lambda: len(there.stub.sent) == 2)
        there.door.requests[0].link.close(0)
        await there.until(lambda: there.stub.sent[2:] == [Cancel(1), Cancel(2)])
        there.agent.tell(WorkerEvent("w", 5, FINISHED))
        assert there.agent.connections[0].link is None, "the worker still has one of its sequences"
        there.agent.tell(WorkerEvent("w", 5, Failed(2, ErrorCode.INTERNAL, "")))
        await there.until(lambda: len(there.door.requests) == 2)


@pytest.mark.parametrize("count", [1, MAX_FRAMES_PER_MESSAGE, MAX_FRAMES_PER_MESSAGE + 1])
async def test_no_message_of_cancels_is_too_long(tmp_path: Path, count: int) -> None:
    async with joined(tmp_path) as there:
        streams = range(1, count + 1)
        for start in range(0, count, 100):
            there.say(*map(submit, streams[start:][:100]))
        await there.until(lambda: len(there.stub.sent) == count)
        there.stub.sent.clear()
        there.stub.messages.clear()
        there.door.requests[0].link.close(0)
        await there.until(lambda: sorted(each.stream for each in there.stub.sent) == list(streams))  # type: ignore[union-attr]
        assert max(there.stub.messages) <= MAX_FRAMES_PER_MESSAGE


async def test_a_worker_that_does_not_take_the_cancels_is_restarted(tmp_path: Path) -> None:
    async with joined(tmp_path) as there:
        there.say(submit(1))
        await there.until(lambda: there.stub.sent != [])
        there.stub.full = True
        there.door.requests[0].link.close(0)
        await there.until(lambda: there.stub.inbox.messages[1:] == [RestartWorker(0.0)])
        there.agent.tell(IncarnationLost("w", 5, "stopped", Origin.OUTSIDE, asked=True))
        await there.until(lambda: len(there.door.requests) == 2)


async def test_frames_without_room_in_the_mailbox_end_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Ref.tell

    def refuse(ref: Ref[Any], message: Any, *, urgent: bool = False) -> None:
        if isinstance(message, GatewayFrames):
            raise MailboxFull("no room")
        tell(ref, message, urgent=urgent)

    async with joined(tmp_path) as there:
        with monkeypatch.context() as patched:
            patched.setattr(Ref, "tell", refuse)
            there.say(submit(1))
            await there.until(lambda: there.door.lost != [])
        await there.until(lambda: len(there.door.requests) == 2)
        assert there.stub.sent == []


@pytest.mark.parametrize(("origin", "reason"), [(Origin.WITHIN, ByeReason.DIED), (Origin.OUTSIDE, ByeReason.KILLED)])
async def test_the_gateway_learns_at_once_of_a_death_and_its_origin(
    tmp_path: Path, origin: Origin, reason: ByeReason
) -> None:
    async with joined(tmp_path) as there:
        there.agent.tell(IncarnationLost("w", 5, "its process is gone", origin))
        await there.until_received(Bye(reason, "its process is gone"))
        there.agent.worker_is(replace(NEVER, running=True))
        await there.until(lambda: there.door.lost != [])
        there.agent.worker_is(replace(SERVES, incarnation=6))
        await there.until(lambda: len(there.door.requests) == 2)


@pytest.mark.parametrize(("command", "grace_s"), [(Drain(3000), 3.0), (Stop(), 0.0)])
async def test_a_gateway_that_lets_it_leave_gets_a_fresh_process(
    tmp_path: Path, command: Command, grace_s: float
) -> None:
    async with joined(tmp_path) as there:
        there.say(command)
        await there.until(lambda: there.stub.inbox.messages[1:] == [RestartWorker(grace_s)])
        there.agent.tell(IncarnationLost("w", 5, "stopped", Origin.OUTSIDE, asked=True))
        await there.until_received(Bye(ByeReason.STOPPED, "stopped"))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [(b"\xc1", "invalid frame"), (encode(Welcome(2)), "a second Welcome")],
    ids=["garbage", "a second welcome"],
)
async def test_a_gateway_that_breaks_the_protocol_is_left(tmp_path: Path, frame: bytes, problem: str) -> None:
    async with joined(tmp_path) as there:
        with capture_logs():
            there.door.requests[0].link.send_nowait([frame])
            await there.until(lambda: len(there.door.requests) == 2 and there.door.lost != [])
        (bye,) = [event for event in there.received if isinstance(event, Bye)]
        assert bye.reason is ByeReason.PROTOCOL
        assert problem in bye.text


async def test_a_gateway_that_refuses_it_or_does_not_answer_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(connection, "WELCOME_S", 0.5)
    async with entrance(tmp_path) as door:

        def refuse(request: JoinRequest) -> None:
            door.requests.append(request)
            request.decline("not you")

        answers = door.answers = [refuse, refuse, door.requests.append, door.requests.append]
        with capture_logs() as logged:
            async with agent(address_of(door)) as made:
                made.worker_is(SERVES)
                await door.until(lambda: door.received != [])
        assert answers == []
        reasons = [line["reason"] for line in logged if line["event"] == "not_joined"]
        assert reasons[:4] == ["the gateway refused: not you"] * 2 + ["no answer within 0.5 s"] * 2


async def test_a_link_that_cannot_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = anyio.Event()
    tried: list[str] = []

    def connect(shared: object, gateway: int, address: GatewayAddress, *_: object) -> None:
        tried.append(address.address)
        if len(tried) == 2:
            twice.set()
        raise EndpointError("no socket can be made")

    monkeypatch.setattr(connection, "GatewayLink", connect)
    own = KeyPair(bytes(range(32)))
    with capture_logs() as logged:
        nowhere = GatewayAddress("tcp://127.0.0.1:9", JoinKeys(CurveKeys(own.public, own.secret, server=own.public)))
        async with agent(nowhere) as made:
            made.worker_is(SERVES)
            with anyio.fail_after(WAIT_S):
                await twice.wait()
    # The key as `baton worker-keys add` wants it.
    assert (logged[0]["reason"], logged[0]["key"]) == ("no socket can be made", own.public_text)


async def test_an_agent_that_is_stopped_reports_it_first_and_ends_with_its_worker(tmp_path: Path) -> None:
    async with joined(tmp_path) as there:
        there.agent.tell(StopAgent())
        await there.until_received(Bye(ByeReason.STOPPED, "its machine stops it"))
        assert there.stub.inbox.messages[1:] == [StopWorker()]
        assert there.agent.context.ref.end is None
        there.agent.worker_is(NEVER)
        with anyio.fail_after(WAIT_S):
            assert (await there.agent.context.ref.wait_stopped()).error is None


def with_token(door: Entrance, token: str) -> JoinKeys:
    """The keys of a worker that has a token, and keeps its own key in memory."""
    return JoinKeys(door.keys(KeyPair.generate()), door.keys(parse_token(token)), kept=False)


async def until_it_stops_its_worker(made: Agent) -> None:
    with anyio.fail_after(WAIT_S):
        while StopWorker() not in made.stub.inbox.messages:  # noqa: ASYNC110  sockets are waited for
            await anyio.sleep(0.002)


async def test_a_token_lets_a_worker_join_and_join_again_with_its_own_key(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door:
        keys = with_token(door, door.tokens.make("near"))
        async with agent(address_of(door, keys)) as made:
            made.worker_is(SERVES)
            await door.until(lambda: len(door.requests) == 1)
            await door.until(lambda: not keys.registers)
            door.requests[0].link.close()
            await door.until(lambda: len(door.requests) == 2)
            assert [(each.name, bool(each.hello.key)) for each in door.requests] == [("near", True), ("near", False)]
            assert made.gave_up == ""


async def test_a_worker_gives_up_with_a_token_that_is_of_no_use(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door:
        token = door.tokens.make("near")
        door.tokens.make("near")
        async with agent(address_of(door, with_token(door, token))) as made:
            made.worker_is(SERVES)
            await until_it_stops_its_worker(made)
            assert made.gave_up == NOT_ENROLLED
        assert door.rejected() == {"key": 2}


async def test_a_worker_whose_key_in_memory_is_revoked_gives_up(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door:
        keys = with_token(door, door.tokens.make("near"))
        async with agent(address_of(door, keys)) as made:
            made.worker_is(SERVES)
            await door.until(lambda: not keys.registers)
            door.listed.remove("near")
            door.requests[0].link.close()
            await until_it_stops_its_worker(made)
            assert made.gave_up == REVOKED


async def test_a_worker_ends_after_its_time_without_a_gateway(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door:
        address = address_of(door)
    async with agent(address, join_timeout_s=0.2) as made:
        made.worker_is(SERVES)
        await until_it_stops_its_worker(made)
        assert made.gave_up.startswith("it was without a gateway for 0.2 s: ")


async def test_a_worker_does_not_wait_for_an_answer_beyond_its_time_without_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WELCOME_S", 3600.0)
    async with entrance(tmp_path) as door:
        address = address_of(door)
    async with agent(address, join_timeout_s=0.2) as made:
        made.worker_is(SERVES)
        await until_it_stops_its_worker(made)
        # Whether the lack of an answer or the refused connection is noticed first is a matter of time.
        assert made.gave_up.startswith("it was without a gateway for 0.2 s: ")
