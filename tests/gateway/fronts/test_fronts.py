"""Several processes serve HTTP: what holds for one gateway holds for all of them together, whichever is lost."""

import os
import re
import signal
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest
import trustme
from anyio.streams.tls import TLSAttribute

from gateway.fronts import process
from gateway.fronts.spec import FrontSettings
from gateway.keys.record import KeyLimits, make_key, make_record
from gateway.settings import GatewaySettings, GatewaySettingsError
from tests.attacks.server import attacked_server
from tests.gateway.fleet.succession import ask, gateway, said, who
from tests.gateway.harness.certificates import write_certificate
from tests.gateway.harness.daemon import Watched, daemon
from tests.gateway.harness.real import gather, launch
from tests.gateway.harness.serving import COMPLETION

pytestmark = pytest.mark.anyio

STREAM = COMPLETION | {"stream": True, "ignore_eos": True}
AUTHORITY = trustme.CA()
LIVE = 'baton_live_sequences{backend="scripted",model="tiny",worker="w0"}'


class Fronts:
    """A daemon whose requests come through fronts."""

    def __init__(self, watched: Watched, client: httpx.AsyncClient) -> None:
        self.watched = watched
        self.client = client

    @property
    def pids(self) -> list[int]:
        return fronts_of(os.getpid())

    async def metrics(self) -> dict[str, float]:
        """The samples by their names and labels, as they are in the text."""
        text = ""
        while not text:
            with suppress(httpx.TransportError):  # the front of its connection was lost
                answer = await self.client.get("/metrics")
                text = answer.text if answer.is_success else ""  # a new connection may be one too many for a while
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def until(self, name: str, value: float) -> None:
        while (await self.metrics()).get(name) != value:  # noqa: ASYNC110  other processes report it
            await anyio.sleep(0.02)

    async def ready(self, count: int = 2) -> None:
        for number in range(count):
            await self.until(f'baton_front_ready{{front="{number}"}}', 1)

    async def connections(self, expected: int) -> list[int]:
        """Those of each front, once they are so many together."""
        while True:
            found = await self.metrics()
            counts = [int(found[f'baton_front_connections{{front="{number}"}}']) for number in range(2)]
            if sum(counts) == expected:
                return counts
            await anyio.sleep(0.02)


def fronts_of(pid: int) -> list[int]:
    """The fronts of a gateway, in the order of their starts."""
    found = []
    for each in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # it has ended by now
            if "gateway.fronts" in each.cmdline():
                found.append(each)
    return [each.pid for each in sorted(found, key=lambda each: each.create_time())]


@asynccontextmanager
async def fronts(gateways: int = 2, **settings: Any) -> AsyncIterator[Fronts]:
    """A daemon with fronts that are ready; it is ended by a signal."""
    async with daemon(launch("w0", slots=64, rate=100), gateways=gateways, **settings) as (watched, client):
        served = Fronts(watched, client)
        await served.ready(gateways)
        watched.pids |= set(served.pids)
        yield served
        if not watched.ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)


