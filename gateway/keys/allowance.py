"""An allowance per minute, which is reserved in advance and settled later. Pure."""

MINUTE_S = 60.0
ROUNDING = 1e-6
"""Units that are not missed: sums of floating-point numbers are that inexact."""


class Allowance:
    """Holds `per_minute` units, which it has at first, and gains as many evenly in each minute. After more was used
    than was reserved, it has less than none."""

    __slots__ = ("_at", "_left", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        """`now` is in seconds of any steady clock, as everywhere."""
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._at = now

    def left(self, now: float) -> float:
        """The units that can be taken."""
        if now > self._at:
            gained = (now - self._at) * self.per_minute / MINUTE_S
            self._left = min(float(self.per_minute), self._left + gained)
            self._at = now
        return self._left

    def take(self, amount: float, now: float) -> None:
        """Take units, whether it has as many or not. A negative amount gives units back."""
        self._left = min(float(self.per_minute), self.left(now) - amount)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until it has so many units, if nobody takes any; `amount` is at most `per_minute`."""
        missing = amount - self.left(now)
        return missing * MINUTE_S / self.per_minute if missing > ROUNDING else 0.0

    def lower(self, per_minute: int, now: float) -> float:
        """Lower the rate from now on, and what is left in proportion; a debt stays. Returns the units that are gone."""
        left = self.left(now)
        self._left = min(left, 0.0) + max(left, 0.0) * min(1.0, per_minute / self.per_minute)
        self.per_minute = per_minute
        return left - self._left

    def gain(self, per_minute: int, units: float, now: float) -> None:
        """Set a higher rate from now on, and add units, which others had before."""
        self._left = min(float(per_minute), self.left(now) + units)
        self.per_minute = per_minute

    def replace(self, per_minute: int, units: float) -> None:
        """Set another rate from now on, and what is left."""
        self._left = min(float(per_minute), units)
        self.per_minute = per_minute

    def restore(self, per_minute: int, now: float) -> None:
        """Set a higher rate from now on, and raise what is left in proportion; a debt stays."""
        left = self.left(now)
        self._left = min(left, 0.0) + max(left, 0.0) * per_minute / self.per_minute
        self.per_minute = per_minute

    def resize(self, per_minute: int, now: float) -> None:
        """Change the rate from now on. What was used stays used, but a lower rate makes no debt of it, which might take
        days to pay."""
        left = self.left(now)
        self._left = max(per_minute - (self.per_minute - left), min(left, 0.0))
        self.per_minute = per_minute
