"""Limits of API keys that several gateways share: with a Redis that answers, is slow, or is gone."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from structlog.testing import capture_logs

from gateway.daemon import run_daemon
from gateway.errors import RequestError
from gateway.keys.account import KeyAccount
from gateway.keys.api_keys import ApiKeys
from gateway.keys.key_file import KeyFile
from gateway.keys.record import KeyLimits, make_record
from gateway.routing.placement.wait_queue import WaitQueue
from gateway.settings import GatewaySettings, GatewaySettingsError
from gateway.shared import limit_leases, redis_leases
from gateway.shared.limit_leases import LimitLeases
from gateway.shared.opening import SharingUnavailable
from gateway.shared.redis_leases import COSTS, FIELD, Bid, Grant, LeasesUnreachable, RedisLeases
from gateway.shared.shared_turns import SharedTurns
from tests.cli.commands.test_serve import DEADLINE_S, SERVE, read_until, serving

pytestmark = pytest.mark.anyio
SERVER = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(SERVER is None, reason="redis-server is not installed")
LIMITS = KeyLimits(requests_per_minute=100, tokens_per_minute=1000, max_concurrent=10)


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A Redis on a Unix socket."""
    path = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([SERVER or "", *options], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + DEADLINE_S
        with socket.socket(socket.AF_UNIX) as probe:
            while probe.connect_ex(str(path)):  # the file is there before it listens
                assert time.monotonic() < end
                assert process.poll() is None
                time.sleep(0.01)
        yield f"unix://{path}", process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


class Leaseholder:
    """A gateway whose key `a` has limits."""

    def __init__(self, name: str, url: str, file: Path) -> None:
        self.name = name
        self.keys = ApiKeys(GatewaySettings(api_keys_file=str(file)))
        self.store = RedisLeases(url, name)
        self.queue = WaitQueue(8, 1.0, overdue=lambda sequence: None)
        self.leases = LimitLeases(
            self.store, self.keys, SharedTurns(self.queue.take_served, self.queue.charge_elsewhere)
        )

    @property
    def account(self) -> KeyAccount:
        return self.account_of("a")

    def account_of(self, name: str) -> KeyAccount:
        return self.keys.accounts[name]

    def limits(self) -> list[int]:
        return [state.per_minute for state in self.account.states()]

    def check_concurrent(self, most: int) -> None:
        """So many requests at once are admitted, and no further one. They end then."""
        admitted = [self.account.admit() for _ in range(most)]
        with pytest.raises(RequestError, match="max_concurrent"):
            self.account.admit()
        for each in admitted:
            each.withdraw()


@asynccontextmanager
async def gateways(
    url: str, folder: Path, count: int = 2, limits: KeyLimits = LIMITS
) -> AsyncIterator[list[Leaseholder]]:
    file = folder / "keys"
    KeyFile(file).add(make_record("a", "secret", limits))
    made = [Leaseholder(f"gateway-{number}", url, file) for number in range(count)]
    try:
        yield made
    finally:
        for each in made:
            await each.leases.leave()


async def rounds(made: Sequence[Leaseholder], count: int = 1) -> None:
    for _ in range(count):
        for each in made:
            await each.leases.exchange()


@needs_redis
async def test_gateways_divide_a_limit_and_never_have_more_than_the_whole(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path) as (one, two):
            assert one.limits() == [100, 1000], "its own limits, before the first exchange"
            await rounds([one])
            assert one.limits() == [100, 1000]
            await rounds([two])
            assert two.limits() == [1, 1], "the first one has all, and one request is always possible"
            await rounds([one, two], 2)
            assert one.limits() == two.limits() == [50, 500]
            one.check_concurrent(5)
            two.check_concurrent(5)
            assert (one.leases.shared, two.leases.shared) == (True, True)


@needs_redis
async def test_the_shares_follow_the_requests(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path) as (one, two):
            await rounds([one, two], 3)
            for _ in range(20):
                two.account.admit().settle()
            for _ in range(3):
                await rounds([one, two])
                assert one.limits()[1] + two.limits()[1] <= 1000
            assert two.limits() == [95, 950]
            assert one.limits() == [5, 50]
            assert two.account.states()[0].left < 80, "what was used stays used"


@needs_redis
async def test_the_share_of_a_gateway_that_leaves_or_dies_goes_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path, 3) as (one, two, three):
            await rounds([one, two, three], 4)
            assert one.limits() == [33, 333]
            await three.leases.leave()
            await rounds([one, two], 2)
            assert one.limits() == [50, 500]
            monkeypatch.setattr(redis_leases, "LEASE_S", 0.001)
            await rounds([two])  # its last lease, which expires
            monkeypatch.setattr(redis_leases, "LEASE_S", 5.0)
            await anyio.sleep(0.01)
            await rounds([one], 2)
            assert one.limits() == [100, 1000]


