"""The simulation's event loop: time jumps, and events of the world come in order with the gateway's timers."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio
import pytest

from bench.simulation.cpu_meter import CpuMeter
from bench.simulation.event_loop import START_S, SimulationLoop, Stalled


def run(function: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=SimulationLoop) as runner:
        runner.run(function)


def loop() -> SimulationLoop:
    found = asyncio.get_running_loop()
    assert isinstance(found, SimulationLoop)
    return found


def test_events_and_timers_come_in_the_order_of_their_times() -> None:
    async def story() -> None:
        order: list[tuple[str, float]] = []
        for seconds in (3600.0, 1.0):
            loop().after(seconds, lambda: order.append(("event", loop().time() - START_S)))
        await anyio.sleep(60.0)
        order.append(("timer", loop().time() - START_S))
        await anyio.sleep(7200.0)
        assert order == [("event", 1.0), ("timer", 60.0), ("event", 3600.0)]

    run(story())


def test_an_event_wakes_a_task_at_its_own_time() -> None:
    async def story() -> None:
        woken = asyncio.Event()
        loop().after(5.0, woken.set)
        loop().after(9.0, lambda: None)
        await woken.wait()
        assert loop().time() == START_S + 5.0

    run(story())


def test_an_event_of_the_past_happens_now() -> None:
    async def story() -> None:
        happened: list[float] = []
        loop().at(0.0, lambda: happened.append(loop().time()))
        await anyio.sleep(1.0)
        assert happened == [START_S]

    run(story())


def test_a_wait_that_nothing_ends_is_an_error() -> None:
    async def story() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stalled):
        run(story())


def test_cpu_time_is_divided_by_the_wall_time_of_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = iter([0.0, 1.0, 4.0, 5.0, 9.0, 10.0])
    cpu = iter([100.0, 105.0])
    monkeypatch.setattr("bench.simulation.cpu_meter.time.perf_counter", lambda: next(wall))
    monkeypatch.setattr("bench.simulation.cpu_meter.time.thread_time", lambda: next(cpu))
    meter = CpuMeter()
    meter.model(lambda: meter.gateway(lambda: None))
    # Gateway to 1, model to 4, gateway to 5, model to 9, gateway to 10; and 5 s of CPU time.
    assert list(meter.read()) == pytest.approx([1.5, 3.5])
