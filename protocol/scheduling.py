"""Scheduling policies: the order in which requests get their turns, and how many a worker has at once. Pure."""

from typing import Literal, NamedTuple

SchedulerPolicy = Literal["fifo", "shortest-uncached-first", "priority"]
"""First in, first out; first those with the fewest prompt tokens that have to be computed; or first those with the
lowest `priority`, as in vLLM. Each policy ages: a request is overtaken only by those that arrive soon after it."""

PriorityClass = Literal["high", "normal", "low"]
"""Classes of requests: one of a more urgent class may preempt those of the others."""
LEVELS: dict[PriorityClass, int] = {"high": 0, "normal": 1, "low": 2}
"""The order of the classes, the most urgent first."""
MAX_PRIORITY = 1000
MAX_HEADROOM = 0.9
AGING_TOKENS_PER_S = 100.0
"""Tokens of a longer prompt that a second of waiting makes up for. On a CPU a prompt of so many tokens takes 0.1 s."""
AGING_PRIORITY_S = 30.0
"""Seconds of waiting that make up for one step of priority."""


class Urgency(NamedTuple):
    """Urgency of a request. Of two, the lower one is the more urgent."""

    level: int = LEVELS["normal"]
    """That of its class."""
    priority: int = 0
    """Its own priority, the lower, the more urgent."""

    @classmethod
    def of(cls, priority_class: PriorityClass, priority: int) -> "Urgency":
        """Return that of a class and a priority."""
        return cls(LEVELS[priority_class], priority)


NORMAL = Urgency()
"""That of requests whose client has set nothing."""


def may_preempt(waiting: Urgency, running: Urgency, *, same_client: bool) -> bool:
    """A request that waits may take the place of one that runs: if its class is more urgent or, among requests of one
    client, its own priority. No client comes before others by a number that it sends itself."""
    return waiting.level < running.level or (same_client and waiting < running)


def rank(policy: SchedulerPolicy, arrived: float, uncached: float, priority: int = 0) -> float:
    """Return the rank of a request, the lowest of which has the next turn: the time at which it came, in seconds, plus
    a handicap for its `uncached` prompt tokens or its priority.

    Time that passes changes all ranks by the same amount, so the order of two waiting requests is fixed. Nobody
    starves: a request is overtaken only by requests that arrive within the difference of their handicaps.
    """
    if policy == "shortest-uncached-first":
        return arrived + uncached / AGING_TOKENS_PER_S
    if policy == "priority":
        return arrived + AGING_PRIORITY_S * priority
    return arrived


def ahead(slots: int) -> int:
    """Return the sequences that a worker with so many slots has beside those that can run, so that a slot which becomes
    free is taken in the next step. Sequences that end together leave a part of their slots idle for one step."""
    return max(1, slots // 2)
