"""Measures how fast requests leave a queue. Pure."""

import math

MEMORY_S = 30.0
"""Time constant of the mean, in seconds."""


class DrainRate:
    """An exponentially weighted mean of the departures per second, over the time in which the queue is not empty."""

    def __init__(self) -> None:
        self._departures = 0.0
        self._measured = 0.0
        """Seconds measured so far."""
        self._at: float | None = None
        """The time up to which it was measured; None while the queue is empty."""

    def start(self, now: float) -> None:
        """Note that the queue is not empty any more."""
        self._at = now

    def stop(self, now: float) -> None:
        """Note that the queue is empty."""
        self._pass(now)
        self._at = None

    def departed(self, now: float) -> None:
        """Count a request that left the queue for a worker."""
        self._pass(now)
        self._departures += 1.0

    def per_second(self, now: float) -> float:
        """Return the departures per second; 0 before the first."""
        self._pass(now)
        if not self._departures or not self._measured:
            return 0.0
        return self._departures / (MEMORY_S * -math.expm1(-self._measured / MEMORY_S))

    def _pass(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._departures *= math.exp((self._at - now) / MEMORY_S)
            self._measured += now - self._at
            self._at = now
