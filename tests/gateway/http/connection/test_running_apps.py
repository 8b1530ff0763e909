"""A client that resets its streams starts no more apps at once than it may have streams open."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import StreamEnded

from gateway.http.connection.request_stream import _AppTask
from tests.gateway.harness.serving import serving

pytestmark = pytest.mark.anyio

STREAMS = 100
HEAD = [(":scheme", "http"), (":authority", "localhost")]


async def test_apps_of_streams_that_were_reset_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    running = most = started = 0
    run = _AppTask._run

    async def counted(self: _AppTask, *arguments: Any) -> None:
        nonlocal running, most, started
        running += 1
        started += 1
        most = max(most, running)
        for _ in range(20):  # an app that notices late that its client is gone
            await anyio.lowlevel.checkpoint()
        try:
            await run(self, *arguments)
        finally:
            running -= 1

    monkeypatch.setattr(_AppTask, "_run", counted)
    async with serving() as served, await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        client = H2Connection(H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        for _ in range(3 * STREAMS):
            stream = client.get_next_available_stream_id()
            client.send_headers(stream, [(":method", "GET"), (":path", "/metrics"), *HEAD], end_stream=True)
            client.reset_stream(stream, ErrorCodes.CANCEL)
        last = client.get_next_available_stream_id()
        client.send_headers(last, [(":method", "GET"), (":path", "/health/live"), *HEAD], end_stream=True)
        await raw.send(client.data_to_send())
        ended = False
        while not ended:
            events = client.receive_data(await raw.receive())
            ended = any(isinstance(event, StreamEnded) and event.stream_id == last for event in events)
    assert (started, most) == (3 * STREAMS + 1, STREAMS)
