"""A gateway with few file descriptors: it turns connections away, and goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import httpx
import pytest

from tests.gateway.harness.serving import COMPLETION

pytestmark = pytest.mark.anyio

PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 160))
import anyio
from gateway.daemon import run_daemon
from gateway.settings import GatewaySettings
from tests.gateway.harness.real import launch

async def main():
    await run_daemon(
        GatewaySettings(port=0, shutdown_grace_s=0),
        [launch("w0")],
        on_listening=lambda host, port: print("port", port, flush=True),
    )

anyio.run(main)
"""


@contextmanager
def gateway() -> Iterator[tuple["subprocess.Popen[str]", str]]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            port = next(line.split()[1] for line in process.stdout if line.startswith("port"))
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)


async def ready(http: httpx.AsyncClient, other_than: int = 0) -> int:
    """The process of its worker, once it takes requests."""
    while True:
        (shown,) = (await http.get("/admin/workers")).json()["workers"]
        if shown["state"] == "ready" and shown["pid"] != other_than:
            return int(shown["pid"])
        await anyio.sleep(0.02)


async def test_connections_never_take_the_descriptors_of_the_workers() -> None:
    with gateway() as (process, url):
        async with client(url) as kept:
            first = await ready(kept)
            port = int(url.rpartition(":")[2])
            held = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(150)]
            async with client(url) as late:
                refused = await late.get("/health/live")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "unavailable"
            metrics = (await kept.get("/metrics")).text.splitlines()
            shown = dict(line.split() for line in metrics if line.startswith("baton_connections"))
            assert float(shown["baton_connections_refused_total"]) > 60
            assert 20 < float(shown["baton_connections"]) < 90
            os.kill(first, signal.SIGKILL)  # another one needs a link and pipes
            await ready(kept, other_than=first)
            assert (await kept.post("/v1/completions", json=COMPLETION)).status_code == 200
            for each in held:
                await each.aclose()
            async with client(url) as again:
                answer = await again.post("/v1/completions", json=COMPLETION)
                while answer.status_code == 503:  # until it has seen that they left
                    answer = await again.post("/v1/completions", json=COMPLETION)
            assert answer.status_code == 200
            assert process.poll() is None
