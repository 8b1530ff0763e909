"""More connections than may be open: probes are still answered, everything else is refused for now."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from gateway.http import listener
from tests.gateway.harness.serving import COMPLETION, Served, open_raw, serving
from tests.gateway.http.http2 import client

pytestmark = pytest.mark.anyio

REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 125\r\n"
    b"connection: close\r\nretry-after: 1\r\n\r\n"
    b'{"error":{"message":"the server has no room for another connection","type":"server_error","param":null,'
    b'"code":"unavailable"}}'
)
LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def full(*, keep_alive_s: float) -> AsyncIterator[Served]:
    """A gateway whose two connections have streams under way, to which nothing happens."""
    async with serving(max_connections=2, retry_after_s=7, keep_alive_s=keep_alive_s) as served:
        clients = [await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True}) for _ in range(2)]
        submits = await served.worker.wait_submits(2)
        yield served
        for submit, stream in zip(submits, clients, strict=True):
            served.worker.finish(submit.stream, "b")
            async with stream:
                received = b""
                while b"data: [DONE]" not in received:
                    received += await stream.receive()


def another(served: Served, http2: bool) -> httpx.AsyncClient:
    if http2:
        return client(served.port)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", trust_env=False)


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_a_probe_is_answered(path: str, http2: bool) -> None:
    async with serving(max_connections=1, keep_alive_s=3600) as served:
        async with await anyio.connect_tcp("127.0.0.1", served.port), another(served, http2) as probe:
            await served.until(lambda: served.listener.connections == 1)
            answer = await probe.get(path)
            assert answer.status_code == 200
            await served.until(lambda: served.listener.connections == 1)
            assert served.listener.refused == 0
        assert http2 or answer.headers["connection"] == "close"


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_anything_else_is_refused_for_now(http2: bool) -> None:
    async with full(keep_alive_s=3600) as served, another(served, http2) as third:
        for ask in (third.post("/v1/completions", json=COMPLETION), third.get("/v1/models"), third.get("/metricss")):
            answer = await ask
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
            assert answer.json()["error"]["code"] == "unavailable"
            await served.until(lambda: served.listener.connections == 2)
        assert served.listener.refused == 3
        assert (await third.get("/", headers={"x-request-id": "mine"})).headers["x-request-id"] == "mine"
        assert len(served.worker.submits) == 2


async def test_one_that_asks_nothing_does_not_stay() -> None:
    async with full(keep_alive_s=0.5) as served, await anyio.connect_tcp("127.0.0.1", served.port) as third:
        with pytest.raises(anyio.EndOfStream):
            await third.receive()


async def test_beyond_the_spare_ones_no_request_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SPARE", 1)
    async with serving(max_connections=1, keep_alive_s=3600) as served:
        async with await anyio.connect_tcp("127.0.0.1", served.port) as first:
            await served.until(lambda: served.listener.connections == 1)
            async with await anyio.connect_tcp("127.0.0.1", served.port) as spare:
                await served.until(lambda: served.listener.connections == 2)
                async with await anyio.connect_tcp("127.0.0.1", served.port) as one_more:
                    assert await one_more.receive() == REFUSED
                await spare.send(LIVE)
                assert (await spare.receive()).startswith(b"HTTP/1.1 200 ")
            await served.until(lambda: served.listener.connections == 1)
            await first.send(LIVE)
            assert b"connection: close" not in await first.receive()
        await served.until(lambda: served.listener.connections == 0)
        assert (await served.client.get("/v1/models")).status_code == 200, "there is room again"
