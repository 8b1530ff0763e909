"""Costs of decode steps by their number of rows, as measured. Pure."""

from collections import deque
from statistics import median

GROWTH = 0.1
"""Assumed cost of a further row relative to a step, until more rows than any are measured."""
_WINDOW = 9
"""Number of measurements of which the median is used, so that single outliers have no effect."""
_STEPS = 1024
"""Steps for which a measurement holds: contexts grow, graphs become ready, and others take the CPU."""


class StepCosts:
    """Learns how long a step of so many rows takes."""

    def __init__(self) -> None:
        self._steps = 0
        self._costs: dict[int, tuple[int, deque[float], float]] = {}
        """By rows: the step of the last measurement, the last measurements, and their median."""

    def record(self, rows: int, seconds: float) -> None:
        """Record a step."""
        self._steps += 1
        self._forget()
        _, measured, _ = self._costs.get(rows, (0, deque(maxlen=_WINDOW), 0.0))
        measured.append(seconds)
        self._costs[rows] = (self._steps, measured, median(measured))

    def measured(self, rows: int) -> float | None:
        """Return the cost of a step of so many rows, if it is measured."""
        return self._costs[rows][2] if rows in self._costs else None

    def of(self, rows: int) -> float:
        """Return the cost of a step, measured or estimated by those of more and of fewer rows. At least one number of
        fewer rows must be measured."""
        if (known := self.measured(rows)) is not None:
            return known
        fewer = max(each for each in self._costs if each < rows)
        below = self._costs[fewer][2]
        more = min((each for each in self._costs if each > rows), default=None)
        if more is None:
            return below * (1.0 + GROWTH * (rows - fewer))
        return below + (self._costs[more][2] - below) * (rows - fewer) / (more - fewer)

    def _forget(self) -> None:
        """Drop a measurement that does not hold any more."""
        for rows, (step, _, _) in self._costs.items():
            if self._steps - step > _STEPS:
                del self._costs[rows]
                return
