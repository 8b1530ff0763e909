"""Bounds the time that a drafter with a state may cost without being accepted. Pure."""

LOSS = 0.02
"""Part of the time of all steps."""
DEBT_STEPS = 64
"""Steps whose time may be spent in advance, on prompts that are computed before anything can be drafted."""
CREDIT_STEPS = 16
"""Steps whose time may be saved of what was gained: that does not pay for other answers for long."""
PAID_STEPS = 4
"""Steps whose time one draft is charged for at most: the process may have been suspended meanwhile."""
PROBE_DEBT_STEPS = 16
"""The part of the debt that is spent on probes: drafts that are made only to see whether they would be accepted."""
PROBE_STEPS = 64
"""Steps between two probes."""


class DraftBudget:
    """Balance of what drafting has gained and cost: a loss of at most `LOSS` of the time, and `DEBT_STEPS` once."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._step_s = 0.0
        self._since_probe = PROBE_STEPS

    @property
    def allows_drafts(self) -> bool:
        """Time may be spent on drafts that are expected to gain some."""
        return self._seconds > -DEBT_STEPS * self._step_s

    @property
    def allows_probe(self) -> bool:
        """Time may be spent on a draft that is expected to lose some."""
        return self._seconds > -PROBE_DEBT_STEPS * self._step_s and self._since_probe >= PROBE_STEPS

    def probed(self) -> None:
        """Note that a probe is made."""
        self._since_probe = 0

    def pay(self, seconds: float) -> None:
        """Spend the time of a draft, or of what is computed before."""
        self._seconds -= min(seconds, PAID_STEPS * self._step_s) if self._step_s else seconds

    def step(self, seconds: float, gained: float = 0.0) -> None:
        """Count a step of the target of so many seconds, with which so many were gained, or lost."""
        self._step_s = seconds
        self._since_probe += 1
        self._seconds = min(self._seconds + LOSS * seconds + gained, CREDIT_STEPS * seconds)
