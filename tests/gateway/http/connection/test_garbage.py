"""Connections and requests that have ended are freed at once: garbage collections are rare."""

import gc
from collections.abc import Iterator

import anyio
import pytest

from gateway.http.connection.tcp import HttpConnection
from gateway.http.request_record import RequestRecord
from gateway.routing.request_group import RequestGroup
from tests.gateway.harness.serving import COMPLETION, open_raw, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[object]:
    return [each for each in gc.get_objects() if type(each) in (HttpConnection, RequestRecord, RequestGroup)]


async def test_nothing_is_left_of_connections_that_ended() -> None:
    async with serving() as served:
        for _ in range(3):
            async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
                await raw.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert (await raw.receive()).startswith(b"HTTP/1.1 200")
            async with await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True}):
                await served.until(lambda: served.live == 1)
            await served.until(lambda: served.live == 0)
        await served.until(lambda: left() == [])
