"""Connections of HTTP/2 that are to be used no more: at a take-over, in a drain, and when the server ends."""

import functools
import json
import operator
import shutil
import subprocess

import anyio
import anyio.lowlevel
import pytest

from gateway.app import create_app
from gateway.http.http2 import EVERY_STREAM
from gateway.http.server import listen, serve
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import COMPLETION, serving
from tests.gateway.http.http2 import Patient, client, whole_stream

pytestmark = pytest.mark.anyio

STREAM = COMPLETION | {"stream": True}


async def test_a_connection_that_is_retired_ends_when_its_streams_have() -> None:
    """To the client nothing happens: a stream ends as it should, and the next request is on another connection."""
    async with serving(keep_alive_s=3600) as served, client(served.port) as http, client(served.port) as idle:
        assert (await idle.get("/health/live")).status_code == 200
        async with whole_stream(served, http):
            assert served.listener.connections == 2
            served.listener.retire()
            await served.until(lambda: served.listener.connections == 1)
            assert (await http.get("/health/live")).status_code == 200, "it does not idle: it is served"
        await served.until(lambda: served.listener.connections == 0)
        for each in (http, idle, idle):
            assert (await each.get("/health/live")).status_code == 200
            await served.until(lambda: served.listener.connections == 0)


async def test_a_client_that_never_idles_is_notified_in_time_and_its_streams_finish() -> None:
    async with serving(keep_alive_s=0.5) as served, await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        peer = Patient(raw)
        first = await peer.ask(COMPLETION | {"stream": True})
        (one,) = await served.worker.wait_submits(1)
        served.worker.token(one.stream, "a", 1)
        served.listener.stop()
        await peer.until(lambda: bool(peer.last_streams))
        assert peer.last_streams == [EVERY_STREAM]
        second = await peer.ask(COMPLETION | {"stream": True})  # as one that was on its way
        _, two = await served.worker.wait_submits(2)
        served.worker.finish(one.stream, "b")
        await peer.until(lambda: first in peer.ended)
        served.worker.finish(two.stream, "c")
        await peer.until(lambda: second in peer.ended)
        assert all(peer.bodies[each].endswith(b"data: [DONE]\n\n") for each in (first, second))
        while await peer.read():
            pass
        assert peer.last_streams == [EVERY_STREAM, second]
        assert served.worker.cancels == []


async def test_a_server_that_ends_cuts_no_end_of_a_stream() -> None:
    """The response's end goes out before the connection's."""
    chosen = GatewaySettings(port=0, flush_s=5)
    router = Router(chosen)
    worker = FakeWorker("w0").join(router)
    app, shutdown = create_app(router, chosen), anyio.Event()
    with listen(chosen) as listener:
        port = listener.getsockname()[1]
        async with anyio.create_task_group() as group, await anyio.connect_tcp("127.0.0.1", port) as raw:
            group.start_soon(lambda: serve(app, chosen, shutdown=shutdown, listener=listener))
            peer = Patient(raw)
            number = await peer.ask(COMPLETION)
            (submit,) = await worker.wait_submits(1)
            shutdown.set()
            await anyio.lowlevel.checkpoint()
            worker.finish(submit.stream, "a" * 100_000)  # more than the client's window: it must be read out
            while await peer.read():
                pass
            assert number in peer.ended
            assert len(json.loads(peer.bodies[number])["choices"][0]["text"]) == 100_000


async def test_a_drain_tells_a_client_that_never_idles_in_time_and_its_streams_finish() -> None:
    async with serving(keep_alive_s=3600) as served, await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        peer = Patient(raw)
        long, short = await peer.ask(STREAM), await peer.ask(STREAM)
        one, two = await served.worker.wait_submits(2)
        served.worker.token(one.stream, "a", 1)
        served.router.admission.drain_nowait()
        served.listener.retire(within_s=0.05)
        refused = await peer.ask(STREAM)
        await peer.until(lambda: refused in peer.ended and bool(peer.last_streams))
        assert (peer.statuses[refused], peer.last_streams) == (503, [EVERY_STREAM])
        for number, submit in ((short, two), (long, one)):
            served.worker.finish(submit.stream, "b")
            await peer.until(functools.partial(operator.contains, peer.ended, number))
            assert peer.bodies[number].endswith(b"data: [DONE]\n\n")
        while await peer.read():
            pass
        assert peer.last_streams == [EVERY_STREAM, refused]


async def test_a_drain_warns_at_once_where_only_refusals_are_left() -> None:
    """Its client asks all the time, so it never idles; and nothing that was begun could be lost any more."""
    async with serving(keep_alive_s=3600) as served, await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        peer = Patient(raw)
        number = await peer.ask(STREAM)
        (submit,) = await served.worker.wait_submits(1)
        served.router.admission.drain_nowait()
        served.listener.retire(within_s=3600)
        await peer.ask(STREAM, end=False)  # which stays under way
        refused = await peer.ask(STREAM)
        await peer.until(lambda: refused in peer.ended)
        assert peer.last_streams == []
        served.worker.finish(submit.stream, "b")
        await peer.until(lambda: number in peer.ended and bool(peer.last_streams))
        assert peer.last_streams == [EVERY_STREAM]


async def test_httpx_gets_the_rest_of_a_stream_while_it_is_refused_more() -> None:
    async with serving(keep_alive_s=3600) as served, client(served.port) as http:
        async with whole_stream(served, http):
            served.router.admission.drain_nowait()
            served.listener.retire(within_s=3600)
            for _ in range(3):
                refused = await http.post("/v1/completions", json=COMPLETION)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert served.listener.connections == 1
        await served.until(lambda: served.listener.connections == 0)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
async def test_curl_gets_the_rest_of_a_stream_after_goaway(version: str) -> None:
    async with serving(keep_alive_s=3600) as served:
        command = ["curl", "-sS", version, "-H", "content-type: application/json", "-d", json.dumps(STREAM)]
        url = f"http://127.0.0.1:{served.port}/v1/completions"
        got: list[subprocess.CompletedProcess[bytes]] = []

        async def curl() -> None:
            got.append(await anyio.run_process([*command, url], check=False))

        async with anyio.create_task_group() as group:
            group.start_soon(curl)
            (submit,) = await served.worker.wait_submits(1)
            served.worker.token(submit.stream, "a", 1)
            served.router.admission.drain_nowait()
            served.listener.retire(within_s=0.0)
            await anyio.lowlevel.checkpoint()
            served.worker.finish(submit.stream, "b")
        assert (got[0].returncode, got[0].stderr) == (0, b"")
        assert got[0].stdout.endswith(b"data: [DONE]\n\n")
