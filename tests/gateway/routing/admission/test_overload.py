"""Clients that overload a worker, in virtual time: the router, the worker's engine, and a scripted runner."""

import asyncio
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from gateway.errors import RequestError
from gateway.openai.decoding import RequestDecoder
from gateway.routing.admission.fair_shares import OUTPUT_COST
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from protocol.scheduling import ahead
from tests.gateway.harness.engines import EngineWorker
from tests.gateway.harness.virtual import BACKEND
from workers.scripted.runner import ScriptedRunner

pytestmark = pytest.mark.anyio

SLOTS = 8
STEP_S = 0.05
CAPACITY = SLOTS / STEP_S
"""Tokens that the worker generates in a second."""


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


@dataclass
class Client:
    """Connections of one key, each with one request after the other."""

    name: str
    connections: int
    after: float = 0.0
    """Seconds after which they open."""
    until: float = math.inf
    """Seconds after which they send no more."""
    max_tokens: int = 16
    prompt: str = "some words"
    served: int = 0
    """Tokens."""
    ended: int = 0
    refused: list[tuple[float, int]] = field(default_factory=list)
    """When, and the `Retry-After`."""
    displaced: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)
    """When a request was admitted, and how long it then took."""


class Overload:
    """A server under load for some time."""

    def __init__(self, seconds: float, **settings: Any) -> None:
        chosen = GatewaySettings(**settings)
        self.router = Router(chosen)
        self.worker = EngineWorker("w", slots=SLOTS, runner=lambda: ScriptedRunner(slots=SLOTS))
        self.worker.join(self.router)
        self.most_waiting = 0
        self._decoder = RequestDecoder(chosen)
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds

    async def run(self, *clients: Client) -> None:
        """Return when the last request has been answered."""
        async with anyio.create_task_group() as group:
            for client in clients:
                for _ in range(client.connections):
                    group.start_soon(self._connect, client)
            group.start_soon(self._compute)
        assert self.router.is_idle

    async def _compute(self) -> None:
        while self._loop.time() < self._until or not self.router.is_idle:
            await anyio.sleep(STEP_S)
            self.worker.step()
            self.worker.answer()
            self.most_waiting = max(self.most_waiting, self.router.waiting()["tiny"])

    async def _connect(self, client: Client) -> None:
        until = min(self._until, self._loop.time() + client.until)
        await anyio.sleep(client.after)
        while (now := self._loop.time()) < until:
            try:
                group = self.open(client)
            except RequestError as error:
                if error.code is not ErrorCode.OVERLOADED:
                    raise
                client.refused.append((now, error.retry_after_s or 0))
                await anyio.sleep(1.0)  # sooner than `Retry-After`
                continue
            await group.wait()
            took = self._loop.time() - now
            counts = group.token_counts()
            if self._loop.time() < self._until:
                client.served += counts.completion
            if group.failure is None:
                client.ended += 1
                client.waits.append((now, took))
            else:
                assert group.failure.code is ErrorCode.OVERLOADED
                client.displaced += 1
            group.close()

    def open(self, client: Client) -> RequestGroup:
        body = {"model": "tiny", "prompt": client.prompt, "max_tokens": client.max_tokens, "ignore_eos": True}
        request = self._decoder.completion(json.dumps(body).encode()).request
        return self.router.admission.open(request, "r", client=client.name)


async def test_equal_keys_get_equal_shares_at_twenty_times_the_capacity() -> None:
    overload = Overload(60)
    a, b = Client("a", 160), Client("b", 160)
    await overload.run(a, b)
    assert a.served == pytest.approx(b.served, rel=0.1)
    assert a.served + b.served > 0.9 * 60 * CAPACITY
    assert overload.most_waiting <= GatewaySettings().max_waiting_streams


async def test_requests_of_unequal_size_share_by_their_tokens() -> None:
    overload = Overload(120)
    long, short = Client("long", 100, max_tokens=64), Client("short", 100, max_tokens=8)
    await overload.run(long, short)
    charged = [OUTPUT_COST * each.served + len(each.prompt) * each.ended for each in (long, short)]
    assert charged[0] == pytest.approx(charged[1], rel=0.1)


