"""Two gateways, as real processes, with one remote worker: the end of one gateway is nothing to the streams of the
other one, and frees its slots."""

import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from actors.transport.allow_list import AllowList
from actors.transport.keys import KeyPair, make_gateway_key, make_key
from tests.cli.commands.test_serve import DEADLINE_S, SERVE, read_until, serving
from tests.gateway.fleet.remote import joining
from tests.gateway.harness.serving import choices
from tests.ports import port_for_later

pytestmark = pytest.mark.anyio

SLOTS = 8
RATE = 100.0
STREAM = {"model": "tiny", "prompt": "Once upon a time", "ignore_eos": True, "stream": True, "temperature": 1.0}


@dataclass
class Gateway:
    """A gateway process that the worker has joined."""

    process: Any
    address: str
    key: KeyPair
    log: list[str]
    url: str = ""

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def metrics(self) -> list[str]:
        return httpx.get(f"{self.url}/metrics", timeout=DEADLINE_S).text.splitlines()

    def worker(self) -> dict[str, Any]:
        (shown,) = httpx.get(f"{self.url}/admin/workers", timeout=DEADLINE_S).json()["workers"]
        return dict(shown)

    async def text(self, seed: int, tokens: int, fifth: Callable[[], None] = lambda: None) -> str:
        """The text of a stream, which must end well and once. `fifth` is called at its fifth event."""
        async with httpx.AsyncClient(base_url=self.url, timeout=DEADLINE_S) as client:
            found = await choices(client, STREAM | {"seed": seed, "max_tokens": tokens}, fifth)
        return "".join(choice["text"] for choice in found)


@contextmanager
def gateway(folder: Path, worker: KeyPair) -> Iterator[Gateway]:
    key = make_gateway_key(folder)
    AllowList(folder).add("far", worker.public_text)
    address = f"tcp://127.0.0.1:{port_for_later()}"
    join = ["--workers", "0", "--listen-workers", address, "--keys-dir", str(folder)]
    with serving([*SERVE, *join]) as process:
        yield Gateway(process, address, key, [])


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways, with keys of their own, that have the worker."""
    own = make_key(folder / "far.key")
    with gateway(folder / "a", own) as first, gateway(folder / "b", own) as second:
        places = [(each.address, each.key) for each in (first, second)]
        with joining(folder / "far.key", *places, max_batch_size=SLOTS, tokens_per_second=RATE):
            for each in (first, second):
                each.log = read_until(each.process, "ready")
                each.url = json.loads(each.log[-1])["url"]
            yield first, second


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not true():  # noqa: ASYNC110  other processes are waited for
            await anyio.sleep(0.02)


async def test_a_killed_gateway_frees_its_slots_and_leaves_the_streams_of_the_other_one(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (dies, lives):
        seeds = range(SLOTS // 2)
        expected = {seed: await lives.text(seed, 60) for seed in seeds}
        got: dict[int, str] = {}
        started = 0

        def fifth() -> None:
            nonlocal started
            started += 1
            if started == 2 * len(seeds):
                dies.kill()

        async def lost(seed: int) -> None:
            with pytest.raises(httpx.HTTPError):
                await dies.text(seed, 4000, fifth)

        async def kept(seed: int) -> None:
            got[seed] = await lives.text(seed, 60, fifth)

        async with anyio.create_task_group() as group:
            for seed in seeds:
                group.start_soon(lost, seed)
            await until(lambda: started == len(seeds))
            for seed in seeds:
                group.start_soon(kept, seed)
        assert got == expected
        assert len(set(got.values())) == len(seeds), "the seeds make a difference"
        await until(lambda: lives.worker()["slots_active"] == 0)  # the lost ones had 4,000 tokens, 40 s, to go
        worker = lives.worker()
        assert (worker["state"], worker["incarnation"]) == ("ready", 1)
        replays = [line for line in lives.metrics() if line.startswith("baton_replays_total{")]
        assert [line for line in replays if not line.endswith(" 0.0")] == []
        logged = [json.loads(line) for line in lives.log if '"workers_are_shared"' in line]
        assert [(line["worker"], line["gateways"]) for line in logged] == [("far", 2)]
