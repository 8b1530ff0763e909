"""The turns of the sequences that wait for the workers of one model."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.routing.admission.drain_rate import DrainRate
from gateway.routing.admission.fair_shares import MAX_IDLE, FairShares
from gateway.routing.sequence import LiveSequence
from protocol.scheduling import SchedulerPolicy, rank


@dataclass(frozen=True, slots=True, order=True)
class _Ranked:
    rank: float
    order: int
    sequence: LiveSequence = field(compare=False)


class Turns:
    """First those that had their turn and lost their worker, in order of admission; then new ones, by the fair shares
    of their clients, and those of one client by the policy."""

    def __init__(self, policy: SchedulerPolicy, weight: Callable[[str], float], clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self.shares = FairShares(weight)
        self._returned: dict[int, LiveSequence] = {}
        """Those that had their turn, by their order."""
        self._new: dict[str, list[_Ranked]] = {}
        """Those of each client that waits, in the order of their turns."""
        self._ranks: dict[LiveSequence, _Ranked] = {}
        self._rate = DrainRate()
        self._rates: dict[str, DrainRate] = {}

    def __len__(self) -> int:
        return len(self._returned) + len(self._ranks)

    def __iter__(self) -> Iterator[LiveSequence]:
        """All of them, in order of admission."""
        return iter(sorted([*self._returned.values(), *self._ranks], key=lambda sequence: sequence.order))

    def add(self, sequence: LiveSequence) -> None:
        """Add a sequence."""
        if sequence.had_turn:
            self._returned[sequence.order] = sequence
            return
        terms, now = sequence.terms, self._clock()
        if not self._ranks:
            self._rate.start(now)
        if terms.client not in self._new:
            self._enter(terms.client, now)
        ranked = _Ranked(
            rank(self._policy, sequence.opened_at, terms.prompt_tokens, terms.urgency.priority),
            sequence.order,
            sequence,
        )
        insort(self._new[terms.client], ranked)
        self._ranks[sequence] = ranked

    def remove(self, sequence: LiveSequence, *, sent: bool) -> None:
        """Remove a sequence that was sent to a worker, or has ended."""
        if self._returned.pop(sequence.order, None) is not None:
            return
        client, now = sequence.terms.client, self._clock()
        ranked = self._ranks.pop(sequence)
        mine = self._new[client]
        del mine[bisect_left(mine, ranked)]
        if sent:
            self._rate.departed(now)
            self._rates[client].departed(now)
        if not self._ranks:
            self._rate.stop(now)
        if not mine:
            del self._new[client]
            self._rates[client].stop(now)
            self.shares.leave(client)

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
        for client in sorted(self._new, key=lambda each: self._new[each][0].sequence.terms.urgency.level):
            before: LiveSequence | None = None
            while (sequence := self._first(client)) is not None and sequence is not before:
                yield sequence
                before = sequence

    def _first(self, client: str) -> LiveSequence | None:
        waiting = (each.sequence for each in self._new.get(client, ()))
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
        return {client: len(mine) for client, mine in self._new.items()}

    def of_client(self, client: str) -> list[LiveSequence]:
        """The new sequences of a client."""
        return [each.sequence for each in self._new.get(client, ())]

    def wait_s(self, client: str) -> float | None:
        """Estimate the seconds in which the new sequences of a client will have had their turns, and one more. None
        before anything was measured."""
        now = self._clock()
        known = self._rates.get(client)
        rate = known.per_second(now) if known is not None else 0.0
        rate = rate or self._rate.per_second(now) * self.shares.share(client)
        return (len(self._new.get(client, ())) + 1) / rate if rate > 0 else None

    def _enter(self, client: str, now: float) -> None:
        self._new[client] = []
        self.shares.enter(client)
        if len(self._rates) > 2 * MAX_IDLE:  # those are forgotten whose counters are
            self._rates = {each: measured for each, measured in self._rates.items() if each in self.shares}
        self._rates.setdefault(client, DrainRate()).start(now)
