"""Bounds the time that saves take from requests. Pure."""

SHARE = 0.01
"""Share of the time of steps that saves may take while there is other work."""
BURST_S = 0.25
"""Time that may be taken at once after a while without saves, such as after a long prompt."""
DELAY = 2.0
"""Seconds that a second of a save delays requests: the thread that writes takes a core from the threads that compute,
and the others of them wait for that one."""


class SaveBudget:
    """A token bucket of seconds. It may be overdrawn by saves that are made in any case."""

    def __init__(self) -> None:
        self._left = BURST_S

    def passed(self, seconds: float) -> None:
        """Note that a step took so many seconds."""
        self._left = min(BURST_S, self._left + SHARE * seconds)

    def took(self, seconds: float) -> None:
        """Note that a save took so many seconds of threads. No more than a burst is owed: what was saved in hours
        without other work does not end saves for hours with it."""
        self._left = max(-BURST_S, self._left - DELAY * seconds)

    @property
    def allows(self) -> bool:
        """A further save may be made."""
        return self._left > 0.0
