"""Bounds the time that drafts may cost without being accepted. Pure."""

LOSS = 0.02
"""Part of the time of all steps."""
CREDIT_STEPS = 32
"""Steps whose part may be saved: what copied answers have gained does not pay for others for long."""


class LossBudget:
    """Balance of what drafting has gained and what it has cost. Nothing is drafted while it is negative."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @property
    def spent(self) -> bool:
        """Nothing is left."""
        return self._seconds < 0.0

    def pay(self, seconds: float) -> None:
        """Spend the time of a look-up, or of a step with drafts beyond what its tokens would have taken without."""
        self._seconds -= seconds

    def step(self, seconds: float, gained: float = 0.0) -> None:
        """Count a step of so many seconds, with which so many were gained."""
        self._seconds = min(self._seconds + LOSS * seconds + gained, CREDIT_STEPS * LOSS * seconds)
