"""Measures how often drafted tokens are accepted. Pure."""

DECAY = 1 - 1 / 32
"""Weight of a drafted token relative to the next one."""
PRIOR_TOKENS = 2.0
"""Drafted tokens as which the rate of others counts at the start."""


class Acceptance:
    """The rate at which a drafted token is accepted after those before it were."""

    def __init__(self, others: "Acceptance | None" = None) -> None:
        """Starts with the rate of `others`, which learns what this one does; without it with one half."""
        self._others = others
        self._tokens = PRIOR_TOKENS
        self._accepted = PRIOR_TOKENS * (0.5 if others is None else others.rate)

    @property
    def rate(self) -> float:
        """The estimate, within 0 and 1."""
        return self._accepted / self._tokens

    def record(self, drafted: int, accepted: int) -> None:
        """Record a draft, whose tokens after the first rejected one tell nothing."""
        for _ in range(accepted):
            self._tokens, self._accepted = self._tokens * DECAY + 1, self._accepted * DECAY + 1
        if accepted < drafted:
            self._tokens, self._accepted = self._tokens * DECAY + 1, self._accepted * DECAY
        if self._others is not None:
            self._others.record(drafted, accepted)
