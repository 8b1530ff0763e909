"""Measures how often drafted tokens are accepted. Pure."""

DECAY = 1 - 1 / 32
"""Weight of a drafted token relative to the next one."""
PRIOR_TOKENS = 2.0
"""Drafted tokens as which the rate of others counts at the start."""
KNOWN_TOKENS = 8
"""Further tokens from which on their own rate counts alone."""


class _Rate:
    """A moving average of what was accepted."""

    def __init__(self, start: float) -> None:
        self._tokens = PRIOR_TOKENS
        self._accepted = PRIOR_TOKENS * start
        self.recorded = 0
        """Tokens in all."""

    @property
    def value(self) -> float:
        return self._accepted / self._tokens

    def record(self, accepted: int, rejected: int) -> None:
        self.recorded += accepted + rejected
        for _ in range(accepted):
            self._tokens, self._accepted = self._tokens * DECAY + 1, self._accepted * DECAY + 1
        for _ in range(rejected):
            self._tokens, self._accepted = self._tokens * DECAY + 1, self._accepted * DECAY


class Acceptance:
    """The rates at which the first token of a draft is accepted, and each further one after those before it were: a
    draft that begins right often stays right for long."""

    def __init__(self, others: "Acceptance | None" = None) -> None:
        """Starts with the rates of `others`, which learns what this one does; without it with one half."""
        self._others = others
        self._first = _Rate(0.5 if others is None else others.first)
        self._next = _Rate(0.5 if others is None else others.rate)

    @property
    def first(self) -> float:
        """The estimate for the first token, within 0 and 1."""
        return self._first.value

    @property
    def rate(self) -> float:
        """The estimate for each further token, within 0 and 1. Until some were drafted it is that of the first one at
        least: drafts of one token would never tell that longer ones gain more."""
        own = self._next.value
        return own if self._known else max(own, self.first)

    @property
    def _known(self) -> bool:
        return self._next.recorded >= KNOWN_TOKENS or (self._others is not None and self._others._known)

    def expected(self, drafted: int) -> float:
        """Return how many of so many tokens may be accepted."""
        rate = self.rate
        return self.first * (float(drafted) if rate == 1.0 else (1.0 - rate**drafted) / (1.0 - rate))

    def record(self, drafted: int, accepted: int) -> None:
        """Record a draft of at least one token, also for others. Those after the first rejected one tell nothing."""
        self.learn(drafted, accepted)
        if self._others is not None:
            self._others.record(drafted, accepted)

    def learn(self, drafted: int, accepted: int) -> None:
        """Record a draft for this sequence alone."""
        began = min(accepted, 1)
        self._first.record(began, 1 - began)
        if began:
            self._next.record(accepted - 1, int(accepted < drafted))
