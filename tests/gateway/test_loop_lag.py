"""The lag of the event loop, as a scrape reports it."""

import asyncio

from gateway.loop_lag import TICK_S, LoopLag
from tests.gateway.harness.virtual import VirtualLoop


def test_the_longest_lag_since_the_last_scrape_is_reported_once() -> None:
    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        lag = LoopLag()
        task = asyncio.create_task(lag.run())
        await asyncio.sleep(3 * TICK_S)
        found = [lag.take()]
        for held_s in (0.5, 2.0, 0.3):
            await asyncio.sleep(TICK_S / 2)
            loop.hold(held_s)
            await asyncio.sleep(3 * TICK_S)
        found += [lag.take(), lag.take()]
        task.cancel()
        return found

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        before, longest, after = runner.run(run())
    assert before < 0.001
    assert 2.0 - TICK_S <= longest <= 2.0
    assert after < 0.001
