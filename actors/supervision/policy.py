"""What to do after a failure: pure policies. They see when failures happened and what time it is, nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

MAX_REMEMBERED = 64
"""Failures of one actor that are remembered, the newest."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start again after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop for good; whoever watches is told why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Escalate:
    """The failure becomes the parent's own."""

    reason: str


Decision = Restart | GiveUp | Escalate


class Exhausted(StrEnum):
    """What a policy decides when its restarts are used up."""

    GIVE_UP = "give_up"
    ESCALATE = "escalate"


class Policy(Protocol):
    """A supervision policy."""

    def decide(self, failures: Sequence[float], now: float) -> Decision:
        """Decide after a failure. `failures` are the times of all that are remembered and count, the newest last, in
        seconds on the same steady clock as `now`; none, when the latest does not count. Pure: equal arguments give
        equal decisions."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Restart with a delay that doubles with each failure within `window_s`, until there were too many of them; at once
    where none counts."""

    max_failures: int = 5
    """Failures within the window that end it: the one with this number is not followed by a restart."""
    window_s: float = 300.0
    first_delay_s: float = 0.25
    max_delay_s: float = 30.0
    exhausted: Exhausted = field(default=Exhausted.GIVE_UP)

    def __post_init__(self) -> None:
        """Raises `ValueError` that names the field which is out of its range."""
        if not 1 <= self.max_failures <= MAX_REMEMBERED:
            raise ValueError(f"max_failures: {self.max_failures} is not between 1 and {MAX_REMEMBERED}")
        if not self.window_s > 0:
            raise ValueError(f"window_s: {self.window_s} is not above 0")
        if not 0 <= self.first_delay_s <= self.max_delay_s:
            raise ValueError(f"first_delay_s: {self.first_delay_s} is not between 0 and max_delay_s")

    def decide(self, failures: Sequence[float], now: float) -> Decision:
        """See `Policy.decide`."""
        recent = sum(1 for failed in failures if now - failed < self.window_s)
        if recent >= self.max_failures:
            reason = f"failed {recent} times within {self.window_s:g} s"
            return Escalate(reason) if self.exhausted is Exhausted.ESCALATE else GiveUp(reason)
        if not recent:
            return Restart(0.0)
        return Restart(min(self.first_delay_s * 2.0 ** min(recent - 1, 64), self.max_delay_s))


@dataclass(frozen=True, slots=True)
class NeverRestart:
    """The first failure is the last: it ends the actor, or is the parent's."""

    escalate: bool = False

    def decide(self, failures: Sequence[float], now: float) -> Decision:
        """See `Policy.decide`."""
        reason = "is not restarted after a failure"
        return Escalate(reason) if self.escalate else GiveUp(reason)


class FailureRecord:
    """The failures of one actor, the newest `MAX_REMEMBERED`, and the decision after each.

    A failure goes by the number of the start that it ended. One that was put down to something else is pardoned, by
    that number, before or after it is recorded: it counts neither towards an end nor for the delay.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._failures: dict[int, float] = {}
        self._pardoned: dict[int, None] = {}

    def failed(self, now: float, start: int) -> Decision:
        """Record the failure of a start, each of which has a number of its own, and decide."""
        self._failures[start] = now
        _keep_newest(self._failures)
        counted = [at for number, at in self._failures.items() if number not in self._pardoned]
        return self._policy.decide(counted, now)

    def pardon(self, start: int) -> None:
        """The failure of that start, past or about to be recorded, does not count."""
        self._pardoned[start] = None
        _keep_newest(self._pardoned)


def _keep_newest(entries: dict[int, Any]) -> None:
    if len(entries) > MAX_REMEMBERED:
        del entries[next(iter(entries))]
