"""One of the two gateways ends while a hand-over is half done."""

import os
import signal

import anyio.to_thread
import httpx
import pytest

from tests.gateway.fleet.succession import ask, gateway, said, who, worker_of
from tests.gateway.harness.serving import COMPLETION, events

pytestmark = pytest.mark.anyio

LONG = COMPLETION | {"max_tokens": 300, "ignore_eos": True, "stream": True}


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)


async def test_a_signal_gives_what_is_left_the_usual_grace() -> None:
    """It is the first one, also when the gateway was on its way out already."""
    with gateway(grace_s=60.0) as old:
        port = int(said(old, "port").split()[1])
        said(old, "state ready")
        async with client(port) as kept, client(port) as streaming:
            await kept.get("/health/live")
            worker = await worker_of(port)
            async with streaming.stream("POST", "/v1/completions", json=LONG) as response:
                os.kill(worker, signal.SIGSTOP)  # the stream does not end before its gateway is relieved
                with gateway(port) as new:
                    while "connection" not in (await kept.get("/health/live")).headers:
                        pass
                    old.terminate()
                    os.kill(worker, signal.SIGCONT)
                    got = await events(response)
                    assert await anyio.to_thread.run_sync(old.wait) == 0
                    assert await who(port) == new.pid
        assert (got[-1], got[-2]["choices"][0]["finish_reason"]) == ("[DONE]", "length")


async def test_the_port_is_free_when_the_successor_dies() -> None:
    """The gateway that left still has streams: it must not keep a port whose connections it does not take."""
    with gateway() as old:
        port = int(said(old, "port").split()[1])
        said(old, "state ready")
        async with client(port) as kept, client(port) as streaming:
            await kept.get("/health/live")
            async with streaming.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 4000}) as response:
                with gateway(port) as new:
                    while "connection" not in (await kept.get("/health/live")).headers:
                        pass
                    new.kill()
                    await anyio.to_thread.run_sync(new.wait)
                with pytest.raises(httpx.ConnectError):
                    await who(port)
                with gateway(port) as third:
                    assert int(said(third, "port").split()[1]) == port
                    assert await ask(port) == 200
                    assert old.poll() is None
                    lines = response.aiter_lines()
                    for _ in range(200):
                        assert "error" not in await anext(lines)
