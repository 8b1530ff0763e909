"""Bounds the time that saves take from requests. Pure."""

SHARE = 0.01
"""Share of the time that saves may take while there is other work."""
PROMPT_SHARE = 0.03
"""The same of the time in which long prompts are computed: what is not saved of them would be computed again."""
LONG_PROMPT = 1024
"""Tokens from which on a prompt is long: it is saved while it is computed."""
BURST_S = 1.0
"""Time that may be taken in addition after a while without saves, such as for several long prompts."""
DEBT_S = 0.25
"""Time that may be owed."""
DELAY = 2.0
"""Seconds that a second of a save delays requests: the thread that writes takes a core from the threads that compute,
and the others of them wait for that one."""


class SaveBudget:
    """A token bucket of seconds. It may be overdrawn by saves that are made in any case."""

    def __init__(self) -> None:
        self._left = BURST_S

    def passed(self, seconds: float, long_prompts_s: float = 0.0) -> None:
        """Note that so many seconds have passed, and that long prompts were computed for `long_prompts_s` of them."""
        earned = SHARE * (seconds - long_prompts_s) + PROMPT_SHARE * long_prompts_s
        self._left = min(BURST_S, self._left + earned)

    def took(self, seconds: float) -> None:
        """Note that a save took so many seconds of threads. Little is owed, so that saves that are made in any case do
        not end the others for long."""
        self._left = max(-DEBT_S, self._left - DELAY * seconds)

    @property
    def allows(self) -> bool:
        """A further save may be made."""
        return self._left > 0.0
