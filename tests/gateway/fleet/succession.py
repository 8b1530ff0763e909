"""Gateways in processes of their own, each of which may take the place of another."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.gateway.harness.serving import COMPLETION

PROGRAM = """
import sys
import anyio
from cli.client.predecessor import HttpPredecessor
from cli.config.settings import Settings
from gateway.daemon import run_daemon
from gateway.settings import GatewaySettings
from actors.supervision.deadlines import Deadlines
from tests.gateway.harness.real import launch

port, grace_s, gateways, *door = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
doors = {"listen_workers": door[0], "keys_dir": door[1]} if door else {}

async def main():
    await run_daemon(
        GatewaySettings(port=port, shutdown_grace_s=grace_s, keep_alive_s=2, gateways=gateways, **doors),
        [launch("w0", rate=100)],
        deadlines=Deadlines(suspended=600, hang=600, heartbeat=600),
        on_listening=lambda host, port: print("port", port, flush=True),
        on_status=lambda status: print("state", status.state.value, flush=True),
        predecessor=HttpPredecessor(Settings(port=port)) if port else None,
    )

anyio.run(main)
"""


"""Its worker may be suspended, to hold its streams up."""


@contextmanager
def gateway(port: int = 0, *door: str, grace_s: float = 0.0, gateways: int = 1) -> Iterator["subprocess.Popen[str]"]:
    """With a `door`: its address, and the folder of its keys."""
    argv = [sys.executable, "-c", PROGRAM, str(port), str(grace_s), str(gateways), *door]
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
    """A request on a connection of its own, tried once."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"http://127.0.0.1:{port}/v1/completions", json=COMPLETION)
        return answer.status_code


async def worker_of(port: int) -> int:
    """The process of the worker of the gateway that accepts connections."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        (shown,) = (await client.get(f"http://127.0.0.1:{port}/admin/workers")).json()["workers"]
        return int(shown["pid"])


async def who(port: int) -> int:
    """The process that serves new connections."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        pid: int = (await client.get(f"http://127.0.0.1:{port}/admin/gateway")).json()["pid"]
        return pid
