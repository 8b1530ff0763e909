"""Readers of a kept stream, their positions, and who takes it over: the real app without sockets, in virtual time."""

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.streaming.resumable import StreamState
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.streaming.resuming import KEPT, gateway, last_id, stream_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


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


async def test_the_newest_reader_has_the_stream_and_the_other_one_gets_an_error() -> None:
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
        assert served.count(StreamState.DELIVERED) == 1


@pytest.mark.parametrize("read", [True, False], ids=["while it is read", "while nobody reads"])
async def test_a_client_can_cancel(read: bool) -> None:
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


async def test_a_stream_that_is_dropped_just_when_it_gets_something_has_no_false_end() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        await anyio.sleep(0.1)  # until it waits for more
        stream = served.streams.find(stream_id(connection), b"")
        served.worker.token(number, "two", 2)
        served.streams.cancel(stream)
        await connection.ended.wait()
        assert b'"code":"stream_cancelled"' in connection.events[1]
        assert len(connection.events) == 3


async def test_a_connection_that_resumes_what_is_being_dropped_gets_an_error() -> None:
    async with gateway() as served:
        connection, _ = await served.begin()
        path = f"/v1/streams/{stream_id(connection)}"
        again, gone = served.open("GET", path), served.open("DELETE", path)
        for each in (connection, again, gone):
            await each.ended.wait()
        assert (again.status, gone.status) == (404, 204)
        assert [served.count(state) for state in StreamState] == [0, 0, 0]


async def test_what_a_client_did_not_take_was_not_delivered() -> None:
    async with gateway(client_stall_s=5) as served:
        connection, number = await served.begin()
        connection.stalled = True
        served.worker.finish(number, "two")
        await connection.ended.wait()
        assert served.count(StreamState.DETACHED) == 1
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
