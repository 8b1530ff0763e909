"""Measures how fast workers compute prompts and answers, for estimates of waits. Pure: no clock."""

from dataclasses import dataclass, field

MEMORY = 64
"""Measurements over which means are taken."""
_KEPT = 1 - 1 / MEMORY


class DecayedRatio:
    """The ratio of two sums over the last measurements, such as tokens to seconds."""

    __slots__ = ("_of", "_per")

    def __init__(self) -> None:
        self._of = 0.0
        self._per = 0.0

    def add(self, of: float, per: float) -> None:
        """Add a measurement."""
        self._of = self._of * _KEPT + of
        self._per = self._per * _KEPT + per

    def value(self, default: float) -> float:
        """Return the ratio; `default` before the first measurement."""
        return self._of / self._per if self._per else default


class RowCost:
    """The time by which one more sequence of a batch delays a token: the slope of a line through measurements.

    While there are few, or all were of batches of one size, it leans towards a time proportional to the size, which is
    the most that it can be.
    """

    __slots__ = ("_count", "_rows", "_rows_squared", "_rows_times_seconds", "_seconds")

    def __init__(self) -> None:
        self._count = self._rows = self._rows_squared = self._seconds = self._rows_times_seconds = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """Add the mean time between the tokens of a sequence that ran in a batch of so many rows."""
        self._count = self._count * _KEPT + 1
        self._rows = self._rows * _KEPT + rows
        self._rows_squared = self._rows_squared * _KEPT + rows * rows
        self._seconds = self._seconds * _KEPT + seconds
        self._rows_times_seconds = self._rows_times_seconds * _KEPT + rows * seconds

    def value(self, default: float = 0.0) -> float:
        """Return the seconds of one row; `default` before the first measurement."""
        if not self._rows:
            return default
        rows, seconds = self._rows / self._count, self._seconds / self._count
        variance = self._rows_squared / self._count - rows * rows
        covariance = self._rows_times_seconds / self._count - rows * seconds
        proportional = seconds / rows
        # As if one measurement, a row away from the mean, had shown a proportional time.
        slope = (self._count * covariance + proportional) / (self._count * variance + 1.0)
        return min(max(slope, 0.0), proportional)


@dataclass(slots=True)
class Pace:
    """The speed of a worker."""

    prefill: DecayedRatio = field(default_factory=DecayedRatio)
    """Prompt tokens by seconds."""
    turn: DecayedRatio = field(default_factory=DecayedRatio)
    """Seconds in a slot by sequences."""
    row: RowCost = field(default_factory=RowCost)
