"""Bounds the time that drafts may cost without being accepted. Pure."""

import math

LOSS = 0.015
"""Part of the time of all steps."""
CREDIT_STEPS = 32
"""Steps whose part may be saved: what copied answers have gained does not pay for others for long."""
MAX_REST = 256
"""The most steps without a look-up: an answer may begin to repeat others meanwhile."""


class LossBudget:
    """Balance of what drafting has gained and what it has cost. Nothing is drafted while it is negative: how many steps
    that takes is known, so that these need no count."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def pay(self, seconds: float) -> None:
        """Spend the time of a look-up, or of a step with drafts beyond what its tokens would have taken without."""
        self._seconds -= seconds

    def step(self, seconds: float, gained: float = 0.0) -> int:
        """Count a step of so many seconds, with which so many were gained. Returns how many further ones must pass
        before the next look-up, which are counted by this call already."""
        part = LOSS * seconds
        self._seconds = min(self._seconds + part + gained, CREDIT_STEPS * part)
        if self._seconds >= 0.0:
            return 0
        rest = min(math.ceil(-self._seconds / part), MAX_REST) if part > 0.0 else 1
        self._seconds += rest * part
        return rest
