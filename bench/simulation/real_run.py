"""The load of a scenario on a real gateway with real worker processes, to check the simulation against."""

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass

from bench.gateway import MeasuredServer, ServerProcess
from bench.gateway_load.client import Received, StreamClient
from bench.simulation.engine import TEXT
from bench.simulation.scenario import Scenario

WARM_UP = 16
"""Requests for each worker before those that are measured."""
IDLE_S = 2.0
"""Time for which the CPU time of the idle gateway is measured."""


@dataclass(frozen=True, slots=True)
class RealPoint:
    """The figures of a real gateway."""

    workers: int
    requests: int
    cpu_us: float
    """CPU microseconds of the gateway's process for each request, HTTP and ZeroMQ included."""
    idle: float
    """The part of a core that it takes with as many workers and no requests."""
    seconds: float
    """Wall time of the load."""
    first_token_s: float
    """Mean time from the connection to the first bytes of the stream's events."""
    errors: tuple[str, ...]

    @property
    def idle_us(self) -> float:
        """CPU microseconds that it would have taken in that time without requests, for each request."""
        return 1e6 * self.idle * self.seconds / self.requests


class _TimedClient(StreamClient):
    def __init__(self, request: bytes, received: Received, ended: asyncio.Future[None], first: list[float]) -> None:
        super().__init__(request, received, ended)
        self._first = first
        self._began = time.perf_counter()
        self._waits = True

    def data_received(self, data: bytes) -> None:
        if self._waits and b"data: " in data:
            self._waits = False
            self._first.append(time.perf_counter() - self._began)
        super().data_received(data)


def run_really(scenario: Scenario) -> RealPoint:
    """Send the scenario's load to a gateway with as many scripted workers. Their steps take `EngineModel.step_s`.
    Raises RuntimeError if the server does not start."""
    engine = scenario.engine
    server = ServerProcess(
        MeasuredServer("gateway", workers=scenario.workers),
        engine.slots,
        1 / engine.step_s,
        max(scenario.output_tokens),
    )
    try:
        asyncio.run(_send(server.port, scenario, WARM_UP * scenario.workers))
        before = sum(server.cpu_seconds())
        time.sleep(IDLE_S)
        idle = (sum(server.cpu_seconds()) - before) / IDLE_S
        before, began = sum(server.cpu_seconds()), time.perf_counter()
        received, first = asyncio.run(_send(server.port, scenario, scenario.requests))
        seconds, spent = time.perf_counter() - began, sum(server.cpu_seconds()) - before
    finally:
        server.stop()
    first_s = statistics.fmean(first) if first else 0.0
    cpu_us = 1e6 * spent / scenario.requests
    return RealPoint(scenario.workers, scenario.requests, cpu_us, idle, seconds, first_s, tuple(received.errors))


async def _send(port: int, scenario: Scenario, requests: int) -> tuple[Received, list[float]]:
    chance, loop = random.Random(scenario.seed), asyncio.get_running_loop()
    received, first = Received(), list[float]()

    async def one(request: bytes) -> None:
        ended: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(lambda: _TimedClient(request, received, ended, first), "127.0.0.1", port)
        await ended

    async with asyncio.TaskGroup() as group:
        at = loop.time()
        for _ in range(requests):
            prompt, output = chance.randint(*scenario.prompt_tokens), chance.randint(*scenario.output_tokens)
            group.create_task(one(_request(prompt, output)))
            at += chance.expovariate(scenario.requests_per_s)
            await asyncio.sleep(at - loop.time())
    return received, first


def _request(prompt: int, output: int) -> bytes:
    body = {"model": "scripted", "prompt": TEXT * prompt, "max_tokens": output, "ignore_eos": True, "stream": True}
    payload = json.dumps(body).encode()
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    return f"POST /v1/completions HTTP/1.1\r\n{fields}\r\n\r\n".encode() + payload
