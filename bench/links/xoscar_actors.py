"""xoscar, an actor framework: the same work as calls of its actors."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.links.meter import SMALL, STEP, WARM_UP, Figures, decoded_tokens, figures
from protocol.codec import encode

IN_FLIGHT = 64
"""Calls at once, while the child streams."""


def xoscar_across(module: Any) -> Callable[[int, int], Awaitable[Figures]]:
    """The measurement between two processes of a pool."""

    class Sink(module.Actor):  # type: ignore[misc]
        def __init__(self) -> None:
            self.first, self.tokens = 0.0, 0

        async def push(self, frame: bytes) -> None:
            if self.first:
                self.tokens += decoded_tokens(frame)
            else:
                self.first = time.perf_counter()

        async def seconds(self) -> tuple[int, float]:
            return self.tokens, time.perf_counter() - self.first

    class Source(module.Actor):  # type: ignore[misc]
        async def echo(self, frame: bytes) -> bytes:
            return frame

        async def send(self, sink: Any, frames: int) -> None:
            for _ in range(max(1, frames // IN_FLIGHT)):
                await asyncio.gather(*(sink.push(encode(STEP)) for _ in range(IN_FLIGHT)))

    async def measure(trips: int, frames: int) -> Figures:
        pool = await module.create_actor_pool("127.0.0.1", n_process=1)
        async with pool:
            inner = module.allocate_strategy.ProcessIndex(1)
            outer = module.allocate_strategy.ProcessIndex(0)
            source = await module.create_actor(Source, address=pool.external_address, allocate_strategy=inner)
            sink = await module.create_actor(Sink, address=pool.external_address, allocate_strategy=outer)
            times = []
            for _ in range(trips + WARM_UP):
                began = time.perf_counter()
                await source.echo(SMALL)
                times.append(time.perf_counter() - began)
            await source.send(sink, frames)
            return figures(times, *await sink.seconds())

    return measure


async def xoscar_local(module: Any, asks: int) -> Figures:
    """Calls of one actor in the caller's own process."""

    class Counter(module.Actor):  # type: ignore[misc]
        total = 0

        async def add(self, number: int) -> int:
            self.total += number
            return self.total

    pool = await module.create_actor_pool("127.0.0.1", n_process=0)
    async with pool:
        ref = await module.create_actor(Counter, address=pool.external_address)
        began = time.perf_counter()
        for _ in range(asks):
            await ref.add(1)
        return {"ask_s": asks / (time.perf_counter() - began)}
