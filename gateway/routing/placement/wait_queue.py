"""The queue of the sequences that wait for a worker, or for room on one."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterator

from gateway.routing.admission.turns import Turns
from gateway.routing.sequence import LiveSequence
from protocol.scheduling import SchedulerPolicy

MIN_STAY_S = 1.0
"""The minimum time of a second and later stay."""
CLOCK_RESOLUTION_S = time.get_clock_info("monotonic").resolution
"""An event loop calls timers that are due within this time."""


class WaitQueue:
    """The sequences of all models that have no worker, in the order of their turns.

    `bound` is for new sequences only: those that lost their worker were admitted already, and their number is bounded
    by what workers hold. After `wait_s` seconds, or at the time in the terms of a new sequence, `overdue(stream)` is
    called; the sequence stays until it is removed.

    `weight` returns that of a client by its name; by default all are equal.

    The clients share its places by weight. A full queue takes a new request if its client then holds less than its
    share: the newest waiting requests of the client that holds most, measured by its weight, make room.
    """

    def __init__(
        self,
        bound: int,
        wait_s: float,
        overdue: Callable[[LiveSequence], None],
        *,
        policy: SchedulerPolicy = "fifo",
        weight: Callable[[str], float] = lambda _: 1.0,
    ) -> None:
        self._bound = bound
        self._wait_s = wait_s
        self._overdue = overdue
        self._clock = asyncio.get_running_loop().time
        self._policy = policy
        self._weight = weight
        self._turns: dict[str, Turns] = {}
        self._timers: dict[LiveSequence, asyncio.TimerHandle] = {}
        self._in_line: dict[LiveSequence, None] = {}
        """Those that wait for their turn, and whose clients do not know: a worker is there."""

    def __len__(self) -> int:
        return len(self._timers)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(tuple(self._timers))

    def __contains__(self, sequence: LiveSequence) -> bool:
        return sequence in self._timers

    def has_room(self, count: int) -> bool:
        """True when so many new sequences can be added."""
        return len(self) + count <= self._bound

    def turns(self, model: str) -> Turns:
        """The turns of a model, which keep the shares of its clients."""
        turns = self._turns.get(model)
        if turns is None:
            turns = self._turns[model] = Turns(self._policy, self._weight, self._clock)
        return turns

    def take_served(self) -> dict[str, dict[str, float]]:
        """Return what clients were charged since the last call, by model."""
        taken = {model: turns.shares.take_served() for model, turns in self._turns.items()}
        return {model: served for model, served in taken.items() if served}

    def charge_elsewhere(self, model: str, client: str, cost: float) -> None:
        """Charge a client for what other gateways have served it: see `FairShares.charge_elsewhere`."""
        if (turns := self._turns.get(model)) is not None:
            turns.shares.charge_elsewhere(client, cost)

    def count(self, model: str) -> int:
        """The number of sequences that wait for a worker of this model."""
        turns = self._turns.get(model)
        return len(turns) if turns is not None else 0

    def returned(self, model: str) -> int:
        """The number of those that have had a worker before."""
        turns = self._turns.get(model)
        return turns.returned if turns is not None else 0

    def of(self, model: str) -> tuple[LiveSequence, ...]:
        """The sequences that wait for a worker of this model, the one admitted first in front."""
        return tuple(self._turns.get(model, ()))

    def to_displace(self, client: str, count: int) -> list[LiveSequence] | None:
        """Return waiting sequences that have to go so that a client can add `count` new ones, whole requests; None if
        it would then hold as much as those that have to go."""
        places = len(self) + count - self._bound
        held = self._held()
        own = (held.pop(client, 0) + count) / self._weight(client)
        displaced: list[LiveSequence] = []
        requests: dict[str, Iterator[list[LiveSequence]]] = {}
        while places > 0:
            most = max(held, key=lambda each: held[each] / self._weight(each), default=None)
            if most is None or held[most] / self._weight(most) <= own:
                return None
            if most not in requests:
                requests[most] = self._whole_requests(most)
            newest = next(requests[most], None)
            if newest is None:
                del held[most]
                continue
            displaced += newest
            held[most] -= len(newest)
            places -= len(newest)
        return displaced

    def _held(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for turns in self._turns.values():
            for client, count in turns.held().items():
                held[client] = held.get(client, 0) + count
        return held

    def _whole_requests(self, client: str) -> Iterator[list[LiveSequence]]:
        """The sequences of each request of a client of which no worker has had any part, the newest request first. The
        sequences of one request are admitted together."""
        each_model = (turns.newest(client) for turns in self._turns.values())
        newest = heapq.merge(*each_model, key=lambda sequence: -sequence.order)
        for request, sequences in itertools.groupby(newest, key=lambda sequence: sequence.request):
            if not request.worker:
                yield list(sequences)

    def add(self, sequence: LiveSequence, *, in_line: bool = False) -> None:
        """Add a sequence. Its client is notified, unless a new one merely waits in line for its turn."""
        self.turns(sequence.request.model).add(sequence)
        sequence.waited = True
        if in_line and not sequence.had_turn:
            self._in_line[sequence] = None
        else:
            sequence.request.suspended()
        self._arm(sequence, self._wait_s)

    def stay(self, sequence: LiveSequence) -> None:
        """Keep a sequence that was overdue."""
        self._arm(sequence, max(self._wait_s, MIN_STAY_S))

    def is_overdue(self, sequence: LiveSequence) -> bool:
        """It waits, and its time is over."""
        timer = self._timers.get(sequence)
        return timer is not None and timer.when() <= self._clock() + CLOCK_RESOLUTION_S

    def lose_workers(self, model: str) -> None:
        """Note that there is no worker for those that wait in line. The time for which they wait for one begins."""
        for sequence in [each for each in self._in_line if each.request.model == model]:
            del self._in_line[sequence]
            sequence.request.suspended()
            self._timers[sequence].cancel()
            self._arm(sequence, self._wait_s)

    def _arm(self, sequence: LiveSequence, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + wait_s
        if not sequence.begun:
            when = min(when, sequence.terms.queue_until)
        self._timers[sequence] = loop.call_at(when, self._overdue, sequence)

    def remove(self, sequence: LiveSequence, *, sent: bool = False) -> None:
        """Remove a sequence that was sent to a worker, or has ended."""
        self._timers.pop(sequence).cancel()
        self.turns(sequence.request.model).remove(sequence, sent=sent)
        if sequence in self._in_line:
            del self._in_line[sequence]
        else:
            sequence.request.resumed()
