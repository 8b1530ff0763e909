"""A worker with two gateways, over real links: what one of them does, or its end, is nothing to the other one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from actors.join.join_keys import JoinKeys
from actors.join.proxy import ProxyEnd
from actors.process.exit_cause import Origin
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import IncarnationLost, WorkerEvent
from actors.transport import zmq_socket
from actors.transport.link import CurveKeys, Link, LinkFull
from protocol.bounds import MAX_NAME
from protocol.codec import encode
from protocol.commands import Cancel, Drain, ReadRows, Stop, Submit, Tokenize, Welcome, WriteRows
from protocol.errors import ByeReason, ErrorCode
from protocol.events import (
    Bye,
    Delta,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    HeldPrefix,
    Rows,
    RowsWritten,
    Step,
    Tokenized,
    Usage,
)
from protocol.request import TokensInput
from tests.actors.join.entrance import Entrance, entrance
from tests.actors.supervision.processes import submit
from tests.workers.process.test_remote_agent import HELLO, READY, SERVES, Agent, Joined, Stub, address_of, agent
from workers.process.gateways import connection
from workers.process.gateways.address import GatewayAddress, tenant_prefixes
from workers.process.gateways.shared_worker import MAX_QUERIES, MAX_ROW_QUESTIONS, SharedWorker
from workers.process.prompts import tokenize_queue

pytestmark = pytest.mark.anyio
USAGE = Usage(prompt_tokens=1, completion_tokens=1)


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY", RestartPolicy(max_failures=64, first_delay_s=0.001, max_delay_s=0.001))


class Pair:
    """Two gateways, `a` and `b`, and the worker that both have."""

    def __init__(self, made: Agent, doors: Sequence[Entrance]) -> None:
        self.agent, self.stub = made, made.stub
        self.a, self.b = (Joined(made, door) for door in doors)

    @property
    def submitted(self) -> list[Submit]:
        """The sequences that the worker got, in order."""
        return [each for each in self.stub.sent if isinstance(each, Submit)]

    @property
    def cancelled(self) -> list[int]:
        return [each.stream for each in self.stub.sent if isinstance(each, Cancel)]

    async def submit(self, gateway: Joined, *streams: int, tenant: str = "") -> list[int]:
        """Send sequences, and return their numbers on the worker."""
        before = len(self.submitted)
        gateway.say(*(replace(submit(stream), tenant=tenant) for stream in streams))
        await gateway.until(lambda: len(self.submitted) == before + len(streams))
        return [each.stream for each in self.submitted[before:]]

    def happens(self, *events: Step | Finished | Failed | Heartbeat | Tokenized) -> None:
        self.agent.tell(*(WorkerEvent("w", 5, event) for event in events))


@asynccontextmanager
async def shared(folder: Path, slots: int = 4) -> AsyncIterator[Pair]:
    for name in ("a", "b"):
        (folder / name).mkdir()
    async with (
        entrance(folder / "a") as first,
        entrance(folder / "b") as second,
        agent(address_of(first), address_of(second)) as made,
    ):
        pair = Pair(made, (first, second))
        hello = replace(HELLO, slots=slots)
        made.worker_is(replace(SERVES, hello=hello))
        for each in (pair.a, pair.b):
            await each.until_received(READY)
        yield pair


async def test_both_get_the_worker_and_know_that_there_is_another_one(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        for gateway in (there.a, there.b):
            (request,) = gateway.door.requests
            assert (request.hello.gateways, request.hello.incarnation) == (2, 0)


async def test_each_gets_what_is_about_its_own_sequences_under_its_own_numbers(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        (first,) = await there.submit(there.a, 9)
        (second,) = await there.submit(there.b, 9)
        assert first != second
        gauges = Gauges(steps=1, reached=second)
        there.happens(Step((Delta(first, (1,), "x"), Delta(second, (2,), "y")), gauges))
        shown = replace(gauges, reached=9, others=1)
        await there.a.until_received(Step((Delta(9, (1,), "x"),), shown))
        await there.b.until_received(Step((Delta(9, (2,), "y"),), shown))
        there.a.say(Cancel(9))
        await there.a.until(lambda: there.cancelled == [first])
        there.happens(Finished(first, "cancelled", USAGE), Finished(second, "stop", USAGE))
        await there.a.until_received(Finished(9, "cancelled", USAGE))
        await there.b.until_received(Finished(9, "stop", USAGE))


async def test_kv_is_not_shared_between_gateways_with_different_keys(tmp_path: Path) -> None:
    async with shared(tmp_path) as there:
        await there.submit(there.a, 1, tenant="t:s")
        await there.submit(there.b, 1, tenant="t:s")
        first, second = (each.tenant for each in there.submitted)
        assert first != second
        assert first.endswith("/t:s")
        room = MAX_NAME - len(first.removesuffix("t:s"))
        await there.submit(there.a, 2, tenant="t" * room)
        there.a.say(replace(submit(3), tenant="t" * (room + 1)))
        text = f"a tenant has at most {room} characters on a worker of several gateways"
        await there.a.until_received(Failed(3, ErrorCode.INVALID, text))


async def test_replicas_are_told_what_the_worker_holds_of_all_of_them() -> None:
    """One of them in the step that is about it, the other one in its next heartbeat."""
    received: list[tuple[int, Event]] = []
    shared_worker = SharedWorker(
        Stub(), ["", ""], lambda: 0.0, lambda gateway, event: received.append((gateway, event))
    )
    shared_worker.describe(2)
    shared_worker.submit(0, submit(7))
    held = (HeldPrefix(0, 40, (1, 2)),)
    shared_worker.pass_on(Step((Delta(1, (5,)),), prefixes=held))
    shared_worker.pass_on(Heartbeat(Gauges()))
    frames = [(gateway, event) for gateway, event in received if isinstance(event, Step | Heartbeat)]
    assert [(gateway, type(event), event.prefixes) for gateway, event in frames] == [
        (0, Step, held),
        (0, Heartbeat, ()),
        (1, Heartbeat, held),
    ]


async def test_rows_go_to_the_gateway_that_asked_for_them() -> None:
    received: list[tuple[int, Event]] = []
    stub = Stub()
    worker = SharedWorker(stub, ["one/", "two/"], lambda: 0.0, lambda gateway, event: received.append((gateway, event)))
    worker.describe(4)
    worker.submit(0, submit(7))
    worker.submit(1, submit(7))
    first, second = (each.stream for each in stub.sent if isinstance(each, Submit))
    worker.ask_rows(1, ReadRows(5, 1, 7, 0, 4))
    worker.ask_rows(0, WriteRows(6, 1, "t", 0, (5,), b"row", b"digest"))
    assert first != second
    assert stub.sent[2:] == [ReadRows(5, 1, second, 0, 4), WriteRows(6, 1, "one/t", 0, (5,), b"row", b"digest")]
    worker.pass_on(Rows(5))
    worker.pass_on(RowsWritten(6, 1))
    worker.pass_on(RowsWritten(6, 1))
    assert received == [(1, Rows(5)), (0, RowsWritten(6, 1))]
    worker.ask_rows(0, ReadRows(8, 1, 99, 0, 4))
    assert received[2:] == [(0, Rows(8))], "a stream that is not its own"
    for query in range(100, 101 + MAX_ROW_QUESTIONS // 2):
        worker.ask_rows(0, ReadRows(query, 1, 7, 0, 4))
    assert received[3:] == [(0, Rows(query))], "it has its share of the questions"


def test_replicas_of_one_gateway_share_kv() -> None:
    def at(host: str, server: str) -> GatewayAddress:
        return GatewayAddress(f"tcp://{host}:1", JoinKeys(CurveKeys("p", "s", server=server)))

    assert tenant_prefixes([at("g1", "k"), at("g2", "k")]) == ["", ""]
    first, second, third = tenant_prefixes([at("g1", "k"), at("g2", "k"), at("g3", "other")])
    assert first == second != third


@pytest.mark.parametrize("end", ["lost", "garbage", "a second welcome"])
async def test_the_end_of_one_link_frees_its_slots_at_once_and_is_nothing_to_the_other_one(
    tmp_path: Path, end: str
) -> None:
    async with shared(tmp_path, slots=2) as there:
        gone = await there.submit(there.a, 1, 2)
        (stays,) = await there.submit(there.b, 1)
        there.a.say(submit(3))  # it waits: the worker is full
        there.b.say(submit(2))
        with capture_logs():
            match end:
                case "lost":
                    there.a.door.requests[0].link.close(0)
                case "garbage":
                    there.a.door.requests[0].link.send_nowait([b"\xc1"])
                case _:
                    there.a.door.requests[0].link.send_nowait([encode(Welcome(2))])
            await there.a.until(lambda: there.cancelled == gone)
        assert [each.stream for each in there.submitted] == [*gone, stays], "3 of the lost one never gets there"
        there.happens(Finished(gone[0], "cancelled", USAGE))
        await there.b.until(lambda: len(there.submitted) == 4)
        last = there.submitted[-1].stream
        there.happens(Step((Delta(stays, (1,)), Delta(last, (2,))), Gauges(steps=1)))
        await there.b.until_received(Step((Delta(1, (1,)), Delta(2, (2,))), Gauges(steps=1, reached=0, others=1)))
        assert len(there.a.door.requests) == 1, "its next link waits for the end of what the last one had"
        there.happens(Finished(gone[1], "cancelled", USAGE))
        await there.a.until(lambda: len(there.a.door.requests) == 2)
        assert (len(there.b.door.requests), there.b.door.lost) == (1, [])


class Cable(ProxyEnd):
    """A connection to an entrance, which can stall: then nothing passes, and neither end learns it."""

    def __init__(self, port: int) -> None:
        super().__init__(lambda: None)
        self._port = port
        self._far = ProxyEnd(lambda: None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self._far, "127.0.0.1", self._port)
        self.join(self._far)

    def stall(self) -> None:
        self.transport.pause_reading()
        self._far.transport.pause_reading()


async def test_a_gateway_that_is_out_of_reach_loses_its_slots_within_the_time_of_a_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_socket, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(zmq_socket, "HEARTBEAT_TIMEOUT_MS", 500)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    cables: list[Cable] = []

    async with entrance(tmp_path / "a") as first, entrance(tmp_path / "b") as second:

        def cable() -> Cable:
            cables.append(Cable(first.port))
            return cables[-1]

        server = await asyncio.get_running_loop().create_server(cable, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        through = GatewayAddress(f"tcp://127.0.0.1:{port}", JoinKeys(first.keys()))
        async with server, agent(through, address_of(second)) as made:
            pair = Pair(made, (first, second))
            made.worker_is(replace(SERVES, hello=replace(HELLO, slots=4)))
            for each in (pair.a, pair.b):
                await each.until_received(READY)
            lost = await pair.submit(pair.a, 1, 2)
            (stays,) = await pair.submit(pair.b, 1)
            with capture_logs():
                cables[0].stall()
                await pair.a.until(lambda: pair.cancelled == lost)
            pair.happens(Step((Delta(stays, (1,)),), Gauges(steps=1)))
            await pair.b.until_received(Step((Delta(1, (1,)),), Gauges(steps=1, others=2)))
            assert pair.b.door.lost == []
            for one in cables:
                one.abort()


async def test_a_gateway_that_does_not_take_its_output_is_left_and_the_other_one_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared(tmp_path) as there:
        (first,) = await there.submit(there.a, 1)
        (second,) = await there.submit(there.b, 1)
        full = there.agent.connections[0].link

        def send(link: Link, frames: Sequence[bytes]) -> None:
            if full is not None and link is full._link:
                raise LinkFull("1024 messages wait already")
            take(link, frames)

        take = Link.send_nowait
        monkeypatch.setattr(Link, "send_nowait", send)
        with capture_logs() as logged:
            there.happens(Step((Delta(first, (1,)), Delta(second, (2,))), Gauges(steps=1)))
            await there.b.until_received(Step((Delta(1, (2,)),), Gauges(steps=1, others=1)))
            await there.a.until(lambda: there.cancelled == [first])
        reasons = [line["reason"] for line in logged if line["event"] == "not_joined"]
        assert reasons == ["the gateway takes nothing any more"]
        assert there.b.door.lost == []


async def test_a_gateway_that_does_not_answer_keeps_no_other_one_waiting(tmp_path: Path) -> None:
    async with entrance(tmp_path) as door:
        nowhere = GatewayAddress("tcp://127.0.0.1:9", JoinKeys(door.keys()))
        with capture_logs():
            async with agent(nowhere, address_of(door)) as made:
                made.worker_is(SERVES)
                await door.until(lambda: bool(door.received))


@pytest.mark.parametrize("command", [Drain(60_000), Stop()], ids=["drain", "stop"])
async def test_a_gateway_that_lets_it_leave_does_not_end_the_process(tmp_path: Path, command: Drain | Stop) -> None:
    async with shared(tmp_path) as there:
        (first,) = await there.submit(there.a, 1)
        await there.submit(there.b, 1)
        there.a.say(command)
        if isinstance(command, Drain):
            refused = Failed(2, ErrorCode.DRAINING, "the worker leaves the gateway")
            asked = Tokenize(7, "r", TokensInput((1,)))
            there.a.say(submit(2), asked)
            answer = Tokenized(7, text="the worker leaves the gateway", code=ErrorCode.DRAINING)
            await there.a.until_received(refused, answer)
            there.happens(Finished(first, "stop", USAGE))
            last: Finished | Failed = Finished(1, "stop", USAGE)
        else:
            last = Failed(1, ErrorCode.DRAINING, "the worker leaves the gateway, and there is no grace any more")
        await there.a.until_received(last, Bye(ByeReason.STOPPED, "the worker left the gateway, as that had asked"))
        await there.a.until(lambda: (there.cancelled == [first]) is isinstance(command, Stop))
        assert [type(each).__name__ for each in there.stub.inbox.messages] == ["StartWorker"]
        assert there.b.door.lost == []


async def test_a_grace_that_is_over_returns_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.01)
    async with shared(tmp_path) as there:
        (first,) = await there.submit(there.a, 1)
        there.a.say(Drain(1))
        rest = Failed(1, ErrorCode.DRAINING, "the worker leaves the gateway, and there is no grace any more")
        await there.a.until_received(rest, Bye(ByeReason.STOPPED, "the worker left the gateway, as that had asked"))
        await there.a.until(lambda: there.cancelled == [first])


async def test_all_are_notified_of_a_death_and_what_never_got_there_is_returned(tmp_path: Path) -> None:
    async with shared(tmp_path, slots=1) as there:
        await there.submit(there.a, 1, 2)
        there.b.say(submit(1))
        await there.b.until(lambda: there.agent.live(1))
        there.agent.tell(IncarnationLost("w", 5, "it died", Origin.WITHIN))
        returned = Failed(1, ErrorCode.DRAINING, "the worker ended before it got the request")
        await there.b.until_received(returned, Bye(ByeReason.DIED, "it died"))
        await there.a.until(lambda: Bye(ByeReason.DIED, "it died") in there.a.received)


@pytest.mark.parametrize(
    ("origin", "begun", "reasons"),
    [
        (Origin.WITHIN, True, [ByeReason.DIED, ByeReason.KILLED]),
        (Origin.WITHIN, False, [ByeReason.DIED] * 2),
        (Origin.OUTSIDE, False, [ByeReason.KILLED] * 2),
    ],
)
async def test_a_death_is_attributed_to_the_gateways_with_a_suspect_or_a_request_without_a_token(
    tmp_path: Path, origin: Origin, begun: bool, reasons: list[ByeReason]
) -> None:
    async with shared(tmp_path) as there:
        there.a.say(replace(submit(1), suspect=True))
        await there.a.until(lambda: len(there.submitted) == 1)
        (number,) = await there.submit(there.b, 1)
        if begun:
            there.happens(Step((Delta(number, (7,), "x"),)))
        there.agent.tell(IncarnationLost("w", 5, "it died", origin))
        for gateway, reason in zip((there.a, there.b), reasons, strict=True):
            await gateway.until_received(Bye(reason, "it died"))


async def test_queries_are_shared_out_and_answered_to_those_who_asked(tmp_path: Path) -> None:
    assert MAX_QUERIES == tokenize_queue.MAX_QUERIES
    async with shared(tmp_path) as there:
        source = TokensInput((1,))
        there.a.say(*(Tokenize(number, "r", source) for number in range(1, MAX_QUERIES)))
        refused = [
            Tokenized(number, text="32 queries of this gateway are waiting already", code=ErrorCode.OVERLOADED)
            for number in range(33, MAX_QUERIES)
        ]
        await there.a.until_received(*refused)
        there.b.say(Tokenize(100, "r", source))
        await there.b.until(lambda: len(there.stub.sent) == 33)
        there.happens(Tokenized(100, 1), Tokenized(32, 1))
        await there.b.until_received(Tokenized(100, 1))
        await there.a.until_received(Tokenized(32, 1))


async def test_what_waits_for_too_long_is_ended_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.01)
    async with shared(tmp_path, slots=1) as there:
        await there.submit(there.a, 1, 2)
        late = submit(1)
        there.b.say(replace(late, limits=replace(late.limits, deadline_ms=1)))
        text = "the deadline passed before the worker had room"
        await there.b.until(lambda: Failed(1, ErrorCode.DEADLINE, text) in there.b.received)
