"""The framing of a response's body on HTTP/1.1: a client of another implementation gets the app's bytes."""

from typing import Any

import anyio
import h11
import pytest

from actors.transport.log_limit import LogLimit
from gateway.http.conventions import ConventionsByPath, HttpConventions
from gateway.http.listener import Listener
from gateway.http.request_record import RequestRecords
from gateway.http.server import listen, serve
from gateway.openai.errors import OpenAIErrors
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.anyio

BODIES = [b"a", b"", b"\r\n0\r\n\r\n", b"x" * 70_000, "\u00e9\U0001f600".encode(), b"end"]


class Pieces:
    """Sends `BODIES`, with a length if the path is `/length`."""

    conventions = ConventionsByPath(HttpConventions(OpenAIErrors()), {})
    records = RequestRecords((), lambda route, status, reason: None, LogLimit(lambda: 0.0))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % sum(map(len, BODIES)))] if scope["path"] == "/length" else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for body in BODIES:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def listener() -> Any:
    settings = GatewaySettings(port=0, flush_s=0.1)
    made, shutdown = listen(settings), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: serve(Pieces(), settings, shutdown=shutdown, listener=made))
        yield made
        shutdown.set()


@pytest.mark.parametrize(
    ("method", "path", "framing", "whole"),
    [
        ("GET", "/", b"transfer-encoding", True),
        ("GET", "/length", b"content-length", True),
        ("HEAD", "/", b"transfer-encoding", False),
    ],
)
async def test_the_body_is_the_one_of_the_app(
    listener: Listener, method: str, path: str, framing: bytes, whole: bool
) -> None:
    client = h11.Connection(h11.CLIENT)
    async with await anyio.connect_tcp("127.0.0.1", listener.getsockname()[1]) as stream:
        for _ in range(2):  # the connection serves the next request
            request = h11.Request(method=method, target=path, headers=[("host", "localhost")])
            await stream.send((client.send(request) or b"") + (client.send(h11.EndOfMessage()) or b""))
            events: list[Any] = []
            while not events or type(events[-1]) is not h11.EndOfMessage:
                event = client.next_event()
                if event is h11.NEED_DATA:
                    client.receive_data(await stream.receive())
                else:
                    events.append(event)
            assert framing in dict(events[0].headers)
            assert b"".join(event.data for event in events[1:-1]) == (b"".join(BODIES) if whole else b"")
            client.start_next_cycle()


async def test_a_client_of_http_1_0_gets_no_chunks(listener: Listener) -> None:
    async with await anyio.connect_tcp("127.0.0.1", listener.getsockname()[1]) as stream:
        await stream.send(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        received = b"".join([part async for part in stream])  # to the end of the connection
    assert received.partition(b"\r\n\r\n")[2] == b"".join(BODIES)
