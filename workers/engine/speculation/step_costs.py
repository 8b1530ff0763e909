"""Costs of decode steps by their number of rows, as measured. Pure."""

from collections import deque

GROWTH = 0.06
"""Assumed cost of a further row relative to a step, until more rows than any are measured: less than the usual one. Too
little costs a few steps, too much keeps drafts from being tried."""
BEND = 2.0
"""Cost of a row beyond those that are measured, relative to one of these, if that is less than what is assumed: of a
step that is bound by memory it is small, and grows."""
LEAST_GROWTH = 0.02
"""The least such cost, relative to a step."""
ENOUGH = 3
"""Measurements of a number of rows that count even if they are more than what is assumed: one may be an outlier."""
_WINDOW = 9
"""Number of measurements of which the median is used."""
_EVERY = 8
"""One of so many steps is measured where there are enough measurements: it takes some microseconds."""
_STEPS = 1024
"""Steps for which measurements hold: contexts grow, graphs become ready, and others take the CPU."""


class _RowsCost:
    """The measurements of one number of rows."""

    def __init__(self) -> None:
        self.last_step = 0
        self.seconds: deque[float] = deque(maxlen=_WINDOW)
        self.median = 0.0

    def add(self, step: int, seconds: float) -> None:
        self.last_step = step
        self.seconds.append(seconds)
        # Of few the least: an outlier must not count for steps of more rows, which cost as much at least.
        few = len(self.seconds) < ENOUGH
        self.median = min(self.seconds) if few else sorted(self.seconds)[len(self.seconds) // 2]


class StepCosts:
    """Learns how long a step of so many rows takes."""

    def __init__(self) -> None:
        self._steps = 0
        self._costs: dict[int, _RowsCost] = {}
        """By rows, in the order of their last measurements."""

    def record(self, rows: int, seconds: float) -> None:
        """Record a step."""
        self._steps += 1
        known = self._costs.get(rows)
        if known is not None and len(known.seconds) == _WINDOW and self._steps % _EVERY:
            return
        self._forget()
        measured = self._costs.pop(rows, None) or _RowsCost()
        measured.add(self._steps, seconds)
        self._costs[rows] = measured

    def measured(self, rows: int) -> float | None:
        """Return the cost of a step of so many rows, if it is measured."""
        return self._costs[rows].median if rows in self._costs else None

    def of(self, rows: int) -> float:
        """Return the cost of a step, as measured, or estimated by those of more and of fewer rows: at least that of the
        next fewer rows. The cost of at least one number of fewer rows must be measured."""
        known, below = self._costs.get(rows), self._below(rows)
        if known is None:
            return max(below, self._estimate(rows))
        few = len(known.seconds) < ENOUGH
        return max(below, min(known.median, self._estimate(rows)) if few else known.median)

    def _below(self, rows: int) -> float:
        return self._costs[max(each for each in self._costs if each < rows)].median

    def _estimate(self, rows: int) -> float:
        fewer = max(each for each in self._costs if each < rows)
        below = self._costs[fewer].median
        more = min((each for each in self._costs if each > rows), default=None)
        if more is None:
            return below + (rows - fewer) * self._growth(fewer, below)
        return below + (self._costs[more].median - below) * (rows - fewer) / (more - fewer)

    def _growth(self, most: int, cost: float) -> float:
        """Return the assumed cost of a further row than the `most` ones that are measured, of this cost."""
        fewest = min(self._costs)
        if fewest == most:
            return GROWTH * cost
        slope = (cost - self._costs[fewest].median) / (most - fewest)
        return min(GROWTH * cost, max(BEND * slope, LEAST_GROWTH * cost))

    def _forget(self) -> None:
        """Drop measurements that do not hold any more."""
        while self._costs:
            rows, oldest = next(iter(self._costs.items()))
            if self._steps - oldest.last_step <= _STEPS:
                return
            del self._costs[rows]
