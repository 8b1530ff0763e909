"""A second gateway takes the port over: streams through the old one finish, and nobody is refused."""

import os
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest

from actors.transport.allow_list import AllowList
from actors.transport.keys import make_gateway_key, make_key
from cli.client.predecessor import HttpPredecessor
from cli.config.settings import Settings
from gateway.app import create_app
from gateway.fleet.take_over import TakeOverFailed
from gateway.http.listener import BindError
from gateway.http.server import adopt, listen, serve
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.gateway.fleet.remote import joining
from tests.gateway.fleet.succession import ask, gateway, said, who
from tests.gateway.harness.serving import COMPLETION, events, serving
from tests.ports import port_for_later

pytestmark = pytest.mark.anyio


async def test_nobody_is_refused_and_no_stream_is_cut() -> None:
    """The old gateway would give streams no time at all if it were asked to end. Nobody tries a second time: who is
    refused or cut raises."""
    long = COMPLETION | {"max_tokens": 4000, "ignore_eos": True, "stream": True}
    statuses: list[int] = []
    with gateway() as old:
        port = int(said(old, "port").split()[1])
        said(old, "state ready")
        with gateway(port) as new:

            async def new_connections() -> None:
                while old.poll() is None:
                    statuses.append(await ask(port))

            async def one_client() -> None:
                async with httpx.AsyncClient(timeout=60, trust_env=False) as kept:
                    while old.poll() is None:
                        answer = await kept.post(f"http://127.0.0.1:{port}/v1/completions", json=COMPLETION)
                        statuses.append(answer.status_code)

            async def long_stream() -> None:
                async with (
                    httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client,
                    client.stream("POST", "/v1/completions", json=long) as response,
                ):
                    lines = response.aiter_lines()
                    while await who(port) != new.pid:
                        assert "error" not in await anext(lines)
                    for _ in range(200):  # an event has three lines
                        assert "error" not in await anext(lines)
                    assert old.poll() is None

            async with anyio.create_task_group() as group:
                group.start_soon(long_stream)
                for _ in range(3):
                    group.start_soon(new_connections)
                    group.start_soon(one_client)
            assert await anyio.to_thread.run_sync(old.wait) == 0
            assert len(statuses) > 20
            assert set(statuses) == {200}
            assert await who(port) == new.pid
            new.terminate()
            assert await anyio.to_thread.run_sync(new.wait) == 0


async def test_streams_that_the_old_gateway_keeps_are_picked_up_through_the_new_one() -> None:
    body = COMPLETION | {"max_tokens": 300, "ignore_eos": True, "stream": True, "stream_options": {"resume_s": 60}}
    with gateway() as old:
        port = int(said(old, "port").split()[1])
        said(old, "state ready")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            async with client.stream("POST", "/v1/completions", json=body) as response:
                path = f"/v1/streams/{response.headers['x-stream-id']}"
            async with client.stream("POST", "/v1/completions", json=body) as response:
                unwanted = f"/v1/streams/{response.headers['x-stream-id']}"
        with gateway(port) as new:
            while await who(port) != new.pid:
                pass
            assert old.poll() is None, "it has streams to keep"
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
                async with client.stream("GET", path) as response:
                    assert response.headers["x-stream-id"] in path
                    got = await events(response)
                assert got[-1] == "[DONE]"
                assert got[-2]["choices"][0]["finish_reason"] == "length"
                last = {"last-event-id": f"{path.rpartition('/')[2]}-{len(got)}"}
                assert (await client.get(path, headers=last)).status_code == 204
                again = await client.post("/v1/completions", json=body, headers=last)
                assert again.status_code == 204, "a repeated request finds it too"
                assert (await client.get(path + "?starting_after=x")).status_code == 400
                assert (await client.get("/v1/streams/cmpl-unknown")).status_code == 404
                assert (await client.delete(unwanted)).status_code == 204
                assert (await client.delete(path)).status_code == 204
                assert await anyio.to_thread.run_sync(old.wait) == 0
                assert (await client.get(path)).status_code == 404
            new.terminate()
            assert await anyio.to_thread.run_sync(new.wait) == 0


