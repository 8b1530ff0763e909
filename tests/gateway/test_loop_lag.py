"""The lag of the event loop, as scrapes report it."""

import asyncio

from gateway.loop_lag import TICK_S, WINDOW_S, LoopLag
from tests.gateway.harness.virtual import VirtualLoop


class Measured:
    """A loop whose lag is measured while a test holds it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.lag = LoopLag()
        self.task = asyncio.create_task(self.lag.run())

    async def hold(self, *seconds: float) -> None:
        for each in seconds:
            await asyncio.sleep(TICK_S / 2)
            self.loop.hold(each)
            await asyncio.sleep(3 * TICK_S)


def test_the_longest_lag_of_a_minute_is_reported_to_whoever_asks() -> None:
    async def run() -> list[float]:
        measured = Measured()
        lag = measured.lag
        found = [lag.longest()]
        await measured.hold(0.5, 2.0)
        began = measured.loop.time()
        await measured.hold(1.0, 0.3)
        found += [lag.longest(), lag.longest()]
        await asyncio.sleep(began + WINDOW_S - measured.loop.time() + TICK_S)
        found.append(lag.longest())
        await asyncio.sleep(WINDOW_S)
        found.append(lag.longest())
        measured.task.cancel()
        return found

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        before, longest, again, later, after = runner.run(run())
    assert before < 0.001
    assert 2.0 - TICK_S <= longest == again <= 2.0
    assert 1.0 - TICK_S <= later <= 1.0, "the next longest is the longest when that one is a minute ago"
    assert after < 0.001


def test_a_minute_has_a_bounded_number_of_lags() -> None:
    async def run() -> int:
        measured = Measured()
        for number in range(400):
            await asyncio.sleep(TICK_S / 2)
            measured.loop.hold(1.0 - number / 1000)  # each is shorter than the last one
            await asyncio.sleep(TICK_S)
        measured.task.cancel()
        return len(measured.lag._maxima)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert 40 <= runner.run(run()) <= WINDOW_S / TICK_S
