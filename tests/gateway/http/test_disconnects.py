"""Clients that leave, or take nothing: the slot is free at once, whatever the request was doing."""

import socket

import anyio
import anyio.lowlevel
import pytest

from tests.gateway.harness.serving import CHAT, COMPLETION, open_raw, serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("abort", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("tokens", [0, 1, 3], ids=["before the first token", "after one", "after three"])
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_client_that_leaves_frees_its_slot(path: str, streaming: bool, tokens: int, abort: bool) -> None:
    body = (COMPLETION if path == "/v1/completions" else CHAT) | {"stream": streaming, "n": 2}
    async with serving() as served:
        stream = await open_raw(served.port, path, body)
        async with stream:
            submits = await served.worker.wait_submits(2)
            for i in range(tokens):
                for submit in submits:
                    served.worker.token(submit.stream, f"{i}", i)
            if streaming and tokens:
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            if abort:
                raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        cancels = await served.worker.wait_cancels(2)
        assert sorted(cancels) == [submit.stream for submit in submits]
        assert served.live == 0
        assert len(served.worker.sent) == 2, "one message of submits, one of cancels"
        # The gateway goes on, and the cancelled are not ended again by what the worker still says.
        for submit in submits:
            served.worker.token(submit.stream, "late", 9)
            served.worker.finish(submit.stream)
        assert (await served.client.get("/health/live")).status_code == 200


@pytest.mark.parametrize("moment", ["at once", "after its answer", "while it waits"])
async def test_the_connection_of_a_client_that_leaves_is_closed(moment: str) -> None:
    """Not only when it would have been idle for too long, which here is longer than the test may take."""
    async with serving(keep_alive_s=3600) as served:
        if moment == "at once":
            stream = await anyio.connect_tcp("127.0.0.1", served.port)
        else:
            stream = await open_raw(served.port, "/v1/completions", COMPLETION)
        async with stream:
            await served.until(lambda: served.listener.connections == 1)
            if moment != "at once":
                (submit,) = await served.worker.wait_submits(1)
            if moment == "after its answer":
                served.worker.finish(submit.stream, "all")
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
        await served.until(lambda: served.listener.connections == 0)
        assert (await served.client.get("/health/live")).status_code == 200


async def test_a_client_that_has_its_answer_cancels_nothing() -> None:
    async with serving() as served:
        stream = await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True})
        async with stream:
            (submit,) = await served.worker.wait_submits(1)
            served.worker.finish(submit.stream, "all")
            got = b""
            while b"data: [DONE]\n\n\r\n0\r\n\r\n" not in got:
                got += await stream.receive()
            # The connection is good for another request.
            other = await open_raw(served.port, "/v1/completions", COMPLETION)
            async with other:
                (_, again) = await served.worker.wait_submits(2)
                served.worker.finish(again.stream, "all")
                assert (await other.receive()).startswith(b"HTTP/1.1 200")
        assert served.worker.cancels == []


async def test_one_connection_serves_many_requests() -> None:
    async with serving() as served:
        for round_number in range(1, 4):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: served.client.post("/v1/completions", json=COMPLETION | {"stream": True}))
                submits = await served.worker.wait_submits(round_number)
                served.worker.finish(submits[-1].stream, "x")
        assert served.worker.cancels == []


async def test_a_client_that_leaves_while_it_sends_is_nobody() -> None:
    async with serving() as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await stream.send(head + b"Content-Length: 1000\r\n\r\n{")
        await stream.aclose()
        assert (await served.client.get("/health/live")).status_code == 200
        assert served.worker.sent == []


async def test_a_client_that_takes_nothing_is_dropped_and_holds_nobody_up() -> None:
    async with serving(client_stall_s=0.3) as served:
        slow = await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True, "max_tokens": 1 << 20})
        raw = slow.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with slow:
            (submit,) = await served.worker.wait_submits(1)
            # More than the socket buffers of both sides hold; the loop turns so that each is sent on its own.
            flood = "x" * 1_000_000
            for i in range(16):
                served.worker.token(submit.stream, flood, i)
                await anyio.lowlevel.checkpoint()
                assert (await served.client.get("/health/live")).status_code == 200, "others are served"
            assert await served.worker.wait_cancels(1) == [submit.stream]
        assert served.live == 0


async def test_a_slow_client_that_takes_a_little_loses_nothing() -> None:
    async with serving(client_stall_s=5) as served:
        slow = await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True, "max_tokens": 1000})
        async with slow:
            (submit,) = await served.worker.wait_submits(1)
            for i in range(200):
                served.worker.token(submit.stream, f"<{i}>" + "x" * 20_000, i)
                if i % 50 == 0:
                    await anyio.lowlevel.checkpoint()
            served.worker.finish(submit.stream)
            parts: list[bytes] = []
            while not parts or b"[DONE]" not in parts[-1]:
                parts.append(await slow.receive(16384))
        assert b"".join(parts).count(b"x") >= 200 * 20_000
        assert served.worker.cancels == []
