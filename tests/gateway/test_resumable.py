"""How long streams are kept, for whom and how many: the real app without sockets, in virtual time."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app import create_app
from gateway.pickup import PickUp
from gateway.resumable import ResumableStreams, State
from gateway.router import Router
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from tests.gateway.asgi import Clients, Connection, clients
from tests.gateway.fakes import FakeWorker
from tests.gateway.serving import CHAT, COMPLETION
from tests.gateway.virtual import BACKEND, VirtualLoop

pytestmark = pytest.mark.anyio
KEPT = COMPLETION | {"stream": True, "stream_options": {"resume_s": 60}, "max_tokens": 100}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


class Gateway:
    """The app over a fake worker, and its clients."""

    def __init__(self, made: Clients, router: Router, worker: FakeWorker, streams: ResumableStreams) -> None:
        self.open = made.open
        self.ask = made.ask
        self.router = router
        self.worker = worker
        self.streams = streams

    async def begin(self, body: dict[str, Any] = KEPT, **headers: str) -> tuple[Connection, int]:
        """A stream whose client has its first event, and its number at the worker."""
        known = len(self.worker.submits)
        connection = self.open("POST", "/v1/completions", body, **headers)
        submit = (await self.worker.wait_submits(known + 1))[-1]
        self.worker.token(submit.stream, "one", 1)
        await connection.until(1)
        return connection, submit.stream

    def count(self, state: State) -> int:
        return int(_metric(self.router, f'baton_resumable_streams{{state="{state}"}}'))

    def outcomes(self) -> dict[str, int]:
        found = re.findall(r'baton_stream_detachments_total\{.*outcome="(\w+)"\} (\d+)', _text(self.router))
        return {outcome: int(count) for outcome, count in found}


def _text(router: Router) -> str:
    return router.metrics.render().decode()


def _metric(router: Router, name: str) -> float:
    return float(_text(router).split(name + " ")[1].split("\n")[0])


@asynccontextmanager
async def gateway(**chosen: Any) -> AsyncIterator[Gateway]:
    made = GatewaySettings(**chosen)
    router = Router(made)
    worker = FakeWorker(slots=64, context=4096).join(router)
    streams = ResumableStreams(made, router.metrics)
    async with clients(create_app(router, made, pick_up=PickUp(made, streams))) as opened:
        yield Gateway(opened, router, worker, streams)


def stream_id(connection: Connection) -> str:
    return connection.headers["x-stream-id"]


def last_id(connection: Connection, index: int = -1) -> str:
    return connection.events[index].split(b"\n")[0].removeprefix(b"id: ").decode()


async def test_a_stream_is_kept_for_so_long_and_no_longer() -> None:
    async with gateway() as served:
        for wait_s, status in ((59.9, 200), (60.1, 404)):
            connection, number = await served.begin()
            await connection.leave()
            assert served.count(State.DETACHED) == 1
            await anyio.sleep(wait_s)
            assert (number in served.worker.cancels) == (status == 404), "it computes while its client may come back"
            again = served.open("GET", f"/v1/streams/{stream_id(connection)}")
            if status == 200:
                assert await again.until(1) == connection.events
                assert served.count(State.READ) == 1
                served.worker.finish(number)
            await again.ended.wait()
            assert again.status == status
        assert again.error["code"] == "stream_not_found"
        assert served.outcomes() == {"resumed": 1, "expired": 1}
        assert not any(seat.live for seat in served.router.seats())


@pytest.mark.parametrize("last", [False, True])
async def test_a_connection_that_breaks_while_something_is_sent_ends_no_stream(last: bool) -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        connection.broken = True
        if not last:
            served.worker.token(number, "two", 2)
            await connection.ended.wait()
        served.worker.finish(number)
        await connection.ended.wait()
        assert served.count(State.DETACHED) == 1
        again = await served.ask("GET", f"/v1/streams/{stream_id(connection)}")
        assert [b"error" in event for event in again.events] == [False] * len(again.events)
        assert again.events[-1].endswith(b"[DONE]")
        assert len([event for event in again.events if event.endswith(b"[DONE]")]) == 1


async def test_each_reader_gets_the_whole_time_again() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        for _ in range(3):
            await connection.leave()
            await anyio.sleep(50)
            connection = served.open("GET", f"/v1/streams/{stream_id(connection)}")
            await connection.until(1)
            await anyio.sleep(50)
        assert served.worker.cancels == []
        await connection.leave()
        await anyio.sleep(61)
        assert served.worker.cancels == [number]
        assert served.outcomes() == {"resumed": 3, "expired": 1}


async def test_who_did_not_ask_for_it_is_not_waited_for() -> None:
    async with gateway() as served:
        connection, number = await served.begin(COMPLETION | {"stream": True})
        assert "x-stream-id" not in connection.headers
        await connection.leave()
        assert served.worker.cancels == [number]
        again = await served.ask("GET", f"/v1/streams/{last_id(connection).rpartition('-')[0]}")
        assert again.status == 404
        assert served.outcomes() == {}


async def test_who_was_not_told_the_id_cannot_come_back() -> None:
    async with gateway() as served:
        connection = served.open("POST", "/v1/completions", KEPT)
        (submit,) = await served.worker.wait_submits(1)
        await connection.leave()
        assert served.worker.cancels == [submit.stream]
        assert [served.count(state) for state in State] == [0, 0, 0]


async def test_what_was_delivered_whole_is_kept_too_and_then_known_to_be_over() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        served.worker.finish(number, "two")
        await connection.ended.wait()
        assert served.count(State.DELIVERED) == 1
        path = f"/v1/streams/{stream_id(connection)}"
        again = await served.ask("GET", path, last_event_id=last_id(connection, 0))
        assert again.events == connection.events[1:]
        assert again.whole
        assert (await served.ask("GET", path, last_event_id=last_id(connection))).status == 204
        await anyio.sleep(61)
        assert (await served.ask("GET", path)).status == 404
        assert [served.count(state) for state in State] == [0, 0, 0]
        assert served.worker.cancels == []


@pytest.mark.parametrize("end", ["finished", "failed", "too late"])
async def test_a_stream_may_end_while_nobody_reads(end: str) -> None:
    async with gateway(request_timeout_s=5, max_resume_s=60) as served:
        connection, number = await served.begin()
        await connection.leave()
        if end == "finished":
            served.worker.finish(number, "two")
        elif end == "failed":
            served.worker.fail(number, ErrorCode.STEP, "no")
            served.worker.fail(number + 1, ErrorCode.STEP, "no")  # its second try
        else:
            await anyio.sleep(10)
        assert served.count(State.DETACHED) == 1
        again = await served.ask("GET", f"/v1/streams/{stream_id(connection)}", last_event_id=last_id(connection))
        told = [json.loads(event.split(b"data: ")[1]) for event in again.events[:-1]]
        if end == "finished":
            assert told[0]["choices"][0]["text"] == "two"
        else:
            assert told[0]["error"]["code"] == ("step_failed" if end == "failed" else "deadline_exceeded")
        assert again.events[-1].endswith(b"data: [DONE]")


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [
        ("Bearer a", "Bearer a", 200),
        ("Bearer a", "Bearer b", 404),
        ("Bearer a", None, 404),
        (None, "Bearer a", 404),
        ("Bearer a", "Basic OmE=", 200),
        ("Basic OmE=", "Basic OmI=", 404),
    ],
)
async def test_a_stream_belongs_to_the_key_that_asked_for_it(one: str | None, other: str | None, status: int) -> None:
    mine = {"authorization": one} if one else {}
    theirs = {"authorization": other} if other else {}
    async with gateway() as served:
        connection, number = await served.begin(**mine)
        path = f"/v1/streams/{stream_id(connection)}"
        if status == 404:
            assert (await served.ask("GET", path, **theirs)).status == 404
            assert (await served.ask("DELETE", path, **theirs)).status == 404
            assert served.count(State.READ) == 1, "nobody else can even disturb it"
        served.worker.finish(number)
        await connection.ended.wait()
        assert (await served.ask("GET", path, **theirs)).status == status


async def test_there_are_so_many_and_the_delivered_give_way() -> None:
    async with gateway(max_resumable_streams=2) as served:
        first, number = await served.begin()
        second, _ = await served.begin()
        refused = await served.ask("POST", "/v1/completions", KEPT)
        assert (refused.status, refused.error["code"]) == (429, "overloaded")
        assert "retry-after" in refused.headers
        ordinary, _ = await served.begin(COMPLETION | {"stream": True})
        assert ordinary.status == 200
        await second.leave()
        assert (await served.ask("POST", "/v1/completions", KEPT)).status == 429, "what was promised is kept"
        served.worker.finish(number)
        await first.ended.wait()
        third, _ = await served.begin()
        assert third.status == 200
        assert (await served.ask("GET", f"/v1/streams/{stream_id(first)}")).status == 404
        again = served.open("GET", f"/v1/streams/{stream_id(second)}")
        assert await again.until(1) == second.events


@pytest.mark.parametrize(
    ("chosen", "resume_s", "status"),
    [
        ({"max_resume_s": 5}, 5, 200),
        ({"max_resume_s": 5}, 5.01, 400),
        ({"max_resume_s": 0}, 0, 200),
        ({"max_resume_s": 0}, 0.01, 400),
        ({"max_resumable_streams": 0}, 1, 400),
        ({}, -1, 400),
        ({}, "1", 400),
    ],
)
async def test_how_long_a_client_may_ask_for(chosen: dict[str, Any], resume_s: Any, status: int) -> None:
    async with gateway(**chosen) as served:
        connection = served.open("POST", "/v1/completions", KEPT | {"stream_options": {"resume_s": resume_s}})
        if status == 200:
            (submit,) = await served.worker.wait_submits(1)
            served.worker.finish(submit.stream)
        await connection.ended.wait()
        assert connection.status == status
        if status == 400:
            assert connection.error["param"] == "stream_options.resume_s"


async def test_what_is_over_the_buffer_is_gone() -> None:
    async with gateway(resume_buffer_bytes=600) as served:
        connection, number = await served.begin()
        for i in range(10):
            served.worker.token(number, "more", i)
            await connection.until(i + 2)
        await connection.leave()
        path, kept = f"/v1/streams/{stream_id(connection)}", []
        for after in range(12):
            again = served.open("GET", path, query=f"starting_after={after}")
            await anyio.sleep(0.1)
            if again.status == 200:
                kept.append(after)
                assert again.events == connection.events[after:]
                await again.leave()
            else:
                assert (again.status, again.error["code"]) == (410, "events_gone")
        size = len(connection.events[-1]) + 2
        assert kept == list(range(11 - 600 // size, 12))


@pytest.mark.parametrize(
    ("query", "header", "param"),
    [
        ("starting_after=2", "", "starting_after"),
        ("starting_after=x", "", "starting_after"),
        ("starting_after=-1", "", "starting_after"),
        ("starting_after=0&starting_after=1", "", "starting_after"),
        ("from=1", "", "from"),
        ("", "{id}-2", "Last-Event-ID"),
        ("", "{id}-x", "Last-Event-ID"),
        ("", "{id}-", "Last-Event-ID"),
        ("", "cmpl-of-another-1", "Last-Event-ID"),
        ("", "1", "Last-Event-ID"),
    ],
)
async def test_a_position_that_is_none_is_refused_and_takes_nothing(query: str, header: str, param: str) -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        headers = {"last_event_id": header.format(id=stream_id(connection))} if header else {}
        refused = await served.ask("GET", f"/v1/streams/{stream_id(connection)}", query=query, **headers)
        assert (refused.status, refused.error["param"]) == (400, param)
        served.worker.finish(number)
        await connection.ended.wait()
        assert connection.events[-1].endswith(b"[DONE]"), "the first reader was not disturbed"


async def test_the_header_overrules_the_address() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        served.worker.token(number, "two", 2)
        await connection.until(2)
        await connection.leave()
        path = f"/v1/streams/{stream_id(connection)}"
        again = served.open("GET", path, query="starting_after=0", last_event_id=last_id(connection, 0))
        assert await again.until(1) == connection.events[1:]


async def test_the_newest_reader_has_the_stream_and_the_other_one_is_told() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        readers = [connection]
        for i in range(3):
            readers.append(served.open("GET", f"/v1/streams/{stream_id(connection)}"))
            await readers[-1].until(i + 1)
            await readers[-2].ended.wait()
            served.worker.token(number, "more", i)
            await readers[-1].until(i + 2)
        for ousted in readers[:-1]:
            assert ousted.whole
            assert b'"code":"stream_taken"' in ousted.events[-2]
            assert ousted.events[-1] == b"data: [DONE]"
        served.worker.finish(number)
        await readers[-1].ended.wait()
        events = readers[-1].events
        assert [event.split(b"\n")[0].rpartition(b"-")[2] for event in events] == [b"1", b"2", b"3", b"4", b"5", b"6"]
        for ousted in readers[:-1]:
            assert events[: len(ousted.events) - 2] == ousted.events[:-2]
        assert served.worker.cancels == []


async def test_of_many_that_come_at_once_one_gets_the_stream() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        await connection.leave()
        many = [served.open("GET", f"/v1/streams/{stream_id(connection)}") for _ in range(8)]
        await anyio.sleep(1)
        served.worker.finish(number, "end")
        for reader in many:
            await reader.ended.wait()
        whole = [reader for reader in many if b"stop" in reader.body]
        assert len(whole) == 1
        assert whole[0].events[0] == connection.events[0]
        assert all(b"stream_taken" in reader.body for reader in many if reader not in whole)
        assert served.count(State.DELIVERED) == 1


@pytest.mark.parametrize("read", [True, False], ids=["while it is read", "while nobody reads"])
async def test_a_client_can_let_go(read: bool) -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        if not read:
            await connection.leave()
        path = f"/v1/streams/{stream_id(connection)}"
        assert (await served.ask("DELETE", path)).status == 204
        await connection.ended.wait()
        assert served.worker.cancels == [number]
        assert (b"stream_cancelled" in connection.body) == read
        assert (await served.ask("DELETE", path)).status == 404
        assert (await served.ask("GET", path)).status == 404
        assert served.outcomes() == ({} if read else {"cancelled": 1})
        await anyio.sleep(100)
        assert served.worker.cancels == [number], "it is released once"


async def test_a_stream_that_is_let_go_of_just_when_it_gets_something_has_no_false_end() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        await anyio.sleep(0.1)  # until it waits for more
        stream = served.streams.find(stream_id(connection), b"")
        served.worker.token(number, "two", 2)
        served.streams.cancel(stream)
        await connection.ended.wait()
        assert b'"code":"stream_cancelled"' in connection.events[1]
        assert len(connection.events) == 3


async def test_who_picks_up_what_is_being_let_go_of_is_told() -> None:
    async with gateway() as served:
        connection, _ = await served.begin()
        path = f"/v1/streams/{stream_id(connection)}"
        again, gone = served.open("GET", path), served.open("DELETE", path)
        for each in (connection, again, gone):
            await each.ended.wait()
        assert (again.status, gone.status) == (404, 204)
        assert [served.count(state) for state in State] == [0, 0, 0]


async def test_what_a_client_did_not_take_was_not_delivered() -> None:
    async with gateway(client_stall_s=5) as served:
        connection, number = await served.begin()
        connection.stalled = True
        served.worker.finish(number, "two")
        await connection.ended.wait()
        assert served.count(State.DETACHED) == 1
        again = await served.ask("GET", f"/v1/streams/{stream_id(connection)}", last_event_id=last_id(connection))
        assert again.whole
        assert served.outcomes() == {"resumed": 1}


async def test_a_repeated_request_that_says_where_it_was_gets_the_rest() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        await connection.leave()
        again = served.open("POST", "/v1/completions", KEPT, last_event_id=last_id(connection))
        await anyio.sleep(1)
        served.worker.finish(number, "two")
        await again.ended.wait()
        assert json.loads(again.events[0].split(b"data: ")[1])["choices"][0]["text"] == "two"
        assert len(served.worker.submits) == 1, "it is not asked a second time"
        unknown = await served.ask("POST", "/v1/completions", KEPT, last_event_id="cmpl-unknown-1")
        assert unknown.status == 404


async def test_a_draining_gateway_still_serves_what_it_keeps() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        await connection.leave()
        served.router.drain_nowait()
        again = served.open("GET", f"/v1/streams/{stream_id(connection)}")
        await again.until(1)
        served.worker.finish(number)
        await again.ended.wait()
        assert again.whole
        await served.streams.settled()


async def test_the_end_waits_for_those_that_have_not_got_all() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        for wait in (True, False):
            with anyio.move_on_after(1) as waited:
                await served.streams.settled()
            assert waited.cancelled_caught == wait
            if wait:
                served.worker.finish(number)
                await connection.ended.wait()
        served.streams.close()
        assert [served.count(state) for state in State] == [0, 0, 0]


async def test_a_stream_goes_on_with_another_worker_while_nobody_reads() -> None:
    async with gateway() as served:
        connection, _ = await served.begin()
        await connection.leave()
        served.worker.die()
        again = served.open("GET", f"/v1/streams/{stream_id(connection)}")
        await anyio.sleep(11)
        assert again.body.endswith(b": waiting\n\n: waiting\n\n")
        served.worker.come_back()
        replayed = (await served.worker.wait_submits(2))[-1]
        assert replayed.resume == (1,)
        served.worker.finish(replayed.stream, "two")
        await again.ended.wait()
        assert again.events[0] == connection.events[0]
        assert json.loads(again.events[1].split(b"data: ")[1])["choices"][0]["text"] == "two"


# Any number of breaks, anywhere.


class Watcher:
    """A client that loses its connection now and then, with events on the way that it has not seen."""

    def __init__(self, served: Gateway, connection: Connection) -> None:
        self._served = served
        self._connection = connection
        self.id = stream_id(connection)
        self.seen: list[bytes] = []
        self.known: dict[int, bytes] = {}
        """Every event that was ever sent."""

    async def read(self) -> None:
        await anyio.sleep(0.01)
        at = len(self.seen)
        for number, event in enumerate(self._connection.events, at + 1):
            assert event.startswith(b"id: %s-%d\n" % (self.id.encode(), number))
            assert self.known.setdefault(number, event) == event, "the same event is the same bytes"

    async def lose(self, unseen: int, away_s: float, by_header: bool) -> None:
        await self.read()
        events = self._connection.events
        self.seen += events[: max(0, len(events) - unseen)]
        await self._connection.leave()
        await anyio.sleep(away_s)
        at, path = len(self.seen), f"/v1/streams/{self.id}"
        if by_header and at:
            self._connection = self._served.open("GET", path, last_event_id=f"{self.id}-{at}")
        else:
            self._connection = self._served.open("GET", path, query=f"starting_after={at}")

    async def end(self) -> list[Any]:
        await self._connection.ended.wait()
        assert self._connection.status == 200
        await self.read()
        *chunks, done = [event.split(b"\ndata: ")[1] for event in self.seen + self._connection.events]
        assert done == b"[DONE]"
        return [json.loads(chunk) for chunk in chunks]


actions = st.one_of(
    st.tuples(st.just("token"), st.integers(0, 2), st.sampled_from(["a", "é", "\n\n", "\U0001f600", 'x"y', ""])),
    st.tuples(st.just("lose"), st.integers(0, 9), st.sampled_from([0.0, 0.5, 30.0]), st.booleans()),
    st.tuples(st.just("read")),
    st.tuples(st.just("finish"), st.integers(1, 2)),
)


@given(st.booleans(), st.lists(actions, max_size=25))
@settings(deadline=None, max_examples=60)
def test_no_break_changes_a_stream(chat: bool, script: list[Any]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    loop = VirtualLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(_break(chat, script), 1e6))
    finally:
        loop.close()


async def _break(chat: bool, script: list[Any]) -> None:
    body = (CHAT if chat else COMPLETION) | {"n": 3, "stream": True, "max_tokens": 100, "return_token_ids": True}
    body["stream_options"] = {"resume_s": 60, "include_usage": True}
    async with gateway() as served:
        connection = served.open("POST", "/v1/chat/completions" if chat else "/v1/completions", body)
        numbers = [submit.stream for submit in await served.worker.wait_submits(3)]
        texts, tokens, ended = ["", "", ""], [[0], [0], [0]], [False] * 3
        for number in numbers:
            served.worker.token(number, "", 0)
        await connection.until(1)
        watcher = Watcher(served, connection)
        for count, (action, *rest) in enumerate(script, 1):
            if action == "token" and not ended[rest[0]]:
                texts[rest[0]] += rest[1]
                tokens[rest[0]].append(count)
                served.worker.token(numbers[rest[0]], rest[1], count)
            elif action == "lose":
                await watcher.lose(*rest)
            elif action == "read":
                await watcher.read()
            elif (
                action == "finish"
                and not all(ended[:index] + ended[index + 1 :] for index in rest)
                and not ended[rest[0]]
            ):
                ended[rest[0]] = True
                served.worker.finish(numbers[rest[0]])
        for index in range(3):
            if not ended[index]:
                served.worker.finish(numbers[index])
        *chunks, usage = await watcher.end()
        got: list[list[Any]] = [["", [], 0], ["", [], 0], ["", [], 0]]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            found = got[choice["index"]]
            found[0] += choice["delta"].get("content", "") if chat else choice["text"]
            found[1] += choice.get("token_ids", [])
            found[2] += choice["finish_reason"] == "stop"
        assert got == [[texts[index], tokens[index], 1] for index in range(3)]
        assert usage["choices"] == []
        assert served.worker.cancels == []
        assert served.count(State.READ) == served.count(State.DETACHED) == 0
