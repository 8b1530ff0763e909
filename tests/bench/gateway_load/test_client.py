"""The client of many streams: its counts, and the failures that it notices."""

import asyncio

import pytest

from bench.gateway_load.client import Received, stream_all

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNK = b'data: {"choices": [{"index": 0}]}\n\n'
END = b"data: [DONE]\n\n"


async def streamed(answer: bytes, streams: int) -> Received:
    """Return what the client receives from a server that sends `answer` to each request and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        received, seconds = await stream_all(server.sockets[0].getsockname()[1], streams, 3)
    assert seconds > 0
    return received


def test_chunks_of_all_streams_are_counted() -> None:
    received = asyncio.run(streamed(HEAD + 3 * CHUNK + END, 4))
    assert (received.chunks, received.errors) == (12, [])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n" + END, "503"),
        (HEAD + CHUNK, "the connection broke off"),
        (HEAD + b'data: {"error": {"code": "worker_lost"}}\n\n' + END, "worker_lost"),
    ],
)
def test_a_stream_that_fails_is_an_error(answer: bytes, problem: str) -> None:
    received = asyncio.run(streamed(answer, 1))
    assert len(received.errors) == 1
    assert problem in received.errors[0]


def test_a_port_without_a_server_is_an_error() -> None:
    async def refused() -> Received:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        received, _ = await stream_all(port, 2, 3)
        return received

    received = asyncio.run(refused())
    assert [error.partition(":")[0] for error in received.errors] == ["no connection"] * 2
