"""Finds the workers that would run a waiting sequence at once, in place of less urgent ones."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from gateway.routing.failure_attribution import suspect
from gateway.routing.placement.running_urgencies import RunningUrgencies
from gateway.routing.placement.wait_queue import WaitQueue
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from protocol.scheduling import Urgency, may_preempt


class Preemption:
    """Knows the urgencies of the sequences that workers have, once there are several. Synchronous."""

    def __init__(self, pool: WorkerPool, queue: WaitQueue, clock: Callable[[], float], most: int) -> None:
        """A worker may have `most` sequences."""
        self._pool = pool
        self._queue = queue
        self._clock = clock
        self._most = most
        self._urgencies: set[Urgency] = set()
        """All that any sequence has had so far. With a single one nothing is preempted."""
        self._running: RunningUrgencies | None = None
        """None while there is a single one."""

    def note(self, urgency: Urgency) -> None:
        """Note the urgency of a new sequence."""
        self._urgencies.add(urgency)
        if self._running is None and len(self._urgencies) > 1:
            on_workers = (handle.live.values() for handle in self._pool)
            self._running = RunningUrgencies(itertools.chain.from_iterable(on_workers))

    def add(self, sequence: LiveSequence) -> None:
        """Note that a worker got a sequence."""
        if self._running is not None:
            self._running.add(sequence)

    def remove(self, sequence: LiveSequence) -> None:
        """Note that no worker has a sequence any more. Repeatable."""
        if self._running is not None:
            self._running.remove(sequence)

    def for_new(self, model: str, sequences: Sequence[LiveSequence]) -> Iterator[WorkerHandle]:
        """Yield the workers on which the sequences of a new request would preempt others, unless equally urgent ones
        wait already."""
        if self._running is None or not any(self._running.below(sequences[0])):
            return
        before = next(self._queue.turns(model).urgent_first(), None)
        if before is not None and before.terms.urgency.level <= sequences[0].terms.urgency.level:
            return
        for handle in self._pool.candidates(model):
            if self._preempts(sequences[0], handle, len(sequences)):
                yield handle

    def for_waiting(self, model: str) -> Iterator[tuple[LiveSequence, Iterator[WorkerHandle]]]:
        """Yield the waiting sequences that may preempt others, the most urgent first, and the workers on which each
        would do so. One that is not sent there holds back those of its class, as they would fare no better."""
        if self._running is None:
            return
        wait: set[int] = set()  # the levels that preempt nobody by their class
        for sequence in self._queue.turns(model).urgent_first():
            urgency = sequence.terms.urgency
            other, own = self._running.below(sequence)
            if not own and (not other or urgency.level in wait):
                continue
            yield sequence, (each for each in self._pool.candidates(model) if self._preempts(sequence, each))
            if not (sequence.worker or sequence.ended or own or suspect(sequence)):
                wait.add(urgency.level)

    def _preempts(self, sequence: LiveSequence, handle: WorkerHandle, count: int = 1) -> bool:
        """A worker without room would run `count` sequences like this one at once, in place of less urgent ones."""
        now, terms = self._clock(), sequence.terms
        if handle.full(now) or suspect(sequence) or not handle.has_adapter(sequence.submit.adapter):
            return False
        lower = sum(
            may_preempt(terms.urgency, other.terms.urgency, same_client=terms.client == other.terms.client)
            for other in handle.live.values()
        )
        held = len(handle.live) - lower
        room = len(handle.live) + count <= self._most
        return lower > 0 and room and held + count <= handle.slots
