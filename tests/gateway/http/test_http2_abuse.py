"""Clients that speak HTTP/2 and mean no good, or no request: their connections end, and nothing else notices."""

import struct
from collections.abc import Callable

import anyio
import anyio.abc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, PingAckReceived, ResponseReceived
from h2.settings import SettingCodes
from structlog.testing import capture_logs

from tests.gateway.harness.serving import serving

pytestmark = pytest.mark.anyio

HEAD = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/health/live")]


def connection() -> H2Connection:
    """A client that sends what the test wants."""
    made = H2Connection(H2Configuration(header_encoding=None, validate_outbound_headers=False))
    made.initiate_connection()
    return made


async def ended(stream: anyio.abc.ByteStream) -> None:
    """Until the server closes the connection."""
    try:
        while await stream.receive():
            pass
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return


def nothing(_: H2Connection) -> bytes:
    return b""


def a_frame_that_does_not_end(_: H2Connection) -> bytes:
    return b"\0\1\0\1"


def headers_that_do_not_end(_: H2Connection) -> bytes:
    return b"\0\0\1\1\0\0\0\0\1\x82"


def a_stream_that_it_resets(client: H2Connection) -> bytes:
    client.send_headers(1, [(b":method", b"POST"), *HEAD[1:3], (b":path", b"/v1/completions")])
    client.reset_stream(1)
    return client.data_to_send()


def a_stream_that_is_answered(client: H2Connection) -> bytes:
    client.send_headers(1, HEAD, end_stream=True)
    return client.data_to_send()


@pytest.mark.parametrize(
    "sends",
    [
        nothing,
        a_frame_that_does_not_end,
        headers_that_do_not_end,
        a_stream_that_it_resets,
        a_stream_that_is_answered,
    ],
)
async def test_a_connection_without_a_stream_does_not_stay(sends: Callable[[H2Connection], bytes]) -> None:
    async with serving(keep_alive_s=0.05) as served:
        async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
            client = connection()
            await raw.send(client.data_to_send() + sends(client))
            await ended(raw)
        await served.until(lambda: served.listener.connections == 0)
        assert (await served.client.get("/health/live")).status_code == 200


async def test_nor_does_it_hold_up_a_server_that_ends() -> None:
    async with serving(keep_alive_s=3600) as served, await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        await raw.send(connection().data_to_send())
        await raw.receive()
        served.listener.retire()
        await ended(raw)


def _request(*headers: tuple[bytes, bytes]) -> bytes:
    client = connection()
    client.send_headers(1, headers, end_stream=True)
    return bytes(client.data_to_send())


def _priorities(count: int) -> bytes:
    frames = (b"\0\0\5\2\0" + struct.pack(">LLB", 2 * each + 1, 0, 16) for each in range(count))
    return bytes(connection().data_to_send()) + b"".join(frames)


REFUSED = {
    "a path of other bytes": (_request(*HEAD[:3], (b":path", b"/\xff")), b"400"),
    "a path without a slash": (_request(*HEAD[:3], (b":path", b"admin/workers")), b"400"),
    "a method of other bytes": (_request((b":method", b"\xff"), *HEAD[1:]), b"400"),
    "a host with a space": (_request(*HEAD[:2], (b":authority", b"a b"), HEAD[3]), b"400"),
    "a tunnel": (_request((b":method", b"CONNECT"), (b":authority", b"x")), b"501"),
}


@pytest.mark.parametrize(("sent", "status"), REFUSED.values(), ids=REFUSED)
async def test_a_request_that_is_not_valid_is_refused_alone(sent: bytes, status: bytes) -> None:
    async with serving() as served:
        with capture_logs() as logs:
            async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
                client, got = connection(), bytearray()
                client.send_headers(1, HEAD, end_stream=True)
                client.data_to_send()
                await raw.send(sent)
                response: ResponseReceived | None = None
                while response is None or b'"type":"invalid_request_error"' not in got:
                    for event in client.receive_data(await raw.receive()):
                        if isinstance(event, ResponseReceived):
                            response = event
                        elif isinstance(event, DataReceived):
                            got += event.data
                assert dict(response.headers)[b":status"] == status
                assert b"x-request-id" in dict(response.headers)
        await served.until(lambda: served.listener.connections == 0)
        assert not [line for line in logs if line["event"] == "connection_failed"]


async def test_priorities_of_too_many_streams_end_their_connection_without_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as served:
        with capture_logs() as logs:
            async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
                await raw.send(_priorities(1100))
                await ended(raw)
            await served.until(lambda: served.listener.connections == 0)
        assert not [line for line in logs if line["event"] == "connection_failed"]
        assert (await served.client.get("/health/live")).status_code == 200
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_more_streams_than_were_granted_end_their_connection_alone() -> None:
    async with serving() as served:
        async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
            client = connection()
            for number in range(100):
                client.send_headers(2 * number + 1, [(b":method", b"POST"), *HEAD[1:3], (b":path", b"/v1/completions")])
            await raw.send(client.data_to_send())
            client.receive_data(await raw.receive())
            assert client.remote_settings.max_concurrent_streams == 100
            client.ping(b"12345678")
            await raw.send(client.data_to_send())
            while not any(isinstance(event, PingAckReceived) for event in client.receive_data(await raw.receive())):
                pass
            client.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 101
            client.remote_settings.acknowledge()
            client.send_headers(201, HEAD, end_stream=True)
            await raw.send(client.data_to_send())
            await ended(raw)
        await served.until(lambda: served.listener.connections == 0)
        assert (await served.client.get("/health/live")).status_code == 200
