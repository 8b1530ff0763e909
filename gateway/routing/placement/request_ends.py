"""Ends requests and their sequences other than by a worker's answer: cancelled, too late, too large or failed."""

import asyncio
import dataclasses

from gateway.metrics.metrics import Metrics
from gateway.metrics.samples import Observed
from gateway.routing.failure import RequestFailure
from gateway.routing.placement.placement import Placement
from gateway.routing.request_group import RequestGroup
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_pool import WorkerPool
from protocol.errors import ErrorCode


class RequestEnds:
    """Takes sequences off their workers, or out of the queue, and tells their requests. Synchronous."""

    def __init__(self, pool: WorkerPool, placement: Placement, metrics: Metrics) -> None:
        self._pool = pool
        self._placement = placement
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()

    def release(self, group: RequestGroup) -> None:
        """Cancel the live sequences of a request, as its client does not read it any more."""
        if group.deadline is not None:
            group.deadline.cancel()
        for sequence in self._detach(group):
            self._placement.settle(sequence, "cancelled")
            self._observed(sequence).ended("cancelled").inc()
            sequence.cancel()

    def expire(self, group: RequestGroup, total_s: float) -> None:
        """End a request that was not finished within `total_s` seconds."""
        failure = RequestFailure(ErrorCode.DEADLINE, f"not finished within {total_s:g} s")
        for sequence in self._detach(group):
            self._end_badly(sequence, failure)

    def give_way_soon(self, group: RequestGroup, reason: str, alone: bool) -> None:
        """End a request whose answer takes too much memory, in the next turn of the event loop, since one of its
        sequences may be being handled. See `gateway.answer_budget.GiveWay`."""
        self._loop.call_soon(self._give_way, group, reason, alone)

    def _give_way(self, group: RequestGroup, reason: str, alone: bool) -> None:
        output, field = group.output, group.output.limit_field
        if output.stream and not output.kept:
            text = f"the output that was not read had to be dropped: {reason}; read it as it comes"
            failure = RequestFailure(ErrorCode.OVERLOADED, text)
        else:
            instead = "" if output.stream else ", or stream the answer"
            text = f"the answer had to be dropped: {reason}; set `{field}` to less{instead}"
            failure = RequestFailure(ErrorCode.INVALID if alone else ErrorCode.OVERLOADED, text, field)
        for sequence in self._detach(group):
            self._end_badly(sequence, failure)
        group.give_way(failure)

    def _detach(self, group: RequestGroup) -> list[LiveSequence]:
        """Remove the live sequences of a request from their workers, or from the queue."""
        sequences = [sequence for sequence in group.sequences if not sequence.ended]
        group.drop_later()
        for sequence in sequences:
            self._placement.exempt_workers(sequence)
        on_workers: dict[str, list[LiveSequence]] = {}
        for sequence in sequences:
            if sequence.worker:
                on_workers.setdefault(sequence.worker, []).append(sequence)
        for worker, held in on_workers.items():
            if (handle := self._pool.find(worker)) is not None:  # or they have lost it, and it is forgotten already
                handle.cancel(held)
        # Waiting ones first, or they would get the workers that the others leave.
        for sequence in sorted(sequences, key=lambda sequence: bool(sequence.worker)):
            self._placement.remove(sequence)
        return sequences

    def fail(self, sequence: LiveSequence, failure: RequestFailure) -> None:
        """End a sequence with a failure."""
        self._placement.remove(sequence)
        self._end_badly(sequence, failure)

    def _end_badly(self, sequence: LiveSequence, failure: RequestFailure) -> None:
        names = sequence.request.output.input_fields
        if names and failure.field == "prompt":
            name = names[sequence.index]
            failure = dataclasses.replace(failure, field=name, text=f"`{name}`: {failure.text}")
        self._placement.settle(sequence, str(failure.code))
        self._observed(sequence).ended(str(failure.code)).inc()
        sequence.fail(failure)
        # The request has failed, and its client may be away: do not compute its other sequences until it returns.
        self._loop.call_soon(sequence.request.cancel_nowait)

    def _observed(self, sequence: LiveSequence) -> Observed:
        """The metrics that count its end: those of its request's last worker."""
        handle = self._pool.find(sequence.request.worker)
        return handle.observed if handle is not None else self._metrics.of(sequence.request.model, "", "")

    def fail_all(self, text: str) -> None:
        """End all live sequences with an error, thousands of them in several turns of the event loop."""
        ends = self._placement.wait_ends.budget
        # Waiting ones first, or they would get the workers that the others leave.
        for sequence in reversed(self._placement.live()):
            if not ends.has_room(self.fail_all, text):
                return
            ends.spend()
            self.fail(sequence, RequestFailure(ErrorCode.DRAINING, text))
