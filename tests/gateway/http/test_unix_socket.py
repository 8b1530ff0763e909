"""HTTP over a Unix socket: its file, what was there before, and the bounds that it shares with a port."""

import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx
import httpx2
import openai
import pytest

from gateway.app import create_app
from gateway.http import unix_socket
from gateway.http.listener import SPARE, BindError
from gateway.http.listeners import Listeners, listen_on_all
from gateway.http.unix_socket import adopt_unix, listen_unix
from gateway.routing.router import Router
from gateway.settings import GatewaySettings, GatewaySettingsError
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.vendor_clients import ask_in_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "baton.sock"


def settings(path: Path, **more: Any) -> GatewaySettings:
    return GatewaySettings(unix_socket=str(path), port=0, flush_s=0.1, **more)


@asynccontextmanager
async def serving(chosen: GatewaySettings) -> AsyncIterator[tuple[Listeners, FakeWorker]]:
    """A gateway on all sockets of the settings, with one fake worker."""
    router = Router(chosen)
    worker = FakeWorker("w0").join(router)
    listeners = listen_on_all(chosen, None)
    shutdown, ended = anyio.Event(), anyio.Event()

    async def run() -> None:
        app = create_app(router, chosen)
        await listeners.serve(app, chosen, shutdown=shutdown, grace_s=lambda: 0.1)
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        yield listeners, worker
        shutdown.set()
        await ended.wait()
        group.cancel_scope.cancel()


def http(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://localhost", timeout=30)


async def test_the_clients_of_the_vendors_come_over_a_unix_socket(path: Path) -> None:
    also = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), timeout=30)
    async with (
        serving(settings(path, tcp=False)) as (_, worker),
        openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http(path)) as of_openai,
        anthropic.AsyncAnthropic(base_url="http://localhost", api_key="none", http_client=also) as of_anthropic,
    ):
        answers = await ask_in_turn(worker, of_openai, of_anthropic)
    assert answers == ["yes", "yes"]
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize(("mode", "expected"), [("600", 0o600), ("660", 0o660), ("000", 0)])
def test_the_file_has_its_mode_from_the_start(path: Path, mode: str, expected: int) -> None:
    before = os.umask(0)
    try:
        with listen_unix(settings(path, unix_socket_mode=mode)) as listener:
            assert stat.S_IMODE(path.stat().st_mode) == expected
            listener.remove_file()
        assert os.umask(0) == 0, "the mask is as it was"
    finally:
        os.umask(before)


async def test_both_sockets_share_one_bound(path: Path) -> None:
    async with serving(settings(path, max_connections=2)) as (listeners, _):
        port = listeners.address[1]
        opened: list[anyio.abc.ByteStream] = []
        for _ in range(1 + SPARE // 2):
            opened.append(await anyio.connect_tcp("127.0.0.1", port))
            opened.append(await anyio.connect_unix(path))
        while listeners.connections < 2 + SPARE:
            await anyio.lowlevel.checkpoint()
        for over in (await anyio.connect_tcp("127.0.0.1", port), await anyio.connect_unix(path)):
            async with over:
                assert (await over.receive()).startswith(b"HTTP/1.1 503")
        for stream in opened:
            await stream.aclose()


def test_a_socket_that_nobody_listens_on_is_replaced(path: Path) -> None:
    listen_unix(settings(path)).close()  # as a server that was killed leaves it
    assert path.exists()
    with listen_unix(settings(path)) as listener:
        with pytest.raises(BindError, match="another process listens there"):
            listen_unix(settings(path))
        assert path.exists()
        listener.remove_file()
    assert not path.exists()


def test_what_is_no_socket_is_not_replaced(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(BindError, match=f"cannot listen on unix:{path}: a file that is not a socket is there"):
        listen_unix(settings(path))
    assert path.read_text() == "mine"


def test_a_socket_of_another_kind_is_not_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(BindError):
            listen_unix(settings(path))
    assert path.exists()


def test_a_path_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "absent" / "x", "No such file"), (tmp_path / ("x" * 200), "path too long")):
        with pytest.raises(BindError, match=f"cannot listen on unix:{path}: .*{words}"):
            listen_unix(settings(path))


def test_servers_that_start_at_once_do_not_replace_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "LOCK_S", 0.0)
    descriptor = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(BindError, match="another process has locked"):
        listen_unix(settings(path))
    os.close(descriptor)
    with listen_unix(settings(path)):
        pass


def test_the_file_of_another_server_is_not_removed(path: Path) -> None:
    first = listen_unix(settings(path))
    first.close()
    with listen_unix(settings(path)):
        first.remove_file()
        assert path.exists()


def test_a_socket_that_was_handed_over_is_removed_by_its_new_owner(path: Path) -> None:
    with listen_unix(settings(path)) as first, adopt_unix(os.dup(first.fileno()), settings(path)) as second:
        second.remove_file()
        assert path.exists(), "the first one has not left"
        first.file = None  # as a hand-over leaves it
        second.own_file()
        first.remove_file()
        assert path.exists()
        second.remove_file()
        assert not path.exists()


def test_both_sockets_are_bound_or_none(path: Path) -> None:
    path.write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    chosen = GatewaySettings(unix_socket=str(path), port=port)
    with pytest.raises(BindError, match="not a socket"):
        listen_on_all(chosen, None)
    with socket.create_server(("127.0.0.1", port)):
        path.unlink()
        with pytest.raises(BindError, match=f"127.0.0.1:{port}"):
            listen_on_all(chosen, None)
    assert not path.exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tcp": False}, "tcp is off and unix_socket is empty"),
        ({"tcp": False, "unix_socket": "x", "tls_cert": "a", "tls_key": "b"}, "tls_cert is for the TCP port"),
        ({"unix_socket_mode": "6600"}, "unix_socket_mode is '6600'"),
        ({"unix_socket_mode": "68"}, "unix_socket_mode is '68'"),
        ({"unix_socket_mode": "rw-"}, "unix_socket_mode is 'rw-'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(GatewaySettingsError, match=words):
        GatewaySettings(**wrong)


@pytest.mark.parametrize(("trusted", "status"), [(("unix",), 400), (("127.0.0.0/8",), 200), ((), 200)])
async def test_a_gateway_in_front_may_be_trusted_on_the_unix_socket(
    path: Path, trusted: tuple[str, ...], status: int
) -> None:
    """Only of a trusted one is an invalid header an error."""
    async with serving(settings(path, tcp=False, trusted_gateways=trusted)), http(path) as client:
        answer = await client.get("/v1/models", headers={"x-llm-d-inference-fairness-id": "a b"})
    assert answer.status_code == status
