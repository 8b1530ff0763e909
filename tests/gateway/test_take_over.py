"""A second gateway takes the port over: streams through the old one finish, and nobody is refused."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.to_thread
import httpx
import pytest

from gateway.server import BindError, listen
from gateway.settings import GatewaySettings
from tests.gateway.real import launch, real_gateway
from tests.gateway.serving import COMPLETION, events, serving

pytestmark = pytest.mark.anyio

PROGRAM = """
import sys
import anyio
from cli.predecessor import HttpPredecessor
from cli.settings import Settings
from gateway.daemon import run_daemon
from gateway.settings import GatewaySettings
from tests.gateway.real import launch

port = int(sys.argv[1])

async def main():
    await run_daemon(
        GatewaySettings(port=port),
        [launch("w0", rate=100)],
        on_listening=lambda host, port: print("port", port, flush=True),
        on_status=lambda status: print("state", status.state.value, flush=True),
        predecessor=HttpPredecessor(Settings(port=port)) if port else None,
    )

anyio.run(main)
"""


@contextmanager
def gateway(port: int = 0) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", PROGRAM, str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[str]", words: str) -> str:
    for line in process.stdout or ():
        if line.startswith(words):
            return line
    raise RuntimeError(f"it ended before {words!r}")


async def ask(port: int) -> int:
    """A request on a connection of its own. One that is made while a socket closes is reset; clients try again."""
    while True:
        try:
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                answer = await client.post(f"http://127.0.0.1:{port}/v1/completions", json=COMPLETION)
                return answer.status_code
        except httpx.TransportError:
            continue


async def test_streams_through_the_old_gateway_finish_and_nobody_is_refused() -> None:
    stream = COMPLETION | {"max_tokens": 300, "ignore_eos": True, "stream": True}
    statuses: list[int] = []
    with gateway() as old:
        port = int(said(old, "port").split()[1])
        said(old, "state ready")
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client,
            client.stream("POST", "/v1/completions", json=stream) as response,
        ):
            assert response.status_code == 200
            with gateway(port) as new:

                async def traffic() -> None:
                    while old.poll() is None:
                        statuses.append(await ask(port))

                async with anyio.create_task_group() as group:
                    group.start_soon(traffic)
                    got = await events(response)
                    assert await anyio.to_thread.run_sync(old.wait) == 0
                assert got[-1] == "[DONE]"
                assert got[-2]["choices"][0]["finish_reason"] == "length"
                assert set(statuses) == {200}
                assert await ask(port) == 200, "the new one serves"
                async with httpx.AsyncClient(trust_env=False) as another:
                    found = await another.get(f"http://127.0.0.1:{port}/admin/gateway")
                assert found.json() == {"pid": new.pid}
                new.terminate()
                assert await anyio.to_thread.run_sync(new.wait) == 0


async def test_a_port_is_shared_only_by_one_who_takes_it_over() -> None:
    async with serving() as served:
        with pytest.raises(BindError, match="choose another port"):
            listen(GatewaySettings(port=served.port))
        with listen(GatewaySettings(port=served.port), take_over=True) as shared:
            assert shared.getsockname()[1] == served.port
            for _ in range(20):  # it does not listen yet, so every connection is the old one's
                assert (await served.client.get("/health/live")).status_code == 200


async def test_a_gateway_leaves_only_when_it_is_meant() -> None:
    async with real_gateway(launch("w0")) as real:
        assert (await real.client.get("/admin/gateway")).json() == {"pid": os.getpid()}
        refused = await real.client.post("/admin/leave", json={"pid": os.getpid() + 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "another_gateway")