async def test_weights_divide_the_worker() -> None:
    overload = Overload(60, key_weights=("gold=3",))
    gold, other = Client("gold", 160), Client("other", 160)
    await overload.run(gold, other)
    assert gold.served == pytest.approx(3 * other.served, rel=0.1)


async def test_a_greedy_key_does_not_keep_a_polite_one_out() -> None:
    overload = Overload(45)
    greedy, polite = Client("greedy", 400), Client("polite", 2)
    await overload.run(greedy, polite)
    assert (polite.refused, polite.displaced) == ([], 0)
    assert polite.ended >= 2 * 45 / (3 * 16 * STEP_S)
    assert max(took for _, took in polite.waits) < 5 * 16 * STEP_S
    assert greedy.displaced > 0
    assert overload.most_waiting <= GatewaySettings().max_waiting_streams


@pytest.mark.parametrize("policy", ["fifo", "shortest-uncached-first", "priority"])
async def test_retry_after_is_the_time_that_the_queue_of_a_key_takes(policy: str) -> None:
    """A request that had been admitted instead of refused would have been answered at about that time."""
    overload = Overload(60, scheduler_policy=policy)
    a, b = Client("a", 160), Client("b", 160)
    await overload.run(a, b)
    for client in (a, b):
        advised = [retry_after for when, retry_after in client.refused if 1030 < when < 1050]
        took = [seconds for when, seconds in client.waits if 1020 < when < 1050]
        assert advised
        assert min(took) > 1
        assert sorted(took)[len(took) // 2] / 2 < min(advised)
        assert max(advised) < 2 * sorted(took)[len(took) // 2]


async def test_a_displaced_client_gets_an_error_with_retry_after() -> None:
    overload = Overload(5, max_waiting_streams=4)
    greedy, polite = Client("greedy", 0), Client("polite", 0)
    groups = [overload.open(greedy) for _ in range(SLOTS + ahead(SLOTS) + 4)]
    with pytest.raises(RequestError, match="all the requests they can hold"):
        overload.open(greedy)
    kept = [overload.open(polite) for _ in range(2)]
    assert [group.failure is not None for group in groups[-4:]] == [False, False, True, True]
    failure = groups[-1].failure
    assert failure is not None
    assert (failure.code, failure.retry_after_s >= 1) == (ErrorCode.OVERLOADED, True)
    with pytest.raises(RequestError):
        overload.open(polite)
    await overload.run()
    assert Counter(group.failure is None for group in [*groups, *kept]) == {True: 16, False: 2}


async def test_a_client_that_had_the_server_for_itself_is_not_kept_out_by_one_that_comes() -> None:
    """Tokens that it got while nobody else wanted them are no debt: here, as many as both get in the next minute."""
    overload = Overload(180)
    first, more, later = Client("busy", 4), Client("busy", 156, after=120.0), Client("late", 160, after=120.0)
    served: list[int] = []

    async def note() -> None:
        await anyio.sleep(120.0)
        served.append(first.served)

    async with anyio.create_task_group() as group:
        group.start_soon(note)
        await overload.run(first, later, more)
    assert served[0] > 0.4 * 120 * CAPACITY
    assert first.served - served[0] + more.served == pytest.approx(later.served, rel=0.1)


@pytest.mark.parametrize(("after", "until"), [(60.0, math.inf), (0.0, 60.0)], ids=["come", "go"])
async def test_retry_after_is_right_soon_after_other_clients_come_or_go(after: float, until: float) -> None:
    """It is within a factor of two of the time of answers to requests that the client sent at that time."""
    overload = Overload(125, max_waiting_streams=64)
    one, others = Client("one", 160), [Client(f"other{number}", 20, after=after, until=until) for number in range(8)]
    await overload.run(one, *others)
    ratios = []
    for when, advised in one.refused:
        if 1065 < when < 1120:
            took = [seconds for sent, seconds in one.waits if abs(sent - when) <= 2.0]
            ratios += [advised * len(took) / sum(took)] if took else []
    assert len(ratios) > 100
    assert min(ratios) >= 0.5
    assert max(ratios) <= 2.0
