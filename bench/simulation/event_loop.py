"""An asyncio event loop on a virtual clock, with the events of a simulated world beside its own timers.

The clock stands while callbacks run, and jumps to the next timer or event when none is left to run. So the same code
with the same seed does the same, however fast the machine is. Events of the world are no timers of asyncio: what they
cost does not count as the gateway's.
"""

import asyncio
import heapq
import itertools
import math
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

from bench.simulation.cpu_meter import CpuMeter

Args = TypeVarTuple("Args")

START_S = 1000.0
"""The clock's first time. The gateway takes 0 for a time that was never set."""


class Stalled(Exception):
    """Raised when nothing will ever happen any more, although somebody waits."""


class _JumpingSelector(selectors.DefaultSelector):
    """Waits in virtual time. Nothing is read from file descriptors: nothing outside of the simulation may happen."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._wait(timeout)
        return []


class SimulationLoop(asyncio.SelectorEventLoop):
    """Owns the clock, the events of the world, and the meter of what both sides cost."""

    def __init__(self) -> None:
        self.meter = CpuMeter()
        self._now = START_S
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._woken = False
        self._memory = b""
        super().__init__(_JumpingSelector(self._pass))

    def time(self) -> float:
        return self._now

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Let an event of the world happen at that time, or now if it has passed."""
        heapq.heappush(self._events, (max(when, self._now), next(self._numbers), event))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let an event of the world happen in so many seconds."""
        self.at(self._now + seconds, event)

    def empty_caches(self, size: int) -> None:
        """Let `read_memory` read so many bytes."""
        self._memory = b"\1" * size

    def read_memory(self) -> None:
        """Replace what the caches of the processor have."""
        self._memory.find(b"\0")

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        self._woken = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._woken = True
        return super().call_at(when, callback, *args, context=context)

    def _pass(self, timeout: float | None) -> None:
        """Let time pass until the next timer of the gateway, or until an event gives it something to do."""
        self.meter.model(self._run_events, math.inf if timeout is None else self._now + timeout)

    def _run_events(self, until: float) -> None:
        self._woken = False
        events = self._events
        while events and events[0][0] <= until:
            self._now, _, event = heapq.heappop(events)
            event()
            if self._woken:
                return
        if until == math.inf:
            raise Stalled("no event and no timer is left, and the simulation has not ended")
        self._now = until
