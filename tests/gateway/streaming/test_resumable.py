"""Kept streams, their time, owners and number: the real app without sockets, in virtual time."""

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.streaming.resumable import StreamState
from protocol.errors import ErrorCode
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.streaming.resuming import KEPT, gateway, last_id, stream_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_a_stream_is_kept_for_so_long_and_no_longer() -> None:
    async with gateway() as served:
        for wait_s, status in ((59.9, 200), (60.1, 404)):
            connection, number = await served.begin()
            await connection.leave()
            assert served.count(StreamState.DETACHED) == 1
            await anyio.sleep(wait_s)
            assert (number in served.worker.cancels) == (status == 404), "it computes while its client may come back"
            again = served.open("GET", f"/v1/streams/{stream_id(connection)}")
            if status == 200:
                assert await again.until(1) == connection.events
                assert served.count(StreamState.READ) == 1
                served.worker.finish(number)
            await again.ended.wait()
            assert again.status == status
        assert again.error["code"] == "stream_not_found"
        assert served.outcomes() == {"resumed": 1, "expired": 1}
        assert not any(handle.live for handle in served.router.pool)


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
        assert served.count(StreamState.DETACHED) == 1
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


async def test_a_client_that_did_not_get_the_id_cannot_resume() -> None:
    async with gateway() as served:
        connection = served.open("POST", "/v1/completions", KEPT)
        (submit,) = await served.worker.wait_submits(1)
        await connection.leave()
        assert served.worker.cancels == [submit.stream]
        assert [served.count(state) for state in StreamState] == [0, 0, 0]


async def test_what_was_delivered_whole_is_kept_too_and_then_known_to_be_over() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        served.worker.finish(number, "two")
        await connection.ended.wait()
        assert served.count(StreamState.DELIVERED) == 1
        path = f"/v1/streams/{stream_id(connection)}"
        again = await served.ask("GET", path, last_event_id=last_id(connection, 0))
        assert again.events == connection.events[1:]
        assert again.whole
        assert (await served.ask("GET", path, last_event_id=last_id(connection))).status == 204
        await anyio.sleep(61)
        assert (await served.ask("GET", path)).status == 404
        assert [served.count(state) for state in StreamState] == [0, 0, 0]
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
        assert served.count(StreamState.DETACHED) == 1
        again = await served.ask("GET", f"/v1/streams/{stream_id(connection)}", last_event_id=last_id(connection))
        found = [json.loads(event.split(b"data: ")[1]) for event in again.events[:-1]]
        if end == "finished":
            assert found[0]["choices"][0]["text"] == "two"
        else:
            assert found[0]["error"]["code"] == ("step_failed" if end == "failed" else "deadline_exceeded")
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
            assert served.count(StreamState.READ) == 1, "nobody else can even disturb it"
        served.worker.finish(number)
        await connection.ended.wait()
        assert (await served.ask("GET", path, **theirs)).status == status


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


async def test_a_draining_gateway_still_serves_what_it_keeps() -> None:
    async with gateway() as served:
        connection, number = await served.begin()
        await connection.leave()
        served.router.admission.drain_nowait()
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
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.streams.none_left)
            await anyio.wait_all_tasks_blocked()
            served.streams.close()  # the delivered stream was kept until now
        assert [served.count(state) for state in StreamState] == [0, 0, 0]


async def test_a_stream_goes_on_with_another_worker_while_nobody_reads() -> None:
    async with gateway() as served:
        connection, _ = await served.begin()
        await connection.leave()
        served.worker.die()
        again = served.open("GET", f"/v1/streams/{stream_id(connection)}")
        await anyio.sleep(11)
        assert again.body.endswith(b": waiting\n: waiting\n")
        served.worker.come_back()
        replayed = (await served.worker.wait_submits(2))[-1]
        assert replayed.resume == (1,)
        served.worker.finish(replayed.stream, "two")
        await again.ended.wait()
        assert again.events[0] == connection.events[0]
        assert json.loads(again.events[1].split(b"data: ")[1])["choices"][0]["text"] == "two"
        assert again.body.count(b": waiting\n") == 2, "and no comment once there is something to send"