@needs_redis
@pytest.mark.parametrize("how", ["gone", "slow"])
async def test_without_redis_each_gateway_has_its_own_limits_once_the_leases_have_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with redis_server(tmp_path) as (url, process):
        async with gateways(url, tmp_path) as (one, two):
            await rounds([one, two], 3)
            monkeypatch.setattr(redis_leases, "TIMEOUT_S", 0.05)
            process.send_signal(signal.SIGKILL if how == "gone" else signal.SIGSTOP)
            with capture_logs() as logged:
                await rounds([one])
                assert one.limits() == [50, 500], "the lease is valid"
                monkeypatch.setattr(one.leases, "_until", 0.0)
                await rounds([one], 2)
                assert one.limits() == [100, 1000]
                assert not one.leases.shared
                if how == "slow":
                    process.send_signal(signal.SIGCONT)
                    monkeypatch.setattr(redis_leases, "TIMEOUT_S", 30.0)
                    await rounds([one, two], 3)
                    assert one.limits() == [50, 500]
            events = [line["event"] for line in logged]
            assert events == ["limits_not_shared"] + ["limits_shared"] * (how == "slow"), "once each"


@needs_redis
@pytest.mark.parametrize("field", ["x", "1 no json", "99999999999999 no json", '99999999999999 {"a": 1}'])
async def test_what_others_have_written_does_not_break_it(tmp_path: Path, field: str) -> None:
    with redis_server(tmp_path) as (url, _):
        store = RedisLeases(url, "one")
        await store._redis.hset(FIELD, "other", field)
        wanted = {"a": Bid(0.0, False, 0.0, 1.0)}
        if field in ("x", "1 no json"):
            assert await store.exchange(wanted) == ({"a": Grant(1.0, False, 1.0, 1.0)}, {}, {})
        else:
            with pytest.raises(LeasesUnreachable):
                await store.exchange(wanted)
        await store.leave({})


@needs_redis
async def test_what_clients_were_served_is_published_until_the_gateway_leaves(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path) as (one, two):
            await rounds([one, two])
            waiting = two.queue.turns("m").shares
            for client in ("greedy", "modest"):
                waiting.enter(client)
            served = one.queue.turns("m").shares
            await rounds([one, two])
            served.charge("greedy", 100.0)
            await rounds([one, two])
            assert waiting.next() == "modest"
            waiting.charge("modest", 99.0)
            assert waiting.next() == "modest"
            waiting.charge("modest", 2.0)
            assert waiting.next() == "greedy"
            await rounds([one, two])
            assert waiting.next() == "greedy", "it is charged once"
            await one.leases.leave()
            assert await two.store._redis.keys(f"{COSTS}*") == [f"{COSTS}gateway-1".encode()]


@needs_redis
async def test_costs_that_others_have_not_written_well_end_the_sharing(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path) as (one, two):
            await rounds([one, two])
            await two.store._redis.set(f"{COSTS}gateway-1", "no json")
            with capture_logs() as logged:
                await rounds([one])
            assert [line["event"] for line in logged] == ["limits_not_shared"]
            assert "costs of gateway 'gateway-1'" in logged[0]["reason"]


@needs_redis
def test_a_server_shares_its_limits_and_says_so(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _), serving([*SERVE, "--redis-url", url, "--name", "tiny"]) as process:
        lines = read_until(process, "ready")
        metrics = httpx.get(f"{json.loads(lines[-1])['url']}/metrics", timeout=DEADLINE_S).text
        assert "baton_limits_shared 1.0" in metrics
        assert [json.loads(line)["gateways"] for line in lines if '"limits_shared"' in line] == [1]


@pytest.mark.parametrize("url", ["http://localhost", "redis://[::1"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(GatewaySettingsError, match="redis_url must be redis://HOST:PORT"):
        GatewaySettings(redis_url=url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:port",
        "redis://localhost?nonsense=1",
        "redis://localhost?protocol=9",
        "redis://localhost?decode_responses=1",
        "rediss://localhost?ssl_cert_reqs=nonsense",
    ],
)
async def test_a_url_that_redis_does_not_take_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SharingUnavailable, match="redis_url: "):
        await run_daemon(GatewaySettings(redis_url=url), [])


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, limit_leases.__name__, None)
    with pytest.raises(SharingUnavailable, match=r"pip install 'baton-serve\[redis\]'"):
        await run_daemon(GatewaySettings(redis_url="redis://localhost"), [])
