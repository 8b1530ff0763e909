"""The turns of the sequences that wait for the workers of one model."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.routing.admission.drain_rate import DrainRate
from gateway.routing.admission.fair_shares import MAX_IDLE, FairShares
from gateway.routing.admission.mean_cost import MeanCost
from gateway.routing.sequence import LiveSequence
from protocol.scheduling import SchedulerPolicy, rank


@dataclass(frozen=True, slots=True, order=True)
class _Ranked:
    rank: float
    order: int
    sequence: LiveSequence = field(compare=False)


class _WaitingClient:
    """The new sequences of one client that waits."""

    __slots__ = ("by_order", "by_rank")

    def __init__(self) -> None:
        self.by_rank: list[_Ranked] = []
        """In the order of their turns."""
        self.by_order: dict[LiveSequence, _Ranked] = {}
        """In order of admission."""


class _Measured:
    """The measurements of one client, or of all."""

    __slots__ = ("cost", "rate")

    def __init__(self) -> None:
        self.rate = DrainRate()
        self.cost = MeanCost()


class Turns:
    """First those that had their turn and lost their worker, in order of admission; then new ones, by the fair shares
    of their clients, and those of one client by the policy."""

    def __init__(self, policy: SchedulerPolicy, weight: Callable[[str], float], clock: Callable[[], float]) -> None:
        self._policy = policy
        self._weight = weight
        self._clock = clock
        self.shares = FairShares(weight)
        self._returned: dict[int, LiveSequence] = {}
        """Those that had their turn, by their order."""
        self._new: dict[str, _WaitingClient] = {}
        """Those of each client that waits."""
        self._count = 0
        """The number of new ones."""
        self._all = _Measured()
        self._measured: dict[str, _Measured] = {}

    def __len__(self) -> int:
        return len(self._returned) + self._count

    @property
    def returned(self) -> int:
        """The number of those that have had their turn."""
        return len(self._returned)

    def __iter__(self) -> Iterator[LiveSequence]:
        """All of them, in order of admission."""
        new = (sequence for mine in self._new.values() for sequence in mine.by_order)
        return iter(sorted([*self._returned.values(), *new], key=lambda sequence: sequence.order))

    def add(self, sequence: LiveSequence) -> None:
        """Add a sequence."""
        if sequence.had_turn:
            self._returned[sequence.order] = sequence
            return
        terms, now = sequence.terms, self._clock()
        if not self._count:
            self._all.rate.start(now)
        mine = self._new.get(terms.client) or self._enter(terms.client, now)
        place = rank(self._policy, sequence.opened_at, sequence.uncached, terms.urgency.priority)
        ranked = mine.by_order[sequence] = _Ranked(place, sequence.order, sequence)
        insort(mine.by_rank, ranked)
        self._count += 1

    def remove(self, sequence: LiveSequence, *, sent: bool) -> None:
        """Remove a sequence that was sent to a worker, or has ended."""
        if self._returned.pop(sequence.order, None) is not None:
            return
        client, now = sequence.terms.client, self._clock()
        mine, rate = self._new[client], self._measured[client].rate
        del mine.by_rank[bisect_left(mine.by_rank, mine.by_order.pop(sequence))]
        self._count -= 1
        if sent:
            self._all.rate.departed(now)
            rate.departed(now)
        if not self._count:
            self._all.rate.stop(now)
        if not mine.by_rank:
            del self._new[client]
            rate.stop(now)
            self.shares.leave(client)

    def note_cost(self, client: str, cost: float) -> None:
        """Note the cost of a turn of a client that has ended."""
        self._all.cost.add(cost)
        if (measured := self._measured.get(client)) is not None:
            measured.cost.add(cost)

    def in_turn(self) -> Iterator[LiveSequence]:
        """Yield the sequences in the order of their turns, until one of the new ones is neither removed nor ends.
        Shares change with each turn, and so does the order."""
        yield from sorted(self._returned.values(), key=lambda sequence: sequence.order)
        before: LiveSequence | None = None
        while (sequence := self._next()) is not None and sequence is not before:
            yield sequence
            before = sequence

    def urgent_first(self) -> Iterator[LiveSequence]:
        """Yield new sequences of each client in the order of their turns, until one is not removed; the clients of the
        most urgent class come first."""
        for client in sorted(self._new, key=lambda each: self._new[each].by_rank[0].sequence.terms.urgency.level):
            before: LiveSequence | None = None
            while (sequence := self._first(client)) is not None and sequence is not before:
                yield sequence
                before = sequence

    def _first(self, client: str) -> LiveSequence | None:
        mine = self._new.get(client)
        waiting = () if mine is None else (each.sequence for each in mine.by_rank)
        return next((each for each in waiting if each.request.failure is None), None)

    def _next(self) -> LiveSequence | None:
        """The new sequence that has the next turn. The other sequences of a failed request are about to be removed."""
        failed: set[str] = set()
        while (client := self.shares.next(without=failed)) is not None:
            if (first := self._first(client)) is not None:
                return first
            failed.add(client)
        return None

    def held(self) -> dict[str, int]:
        """Count the new sequences of each client."""
        return {client: len(mine.by_rank) for client, mine in self._new.items()}

    def newest(self, client: str) -> Iterator[LiveSequence]:
        """The new sequences of a client, the one admitted last in front. Nothing may be added or removed meanwhile."""
        mine = self._new.get(client)
        return iter(()) if mine is None else reversed(mine.by_order)

    def wait_s(self, client: str) -> float | None:
        """Estimate the seconds in which the new sequences of a client will have had their turns, and one more. None
        before anything was measured.

        Measured rates lag behind when clients come or go, and each estimate by them errs to one side: what is measured
        of a client that came lately is new, but that of the others is too high; when clients leave, it is too low. So
        the lower one of two counts, within what follows from the shares and the lengths of the queues now: each of the
        others gets its share at most, and no less than that or all that it has in the queue.
        """
        now = self._clock()
        rate, mean_cost = self._all.rate.per_second(now), self._all.cost.value() or 1.0
        if not rate:
            return None
        capacity = rate * mean_cost
        known = self._measured.get(client)
        cost = mean_cost if known is None else known.cost.value() or mean_cost
        mine = cost * (len(self._new[client].by_rank) + 1 if client in self._new else 1)
        by_weight = mine / self._weight(client)
        least = most = mine
        spent_by_others = 0.0
        for other, waiting in self._new.items():
            if other != client:
                its, its_cost = self._measured[other], self._measured[other].cost.value() or mean_cost
                share = by_weight * self._weight(other)
                most += share
                least += min(share, len(waiting.by_rank) * its_cost)
                spent_by_others += its.rate.per_second(now) * its_cost
        spending = max(0.0, capacity - spent_by_others)
        if known is not None and (spent := known.rate.per_second(now) * cost):
            spending = min(spending, capacity * spent / (spent + spent_by_others))
        measured = mine / spending if spending else math.inf
        return min(max(measured, least / capacity), most / capacity)

    def _enter(self, client: str, now: float) -> _WaitingClient:
        mine = self._new[client] = _WaitingClient()
        self.shares.enter(client)
        if len(self._measured) > 2 * MAX_IDLE:  # those are forgotten whose counters are
            self._measured = {each: measured for each, measured in self._measured.items() if each in self.shares}
        self._measured.setdefault(client, _Measured()).rate.start(now)
        return mine
