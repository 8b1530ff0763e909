"""A circuit breaker: a worker whose requests keep failing gets no new ones for a while, then one at a time. Pure."""

from collections.abc import Hashable
from enum import StrEnum

TRIP_AFTER = 5
"""Failures in a row, with no good end between them, after which the circuit opens."""
FIRST_COOLDOWN_S = 1.0
"""Seconds that it stays open the first time; doubled each time that the probe fails, up to `MAX_COOLDOWN_S`."""
MAX_COOLDOWN_S = 60.0
MAX_COUNTED = 64
"""The newest failures in a row that are remembered: more than can be exempted and leave the circuit open."""


class Circuit(StrEnum):
    """State of a circuit: the worker may get all requests, none, or a single probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts how the requests of one worker end. `now` is in seconds of any steady clock.

    After M. Nygard, "Release It!" (2007), chapter 5. Errors of clients do not count, nor do failures that were
    attributed to a request afterwards.
    """

    def __init__(self) -> None:
        self._failures: dict[Hashable, None] = {}
        """The causes of the failures in a row, the oldest first."""
        self._cooldown = FIRST_COOLDOWN_S
        self._until = 0.0

    def state(self, now: float) -> Circuit:
        """The circuit now: time brings it from open to half-open, and the end of the probe from there."""
        if len(self._failures) < TRIP_AFTER:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self._until else Circuit.HALF_OPEN

    def allows(self, now: float, live: int) -> bool:
        """A worker with `live` requests may get another one: a probe must run alone."""
        state = self.state(now)
        return state is Circuit.CLOSED or (state is Circuit.HALF_OPEN and live == 0)

    def succeeded(self) -> None:
        """A request ended well."""
        self._failures.clear()
        self._cooldown = FIRST_COOLDOWN_S

    def failed(self, now: float, cause: Hashable | None = None) -> None:
        """A request failed because of the worker. Failures of one `cause` (an engine step) count once."""
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

    def exempt(self, cause: Hashable) -> None:
        """Do not count the failure of this cause, which was attributed to a request."""
        self._failures.pop(cause, None)
