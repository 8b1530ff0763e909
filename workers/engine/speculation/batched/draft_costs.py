"""Measured costs of drafting: of a draft step by its sequences, and of a token that is computed before. Pure."""

from collections import deque
from collections.abc import Collection
from statistics import median

from workers.engine.speculation.step_costs import ENOUGH

GROWTH = 0.1
"""Assumed cost of a further sequence relative to a draft step, until more sequences than any are measured."""
_WINDOW = 9
"""Number of measurements of which the median is used, so that single outliers have no effect."""


class DraftCosts:
    """Learns how long a drafter takes."""

    def __init__(self, relative: float) -> None:
        """`relative` is the assumed cost of a draft step, relative to a step of the target, until one is measured."""
        self._relative = relative
        self._steps: dict[int, deque[float]] = {}
        """Seconds of a draft step, by the number of sequences."""
        self._prepared: deque[float] = deque(maxlen=_WINDOW)
        """Seconds a token."""

    def record_draft(self, sequences: int, steps: int, seconds: float) -> None:
        """Record a draft of so many steps."""
        self._steps.setdefault(sequences, deque(maxlen=_WINDOW)).append(seconds / steps)

    def record_prepared(self, tokens: int, seconds: float) -> None:
        """Record tokens that were computed in one call."""
        self._prepared.append(seconds / tokens)

    def step(self, sequences: int, target_s: float) -> float:
        """Return the cost of a draft step, as measured, or by the next fewer sequences, else by the next more.
        `target_s` is the cost of a step of the target."""
        known = self._steps.get(sequences)
        if known is not None:
            return _usual(known)
        fewer = max((each for each in self._steps if each < sequences), default=None)
        if fewer is not None:
            return _usual(self._steps[fewer]) * (1.0 + GROWTH * (sequences - fewer))
        more = min(self._steps, default=None)
        return self._relative * target_s if more is None else _usual(self._steps[more])

    def prepared(self, tokens: int) -> float | None:
        """Return the cost of so many tokens that are computed before a draft; None until it is measured."""
        return _usual(self._prepared) * tokens if self._prepared else None


def _usual(seconds: Collection[float]) -> float:
    """Return the median, and of few the least: after an outlier nothing would be drafted, and so nothing measured."""
    return min(seconds) if len(seconds) < ENOUGH else median(seconds)
