"""Bounds the time that drafts may cost without being accepted. Pure."""

import math

LOSS = 0.01
"""Part of the time of all steps."""
CREDIT_STEPS = 32
"""Steps whose part may be saved, with which a budget begins."""
GAINED_STEPS = 4.0
"""Steps whose time may be saved of what drafts have gained: several wrong drafts are tried again at once where others
were right. That does not pay for answers of another kind for long."""
MAX_REST = 32
"""The most steps that are counted at once: they may take longer or shorter than the one before."""


class LossBudget:
    """Balance of what drafting has gained and what it has cost, which begins with a credit. Nothing is drafted while it
    is negative: how many steps that takes is known, so that these are counted together."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._begun = False

    @property
    def seconds(self) -> float:
        """The balance."""
        return self._seconds

    def pay(self, seconds: float) -> None:
        """Spend the time of a look-up, or of a step with drafts beyond what its tokens would have taken without."""
        self._seconds -= seconds

    def step(self, seconds: float, gained: float = 0.0, steps: int = 1) -> int:
        """Count steps of so many seconds each, with which so many were gained. Returns how many must pass before the
        next look-up, or before they are counted."""
        part = LOSS * seconds
        if not self._begun:
            self._begun, self._seconds = True, self._seconds + CREDIT_STEPS * part
        saved = min(self._seconds + steps * part, max(self._seconds, CREDIT_STEPS * part))
        self._seconds = min(saved + gained, GAINED_STEPS * seconds)
        if self._seconds >= 0.0:
            return 0
        return min(math.ceil(-self._seconds / part), MAX_REST) if part > 0.0 else 1