async def test_streams_outlive_a_chain_of_gateways() -> None:
    """The first gateway still has streams when the second one is relieved: one is read, one is kept for its client."""
    body = COMPLETION | {"max_tokens": 200, "ignore_eos": True, "stream": True}
    ended: list[str] = []

    async def stream(port: int) -> None:
        async with (
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
            client.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body) as response,
        ):
            got = await events(response)
        assert got[-2]["choices"][0]["finish_reason"] == "length"
        ended.append(got[-1])

    with gateway() as first:
        port = int(said(first, "port").split()[1])
        said(first, "state ready")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            kept = body | {"stream_options": {"resume_s": 60}}
            async with client.stream("POST", "/v1/completions", json=kept) as response:
                path = f"/v1/streams/{response.headers['x-stream-id']}"
        async with anyio.create_task_group() as group:
            group.start_soon(stream, port)
            with gateway(port) as second:
                while await who(port) != second.pid:
                    pass
                with gateway(port) as third:
                    while await who(port) != third.pid:
                        assert await ask(port) == 200
                    # The second has nothing of its own any more.
                    await anyio.to_thread.run_sync(said, second, "state stopped")
                    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
                    async with client:
                        async with client.stream("GET", path) as response:
                            got = await events(response)
                        assert got[-1] == "[DONE]"
                        assert got[-2]["choices"][0]["finish_reason"] == "length"
                        assert (first.poll(), second.poll()) == (None, None)
                        assert (await client.delete(path)).status_code == 204
                    for each in (first, second):
                        assert await anyio.to_thread.run_sync(each.wait) == 0
                    assert await ask(port) == 200
                    third.terminate()
                    assert await anyio.to_thread.run_sync(third.wait) == 0
    assert ended == ["[DONE]"]


@pytest.mark.exhaustive
async def test_workers_of_other_machines_come_over_when_the_old_gateway_has_ended_its_streams(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = make_gateway_key(keys)
    AllowList(keys).add("far", make_key(tmp_path / "far.key").public_text)
    door = f"tcp://127.0.0.1:{port_for_later()}"
    long = COMPLETION | {"max_tokens": 300, "ignore_eos": True, "stream": True}
    with gateway(0, door, str(keys)) as old, joining(tmp_path / "far.key", (door, key), tokens_per_second=100.0):
        port = int(said(old, "port").split()[1])

        async def far(client: httpx.AsyncClient) -> tuple[str, int]:
            shown = (await client.get(f"http://127.0.0.1:{port}/admin/workers")).json()["workers"]
            return next(((each["state"], each["pid"]) for each in shown if each["name"] == "far"), ("absent", 0))

        async with httpx.AsyncClient(timeout=60, trust_env=False) as asker:
            while (there := await far(asker))[0] != "ready":
                pass
        ended: list[str] = []

        async def stream() -> None:
            async with (
                httpx.AsyncClient(timeout=60, trust_env=False) as client,
                client.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=long) as response,
            ):
                got = await events(response)
            assert got[-2]["choices"][0]["finish_reason"] == "length"
            ended.append(got[-1])

        async with anyio.create_task_group() as group:
            for _ in range(3):  # on both workers
                group.start_soon(stream)
            with gateway(port, door, str(keys)) as new:
                while await who(port) != new.pid:
                    assert await ask(port) == 200
                while old.poll() is None:
                    assert await ask(port) == 200
                assert old.returncode == 0
                async with httpx.AsyncClient(timeout=60, trust_env=False) as asker:
                    while (again := await far(asker))[0] != "ready":
                        assert await ask(port) == 200
                assert again == there, "it kept its model"
                new.terminate()
                assert await anyio.to_thread.run_sync(new.wait) == 0
        assert ended == ["[DONE]"] * 3


@pytest.mark.parametrize("taken", [False, True], ids=["free port", "another program's port"])
async def test_who_finds_no_gateway_to_succeed(taken: bool) -> None:
    with listen(GatewaySettings(port=0)) as other:
        port: int = other.getsockname()[1]
        if not taken:
            other.close()
        predecessor = HttpPredecessor(Settings(port=port), timeout_s=0.2)
        if taken:
            with pytest.raises(TakeOverFailed, match="does not hand over"):
                await predecessor.meet()
        else:
            assert await predecessor.meet() is None
            await predecessor.relieve()


async def test_a_port_is_not_shared() -> None:
    async with serving() as served:
        with pytest.raises(BindError, match="choose another port"):
            listen(GatewaySettings(port=served.port))


async def test_what_waits_at_a_socket_is_whoevers_has_it() -> None:
    """The queue of connections belongs to the socket, not to a process."""
    chosen = GatewaySettings(port=0, flush_s=0.1)
    router = Router(chosen)
    app = create_app(router, chosen)
    first = listen(chosen)
    port = first.getsockname()[1]
    second = adopt(os.dup(first.fileno()), chosen)
    ended, over = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as group:

        async def one() -> None:
            await serve(app, chosen, shutdown=ended, listener=first)

        group.start_soon(one)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as kept:
            assert "connection" not in (await kept.get("/health/live")).headers
            assert first.connections == 1
            first.stop()
            async with await anyio.connect_tcp("127.0.0.1", port) as waits:
                await waits.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                last = await kept.get("/health/live")
                assert (last.status_code, last.headers["connection"]) == (200, "close")
                while first.connections:
                    await anyio.lowlevel.checkpoint()
                ended.set()
                group.start_soon(lambda: serve(app, chosen, shutdown=over, listener=second))
                assert (await waits.receive()).startswith(b"HTTP/1.1 200")
                assert second.connections == 1
        over.set()
