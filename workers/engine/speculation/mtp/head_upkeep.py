"""Decides which sequences a head for multi-token prediction follows: its keys and values cost time in every step. Pure.

A head that gains less than it costs follows nothing any more. Now and then it follows one sequence, to see whether that
has changed: other answers, or fewer sequences at once.
"""

from math import ceil

from workers.engine.runner import DraftHead

DEBT_STEPS = 4.0
"""Steps whose time the head may lose in decode steps before it rests: a right one gains from its first draft on."""
PROMPT_DEBT_STEPS = 24.0
"""Those that it may lose with the prompts that it has followed: their answers gain later."""
LOST_STEPS = 0.75
"""Steps whose time is counted as lost by one step at most: the process may have waited for the CPU meanwhile."""
TRIAL_STEPS = 2.0
"""Those of a trial; so many must be gained for it to follow all sequences again."""
FIRST_REST, LONGEST_REST = 256, 1 << 14
"""Steps between two trials: twice as many after each one that fails."""
LOSS = 0.01
"""Part of the time of all steps that trials may cost: after one that took longer, the head rests for longer."""


class HeadUpkeep:
    """Balances of what the drafts of a head have gained, and what they and the head itself have cost, in steps."""

    def __init__(self, head: DraftHead) -> None:
        """Tells `head` what to follow, from the first step on."""
        self._head = head
        self._balance = self._whole = 0.0
        """Without the cost of prompts, and with it."""
        self._rest = FIRST_REST
        self._left = 0
        """Steps until the next trial."""
        self._spent: tuple[float, float] | None = None
        """The times that the head has reported so far, of steps and of prompts."""
        self._on_trial = False

    @property
    def rests(self) -> bool:
        """The head follows nothing, so that nothing can be drafted."""
        return self._left > 0

    def step(self, step_s: float, gained: float) -> bool:
        """Count a step that takes so many seconds without drafts (0 if unknown), with which so many were gained or
        lost by drafts. Returns whether a trial begins: what is known of drafts may not hold any more."""
        if self._spent is None:
            self._begin(None)
        if self._left:
            self._left -= 1
            if not self._left:
                self._on_trial = True
                self._begin(1)
            return self._on_trial
        followed, prompts = self._head.followed_s, self._head.prompts_s
        before, self._spent = self._spent or (0.0, 0.0), (followed, prompts)
        if step_s > 0.0:
            steps = max((gained - (followed - before[0])) / step_s, -LOST_STEPS)
            self._balance = min(self._balance + steps, DEBT_STEPS)
            self._whole = min(self._whole + steps - (prompts - before[1]) / step_s, DEBT_STEPS)
        if self._on_trial and self._balance >= TRIAL_STEPS:
            self._on_trial, self._rest = False, FIRST_REST
            self._begin(None)
        elif self._balance < (-TRIAL_STEPS if self._on_trial else -DEBT_STEPS) or self._whole < -PROMPT_DEBT_STEPS:
            self._give_up()
        return False

    def _begin(self, slots: int | None) -> None:
        self._head.follow(slots)
        self._spent = self._head.followed_s, self._head.prompts_s
        self._balance = self._whole = 0.0

    def _give_up(self) -> None:
        self._left = self._rest
        if self._on_trial:
            self._rest = min(2 * self._rest, LONGEST_REST)
            self._left = max(self._rest, ceil(-self._whole / LOSS))
        self._on_trial = False
        self._head.follow(0)
