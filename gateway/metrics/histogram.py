"""A fast histogram, which is observed for every token.

An observation takes 1.4 us with prometheus_client's own, a tenth of all that the gateway does for a token.
"""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts observations by inclusive upper bound, as Prometheus does, and sums them up."""

    __slots__ = ("_bounds", "_counts", "count", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.count += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by the text of their bound, `+Inf` last."""
        total = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
        return found
