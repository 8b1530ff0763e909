"""Connections and requests that have ended are freed at once: garbage collections are rare."""

import gc
import ssl
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import trustme

from gateway.http.connection.tcp import HttpConnection
from gateway.http.request_record import RequestRecord
from gateway.http.tls import SHUTDOWN_S
from gateway.routing.request_group import RequestGroup
from tests.gateway.harness.certificates import write_certificate
from tests.gateway.harness.referrers import referrers
from tests.gateway.harness.serving import COMPLETION, open_raw, serving

pytestmark = pytest.mark.anyio

FREED_S = 10.0
"""Longer than a busy machine takes to end a connection that its client has closed."""


def alive() -> list[object]:
    return [each for each in gc.get_objects() if type(each) in (HttpConnection, RequestRecord, RequestGroup)]


class Left:
    """The connections and requests that were made since, and are alive."""

    def __init__(self) -> None:
        self._earlier = alive()  # held, or a new object could get the identity of one of them

    def __call__(self) -> list[object]:
        earlier = set(map(id, self._earlier))
        return [each for each in alive() if id(each) not in earlier]


@pytest.fixture
def left() -> Iterator[Left]:
    """Disable garbage collections, and find the objects of this test alone: earlier tests in the process may keep
    some of theirs."""
    gc.collect()
    gc.disable()
    yield Left()
    gc.enable()


async def test_nothing_is_left_of_connections_that_ended(left: Left) -> None:
    async with serving() as served:
        for _ in range(3):
            async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
                await raw.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert (await raw.receive()).startswith(b"HTTP/1.1 200")
            async with await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True}):
                await served.until(lambda: served.live == 1)
                assert left(), "they are seen while they last"
            await served.until(lambda: served.live == 0)
        with anyio.move_on_after(FREED_S):
            await served.until(lambda: not left())
        found = left()
    assert not found, f"{len(found)} are referred to, the first like this:\n{referrers(found.pop())}"


async def test_nothing_is_left_of_connections_over_tls(left: Left, tmp_path: Path) -> None:
    authority = trustme.CA()
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    async with serving(trusted=trusted, **write_certificate(tmp_path, authority).settings) as served:
        for _ in range(3):
            raw = await anyio.connect_tcp(
                "127.0.0.1", served.port, tls=True, ssl_context=trusted, tls_standard_compatible=False
            )
            async with raw:
                await raw.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert (await raw.receive()).startswith(b"HTTP/1.1 200")
                assert left(), "they are seen while they last"
        with anyio.move_on_after(FREED_S + SHUTDOWN_S):
            await served.until(lambda: not left())
        found = left()
    assert not found, f"{len(found)} are referred to, the first like this:\n{referrers(found.pop())}"
