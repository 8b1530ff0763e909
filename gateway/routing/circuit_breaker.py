"""A circuit breaker: a worker whose requests keep failing gets no new ones for a while, then one at a time. Pure."""

from collections.abc import Hashable
from enum import StrEnum

TRIP_AFTER = 5
"""Failures in a row, with no good end between them, after which the circuit opens."""
FIRST_COOLDOWN_S = 1.0
"""How long it stays open the first time; twice as long each time that the probe fails, up to the most."""
MAX_COOLDOWN_S = 60.0
MAX_COUNTED = 64
"""Failures in a row that are remembered, the newest; more than can be pardoned and leave it open."""


class Circuit(StrEnum):
    """What a worker may be given: everything, nothing, or one request to see how it fares."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts the ends of one worker's requests. `now` is in seconds of any steady clock.

    After M. Nygard, "Release It!" (2007), chapter 5. What a client did wrong is no failure here, and what was put down
    to a request afterwards is none any more.
    """

    def __init__(self) -> None:
        self._failures: dict[Hashable, None] = {}
        """The causes of those in a row."""
        self._cooldown = FIRST_COOLDOWN_S
        self._until = 0.0

    def state(self, now: float) -> Circuit:
        """The circuit at this moment: time alone brings it from open to half-open, an end from there."""
        if len(self._failures) < TRIP_AFTER:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self._until else Circuit.HALF_OPEN

    def allows(self, now: float, live: int) -> bool:
        """Another request may be given to the worker, which has `live` already: the probe must be alone."""
        state = self.state(now)
        return state is Circuit.CLOSED or (state is Circuit.HALF_OPEN and live == 0)

    def succeeded(self) -> None:
        """A request ended well."""
        self._failures.clear()
        self._cooldown = FIRST_COOLDOWN_S

    def failed(self, now: float, cause: Hashable | None = None) -> None:
        """A request failed by the worker's fault. Those of one `cause` (an engine step) count once."""
        cause = object() if cause is None else cause
        if cause in self._failures:
            return
        before = self.state(now)
        self._failures[cause] = None
        if len(self._failures) > MAX_COUNTED:
            del self._failures[next(iter(self._failures))]
        if before is Circuit.HALF_OPEN:
            self._cooldown = min(2 * self._cooldown, MAX_COOLDOWN_S)
        if before is not Circuit.OPEN:
            self._until = now + self._cooldown

    def pardon(self, cause: Hashable) -> None:
        """The failure of that cause was put down to a request, not to the worker."""
        self._failures.pop(cause, None)
