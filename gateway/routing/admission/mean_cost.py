"""Measures what a turn costs. Pure."""

MEMORY = 32
"""Turns over which the mean is taken."""


class MeanCost:
    """An exponentially weighted mean of the cost of turns, and the plain one of the first `MEMORY`."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._count = 0

    def add(self, cost: float) -> None:
        """Add the cost of a turn that has ended."""
        self._count = min(self._count + 1, MEMORY)
        self._mean += (cost - self._mean) / self._count

    def value(self) -> float | None:
        """Return the mean; None before the first turn has ended, and while they cost nothing."""
        return self._mean or None
