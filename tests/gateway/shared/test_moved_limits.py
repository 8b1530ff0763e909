"""Limits that move between gateways: all together use no more than one gateway would."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.keys.key_file import KeyFile
from gateway.keys.record import KeyLimits, make_record
from gateway.shared import redis_leases
from gateway.shared.redis_leases import FIELD, UNCLAIMED, LeasesUnreachable
from tests.gateway.shared.test_limit_leases import Leaseholder, gateways, needs_redis, redis_server, rounds

pytestmark = pytest.mark.anyio
TOKENS = 1000
LARGEST = 40
"""Tokens of the largest request of the random ones."""


class Clock:
    """The clock of the accounts, which the test moves: later than any time at which one was made."""

    def __init__(self) -> None:
        self.now = time.monotonic() + 1000

    def __call__(self) -> float:
        return self.now

    def drive(self, made: Sequence[Leaseholder]) -> None:
        for each in made:
            each.account._clock = self


def spend(holder: Leaseholder, tokens: int, requests: int = 1) -> int:
    """Send requests of so many tokens until one is refused. Returns the tokens that were used."""
    used = 0
    for _ in range(requests):
        try:
            holder.account.admit(tokens).settle(tokens)
        except RequestError:
            break
        used += tokens
    return used


@needs_redis
async def test_a_client_that_moves_its_share_gets_no_token_twice(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path, limits=KeyLimits(tokens_per_minute=TOKENS)) as (one, two):
            Clock().drive([one, two])
            await rounds([one, two], 3)
            for _ in range(10):
                spend(one, 0)
                await rounds([one, two])
            used = spend(one, 5, 1000)
            assert used >= 0.9 * TOKENS
            for _ in range(30):
                used += spend(two, 1, 2)
                await rounds([one, two])
            assert two.account.share > 0.9
            used += spend(two, 5, 1000)
            assert used <= TOKENS
            assert used >= 0.95 * TOKENS, "and none is lost"


@needs_redis
async def test_what_a_client_did_not_use_moves_with_its_share(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path, limits=KeyLimits(tokens_per_minute=TOKENS)) as (one, two):
            Clock().drive([one, two])
            await rounds([one, two], 3)
            assert spend(one, 100, 2) == 200
            for _ in range(20):
                spend(two, 0)
                await rounds([one, two])
            assert two.account.share == pytest.approx(0.95, abs=0.01)
            assert 0.93 * 800 <= two.account.states()[0].left <= 800


@needs_redis
async def test_a_gateway_that_leaves_hands_over_what_it_has_left(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path, limits=KeyLimits(tokens_per_minute=TOKENS)) as (one, two):
            Clock().drive([one, two])
            await rounds([one, two], 3)
            assert spend(one, 100, 2) == 200
            await one.leases.leave()
            await rounds([two], 2)
            assert two.account.states()[0].left == 799, "all but a unit, which each can always use"
            assert not await two.store._redis.hexists(FIELD, UNCLAIMED)


@needs_redis
async def test_a_key_that_is_added_has_its_limit_once(tmp_path: Path) -> None:
    limits = KeyLimits(requests_per_minute=30, tokens_per_minute=TOKENS)
    with redis_server(tmp_path) as (url, _):
        async with gateways(url, tmp_path, 3) as made:
            await rounds(made, 3)
            KeyFile(tmp_path / "keys").add(make_record("b", "another", limits))
            used = 0
            for each in made:
                each.keys.adopt(each.keys.read())
                account = each.account_of("b")
                account._clock = Clock()
                assert [state.per_minute for state in account.states()] == [10, 333]
                account.admit(50).settle(50)
                used += 50
            await rounds(made, 40)
            left = sum(each.account_of("b").states()[1].left for each in made)
            assert 0.98 * TOKENS <= used + left <= TOKENS


class Race:
    """Gateways that spend, exchange, lose answers, come and go at random."""

    def __init__(self, url: str, file: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.file = file
        self.random = random.Random(seed)
        self.monkeypatch = monkeypatch
        self.clock = Clock()
        self.began = self.clock.now
        self.made = 0
        self.used = 0
        self.live: list[Leaseholder] = []
        self.over: list[Leaseholder] = []

    async def add(self) -> None:
        holder = Leaseholder(f"gateway-{self.made}", self.url, self.file)
        self.clock.drive([holder])
        self.made += 1
        self.live.append(holder)
        await holder.leases.exchange()

    async def step(self, what: str) -> None:
        holder = self.random.choice(self.live)
        match what:
            case "spend":
                self.used += spend(holder, self.random.randint(0, LARGEST), self.random.randint(1, 60))
            case "ask":
                spend(holder, 0, self.random.randint(1, 60))
            case "exchange":
                await holder.leases.exchange()
            case "wait":
                self.clock.now += self.random.random() * 5
            case "lose answer":  # after the script has run
                with self.monkeypatch.context() as patched:
                    patched.setattr(redis_leases, "_GRANTS", redis_leases._CLAIMS)
                    with pytest.raises(LeasesUnreachable):
                        await holder.store.exchange(holder.leases._bids())
            case "add" if len(self.live) < 4:
                await self.add()
            case "leave" if len(self.live) > 1:
                await holder.leases.leave()
                self.live.remove(holder)
            case "die" if len(self.live) > 1:
                lease = await holder.store._redis.hget(FIELD, holder.name)
                assert isinstance(lease, bytes)
                await holder.store._redis.hset(FIELD, holder.name, b"1 " + lease.split(b" ", 1)[1])
                self.live.remove(holder)
                self.over.append(holder)

    async def run(self, steps: Sequence[str]) -> None:
        try:
            await self.add()
            await self.add()
            await self.live[0].store._redis.persist(FIELD)
            for what in steps:
                await self.step(what)
                bound = TOKENS * (1 + (self.clock.now - self.began) / 60) + self.made * LARGEST
                assert self.used <= bound, (self.used, bound, " ".join(steps))
        finally:
            await self.live[0].store._redis.delete(FIELD)
            for each in [*self.live, *self.over]:
                await each.store._redis.aclose()


@needs_redis
def test_gateways_together_never_use_more_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one request for each gateway, which is always possible."""
    file = tmp_path / "keys"
    KeyFile(file).add(make_record("a", "secret", KeyLimits(tokens_per_minute=TOKENS)))
    kinds = ["spend", "ask", "exchange", "exchange", "exchange", "wait", "lose answer", "add", "leave", "die"]
    with redis_server(tmp_path) as (url, _):

        @settings(max_examples=40, deadline=None)
        @given(st.lists(st.sampled_from(kinds), min_size=20, max_size=80), st.integers(0, 1 << 32))
        def check(steps: list[str], seed: int) -> None:
            anyio.run(Race(url, file, seed, monkeypatch).run, steps)

        check()
