"""Ends the waits of sequences that have waited for too long, or for which no worker will come."""

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.routing.failure import RequestFailure
from gateway.routing.placement.charges import Charges
from gateway.routing.placement.turn_budget import TurnBudget
from gateway.routing.placement.wait_queue import WaitQueue
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_pool import WorkerPool
from protocol.errors import ErrorCode

ENDED_AT_ONCE = 256
"""Sequences that are ended in one turn of the event loop, when no worker is left for them or the gateway ends."""


class WaitEnds:
    """Decides how a wait ends. Synchronous. `fail` is called for a sequence that cannot continue."""

    def __init__(
        self,
        pool: WorkerPool,
        queue: WaitQueue,
        charges: Charges,
        fail: Callable[[LiveSequence, RequestFailure], None],
    ) -> None:
        self._pool = pool
        self._queue = queue
        self._charges = charges
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._late: deque[LiveSequence] = deque()
        """Those that have waited for too long, until they are looked at."""
        self.budget = TurnBudget(ENDED_AT_ONCE)
        """Counts the ends of sequences for which nothing can be done."""

    def overdue(self, sequence: LiveSequence) -> None:
        """Take a sequence that is overdue. Thousands can be at once: as many as waited when the last worker was
        lost."""
        self._late.append(sequence)
        self._end_late()

    def give_up(self, sequence: LiveSequence) -> None:
        """End a sequence that no worker will take."""
        if sequence.cause is not None:
            failure = RequestFailure(ErrorCode.LOST, f"{sequence.loss}, and no other worker could go on with it")
        else:
            failure = RequestFailure(ErrorCode.UNAVAILABLE, self._pool.excuse(sequence.request.model))
        self._fail(sequence, failure)

    def time_out(self, sequence: LiveSequence) -> None:
        """End a sequence that has waited as long as it may for a worker to begin with it."""
        model, client = sequence.request.model, sequence.terms.client
        waited_s = sequence.terms.queue_until - sequence.opened_at
        text = f"the request waited {waited_s:g} s in the queue, and it should not wait longer"
        wait_s = self._charges.retry_after_s(model, client)
        self._fail(sequence, RequestFailure(ErrorCode.QUEUE_TIMEOUT, text, retry_after_s=wait_s))

    def displace(self, sequence: LiveSequence) -> None:
        """End a waiting sequence, so that another client gets its share of the queue."""
        text = "the queue is full, and this API key has more than its share of it"
        wait_s = self._charges.retry_after_s(sequence.request.model, sequence.terms.client)
        self._fail(sequence, RequestFailure(ErrorCode.OVERLOADED, text, retry_after_s=wait_s))

    def _end_late(self) -> None:
        while self._late and self.budget.has_room(self._end_late):
            sequence = self._late.popleft()
            if self._queue.is_overdue(sequence):  # still
                self.budget.spend()
                self._end_wait(sequence)

    def _end_wait(self, sequence: LiveSequence) -> None:
        """End the wait of a sequence that is overdue, or let it stay for a worker that is there."""
        if not sequence.begun and self._loop.time() >= sequence.terms.queue_until:
            self.time_out(sequence)
        elif self._pool.has_ready(sequence.request.model):
            self._queue.stay(sequence)  # a worker is ready, so only its own deadline ends the wait
        elif sequence.had_turn and self._pool.catalog.operated(sequence.request.model):
            self._queue.stay(sequence)  # an operator has stopped its worker, and is to wait for the next one
        else:
            self.give_up(sequence)