async def read_events(base: str, body: dict[str, Any], found: list[Any] | None = None) -> tuple[bool, list[Any], str]:
    """Read a stream on a connection of its own. Returns true if it came to its end, its events, which are added to
    `found`, and its id."""
    found = [] if found is None else found
    ident = ""
    try:
        async with (
            httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            ident = response.headers.get("x-stream-id", "")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    found.append(line)
    except httpx.TransportError:
        return False, found, ident
    return found[-1:] == ["data: [DONE]"], found, ident


async def test_the_streams_of_a_front_that_is_killed_are_cancelled_and_no_others() -> None:
    async with fronts() as served:
        ended: list[bool] = []
        opened, counts = 0, [0, 0]

        async def one() -> None:
            # Some 10 s: on a busy machine seconds pass until all are open and the front was killed.
            ended.append((await read_events(served.watched.base, STREAM | {"max_tokens": 1000}))[0])

        async with anyio.create_task_group() as group:
            while min(counts) < 2:  # the kernel decides which front accepts
                for _ in range(16):
                    group.start_soon(one)
                opened += 16
                await served.until(LIVE, opened)
                counts = await served.connections(opened + 1)
            lost, first = counts[0], served.pids[0]
            os.kill(first, signal.SIGKILL)
            await served.until('baton_front_restarts_total{front="0"}', 1)
            assert opened - lost <= (await served.metrics())[LIVE] + 1, "those of the other front go on"
            await served.ready()
            served.watched.pids |= set(served.pids)
            assert first not in served.pids
        assert lost - 1 <= ended.count(False) <= lost  # one of its connections may be the test's own
        found = await served.metrics()
        assert found[LIVE] == 0
        outcomes = {name: value for name, value in found.items() if name.startswith("baton_sequences_ended_total")}
        assert sum(outcomes.values()) == opened, "each sequence ended once"
        assert sum(value for name, value in outcomes.items() if "cancelled" in name) == ended.count(False)
        assert found["baton_body_bytes"] == found["baton_answer_bytes"] == 0


async def test_a_resumable_stream_is_picked_up_through_another_front() -> None:
    async with fronts() as served, anyio.create_task_group() as group:
        body = STREAM | {"max_tokens": 150, "stream_options": {"resume_s": 60}}
        results: list[tuple[bool, list[Any], str]] = []
        got: list[Any] = []
        broken = anyio.Event()

        async def one() -> None:
            results.append(await read_events(served.watched.base, body, got))
            broken.set()

        group.start_soon(one)
        while not got:  # noqa: ASYNC110  they come over a socket
            await anyio.sleep(0.02)
        for pid in served.pids:
            os.kill(pid, signal.SIGKILL)
        await broken.wait()
        whole, _, ident = results[0]
        assert not whole
        served.watched.pids |= set(served.pids)
        async with httpx.AsyncClient(base_url=served.watched.base, timeout=60, trust_env=False) as client:
            response = await client.get(f"/v1/streams/{ident}?starting_after={len(got)}")
            rest = [line for line in response.text.splitlines() if line.startswith("data: ")]
            again = await client.get(f"/v1/streams/{ident}")
        assert rest[-1] == "data: [DONE]"
        assert got + rest == [line for line in again.text.splitlines() if line.startswith("data: ")]
        served.watched.pids |= set(served.pids)


async def test_connections_are_bounded_over_all_fronts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are distributed: here one front has all of them, and the other one knows what is left."""
    monkeypatch.setattr(process, "SILENT_S", 600.0)
    async with fronts(max_connections=5, keep_alive_s=3600) as served, AsyncExitStack() as stack:

        async def ask() -> tuple[httpx.AsyncClient, int]:
            client = httpx.AsyncClient(base_url=served.watched.base, timeout=60, trust_env=False)
            await stack.enter_async_context(client)
            return client, (await client.get("/v1/models")).status_code

        await served.client.get("/v1/models")  # its connection is one of the five
        idle, busy = served.pids
        os.kill(idle, signal.SIGSTOP)
        opened = [await ask() for _ in range(4)]
        assert [status for _, status in opened] == [200] * 4
        assert (await ask())[1] == 503
        os.kill(idle, signal.SIGCONT)
        assert [(await ask())[1] for _ in range(4)] == [503] * 4, "whichever front accepts"
        await opened[0][0].aclose()
        while (await ask())[1] != 200:
            pass
        assert (await ask())[1] == 503
        os.kill(busy, signal.SIGKILL)
        await served.until('baton_front_restarts_total{front="1"}', 1)
        for _ in range(3):  # those of the lost front count no more
            while (await ask())[1] != 200:
                pass
        further = 0
        while (await ask())[1] == 200:
            further += 1
        assert further <= 2
        await served.ready()
        served.watched.pids |= set(served.pids)


async def test_the_limits_of_a_key_hold_over_all_fronts(tmp_path: Path) -> None:
    key = make_key()
    file = tmp_path / "keys"
    file.write_text(make_record("alice", key, KeyLimits(requests_per_minute=5)).line() + "\n")
    file.chmod(0o600)
    async with daemon(launch("w0", slots=16), gateways=2, api_keys_file=str(file), admin_key="chief") as (watched, _):

        async def one() -> int:
            headers = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=watched.base, timeout=60, trust_env=False) as client:
                return (await client.post("/v1/completions", json=COMPLETION, headers=headers)).status_code

        statuses = await gather(*[one] * 12)
        async with httpx.AsyncClient(base_url=watched.base, timeout=60, trust_env=False) as client:
            shown = await client.get("/admin/keys", headers={"authorization": "Bearer chief"})
        assert Counter(statuses) == {200: 5, 429: 7}
        assert shown.json()["keys"][0]["use"]["requests"] == 5
        watched.pids |= set(fronts_of(os.getpid()))
        os.kill(os.getpid(), signal.SIGTERM)


async def test_a_scrape_has_the_sums_of_all_fronts() -> None:
    async with fronts() as served:

        async def models() -> None:
            async with httpx.AsyncClient(base_url=served.watched.base, timeout=60, trust_env=False) as client:
                assert (await client.get("/v1/models")).status_code == 200

        async def malformed() -> None:
            host, _, port = served.watched.base.removeprefix("http://").partition(":")
            async with await anyio.connect_tcp(host, int(port)) as stream:
                await stream.send(b"nonsense\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 400")

        await gather(*[models] * 20, *[malformed] * 7)
        found = await served.metrics()
        assert found['baton_http_responses_total{reason="",route="/v1/models",status="200"}'] == 20
        assert found['baton_http_responses_total{reason="invalid_request",route="other",status="400"}'] == 7
        for number in range(2):
            assert found[f'baton_front_cpu_seconds_total{{front="{number}"}}'] > 0
            assert found[f'baton_front_memory_bytes{{front="{number}"}}'] > 1e6


async def test_a_front_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_S", 2.5)
    async with fronts() as served:
        os.kill(served.pids[0], signal.SIGSTOP)
        await served.until('baton_front_restarts_total{front="0"}', 1)
        await served.ready()
        served.watched.pids |= set(served.pids)


async def test_every_front_gets_a_new_certificate(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, AUTHORITY)
    trusted = ssl.create_default_context(cafile=str(files.root))

    async def name_of(host: str, port: int) -> str:
        async with await anyio.connect_tcp(
            host, port, tls=True, ssl_context=trusted, tls_standard_compatible=False
        ) as made:
            certificate: Any = made.extra(TLSAttribute.peer_certificate)
            return str(dict(pair for each in certificate["subject"] for pair in each)["commonName"])

    async def names(base: str) -> Counter[str]:
        host, _, port = base.removeprefix("https://").partition(":")
        return Counter(await gather(*[partial(name_of, host, int(port))] * 16))

    async with fronts(trusted=trusted, **files.settings) as served:
        assert await names(served.watched.base) == {"server": 16}
        other = write_certificate(tmp_path, AUTHORITY, "other")
        other.cert.replace(files.cert)
        refused = await served.client.post("/admin/tls/reload", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "tls_not_reloaded")
        assert await names(served.watched.base) == {"server": 16}
        other.key.replace(files.key)
        assert (await served.client.post("/admin/tls/reload", json={})).status_code == 200
        assert await names(served.watched.base) == {"other": 16}


async def test_a_unix_socket_is_served_by_fronts_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with fronts(unix_socket=str(path)):
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
    assert not path.exists()


async def test_a_stream_finishes_in_the_grace_of_a_shutdown() -> None:
    async with fronts(shutdown_grace_s=30) as served, anyio.create_task_group() as group:
        results: list[tuple[bool, list[Any], str]] = []

        async def one() -> None:
            results.append(await read_events(served.watched.base, STREAM | {"max_tokens": 100}))

        for _ in range(4):
            group.start_soon(one)
        await served.until(LIVE, 4)
        os.kill(os.getpid(), signal.SIGTERM)
        await served.watched.ended.wait()
        assert [whole for whole, _, _ in results] == [True] * 4


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 2), *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ((1, 2), (2, 1)))],
)
async def test_a_gateway_takes_over_from_fronts_and_with_fronts(before: int, after: int) -> None:
    statuses: list[int] = []
    with gateway(gateways=before) as old:
        port = int(said(old, "port").split()[1])
        said(old, "state ready")
        assert await ask(port) == 200
        with gateway(port, gateways=after) as new:

            async def new_connections() -> None:
                while old.poll() is None:
                    statuses.append(await ask(port))

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(new_connections)
            assert await anyio.to_thread.run_sync(old.wait) == 0
            assert set(statuses) == {200}
            assert await who(port) == new.pid
            new.terminate()
            assert await anyio.to_thread.run_sync(new.wait) == 0


async def test_no_front_outlives_a_gateway_that_is_killed() -> None:
    with gateway(gateways=2) as killed:
        said(killed, "port")
        said(killed, "state ready")
        found = [psutil.Process(pid) for pid in fronts_of(killed.pid)]
        assert len(found) == 2
        killed.kill()
        await anyio.to_thread.run_sync(killed.wait)
        gone, left = await anyio.to_thread.run_sync(psutil.wait_procs, found, 30)
        assert (len(gone), left) == (2, [])


def test_the_command_starts_fronts_and_ends_them(tmp_path: Path) -> None:
    with attacked_server(tmp_path, "--gateways", "2") as server:
        assert [server.request("GET", "/v1/models")[0] for _ in range(8)] == [200] * 8
        found = [psutil.Process(pid) for pid in fronts_of(server.process.pid)]
        assert len(found) == 2
    gone, left = psutil.wait_procs(found, 30)
    assert (len(gone), left) == (2, [])


@pytest.mark.parametrize("arguments", [(), ("--endpoint", "ipc:///x", "--spec", "{}")])
def test_a_front_that_is_started_by_hand_says_what_it_needs(arguments: Sequence[str]) -> None:
    ended = subprocess.run([sys.executable, "-m", "gateway.fronts", *arguments], capture_output=True, text=True)
    assert ended.returncode == 2
    assert re.search("--endpoint|missing required field `number`", ended.stderr)


def test_a_front_has_the_settings_that_it_needs_and_no_secret() -> None:
    found = FrontSettings.of(GatewaySettings(max_connections=7, gateways=2, api_key="secret", admin_key="secret"))
    assert found.chosen().max_connections == 7
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"gateways": 0}, "gateways is 0; it must be between 1 and 64"),
        ({"gateways": 65}, "gateways is 65; it must be between 1 and 64"),
    ],
)
def test_a_number_of_fronts_out_of_range_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(GatewaySettingsError, match=problem):
        GatewaySettings(**settings)
