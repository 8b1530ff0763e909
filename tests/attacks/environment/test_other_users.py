"""Processes of other users, and other processes of this one, at the sockets of workers."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.supervision.worker import WorkerState
from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from gateway.fleet.launch import WorkerLaunch
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import encode
from protocol.events import Hello
from tests.gateway.harness.real import launch, real_gateway
from tests.gateway.harness.serving import COMPLETION

NOBODY = 65534


def as_nobody(act: Callable[[], object]) -> str:
    """Do it in a child that is another user. Returns the error, or nothing."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            act()
        except OSError as error:
            os.write(write, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as result:
        return result.read()


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))


@pytest.fixture(params=[0o000, 0o022], ids=["umask 0", "the usual umask"])
def endpoint(request: pytest.FixtureRequest) -> Any:
    before = os.umask(request.param)
    try:
        with LocalEndpoint() as made:
            yield made
    finally:
        os.umask(before)


@pytest.mark.anyio
async def test_the_socket_of_a_worker_is_in_a_folder_of_its_user_alone(endpoint: LocalEndpoint) -> None:
    link = Link.bind(endpoint.address, lambda frames: None)
    try:
        folder = endpoint.path.parent.stat()
        assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, os.getuid())
        assert stat.S_ISSOCK(endpoint.path.stat().st_mode)
    finally:
        link.close(0.0)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
@pytest.mark.anyio
async def test_another_user_neither_sees_nor_reaches_nor_replaces_it(endpoint: LocalEndpoint) -> None:
    link = Link.bind(endpoint.address, lambda frames: None)
    path = endpoint.path
    try:
        assert as_nobody(lambda: os.listdir(path.parent)) == "PermissionError"
        assert as_nobody(lambda: connect(path)) == "PermissionError"
        assert as_nobody(path.unlink) == "PermissionError"
        assert as_nobody(lambda: path.parent.rename(path.parent.with_suffix(".mine"))) == "PermissionError"
    finally:
        link.close(0.0)


@pytest.mark.anyio
async def test_a_process_that_greets_in_the_place_of_a_worker_does_not_give_it_up() -> None:
    """Another process of the same user is faster than the worker, at every start. Before: given up after five."""
    endpoints: list[tuple[str, int]] = []
    honest = launch("a")

    def command(endpoint: str, incarnation: int) -> Any:
        if 1 < incarnation < 9:
            endpoints.append((endpoint, incarnation))
            return ["sleep", "600"]
        return honest.command(endpoint, incarnation)

    async with real_gateway(WorkerLaunch("a", "tiny", command)) as real, anyio.create_task_group() as group:

        async def impersonate() -> None:
            for index in range(7):
                await real.until(lambda: len(endpoints) > index)  # noqa: B023
                address, incarnation = endpoints[index]
                link = Link.connect(address, lambda frames: None)
                hello = Hello(PROTOCOL_VERSION, "a", incarnation, os.getpid(), "tiny", "scripted", "none", 4, 4096)
                await link.send([encode(hello)])
                await real.until(lambda: real.status().incarnation > incarnation)  # noqa: B023
                link.close(0.0)

        group.start_soon(impersonate)
        pid = real.status().pid
        assert pid is not None
        os.kill(pid, 9)
        await real.until(lambda: real.status().incarnation == 9 and real.status().state is WorkerState.READY)
        assert real.status().last_failure is not None
        assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200
