"""Where each sequence is computed: on which worker, or waiting for one. What loses its worker goes on with another."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence

import structlog

from actors.supervision.worker import WorkerUnavailable
from gateway.metrics import Metrics
from gateway.routing.failure import Cause, SequenceFailure, WorkerFailure
from gateway.routing.failure_attribution import attribute_death, attribute_step, attributed_failures, may_run, suspect
from gateway.routing.quarantine import Quarantine
from gateway.routing.sequence import Stream
from gateway.routing.wait_queue import WaitingRoom
from gateway.routing.worker_handle import FULL_S, Seat
from gateway.routing.worker_pool import Roster
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode

_log = structlog.get_logger("gateway.routing.placement")


class Placement:
    """Owns what lives on each seat, the waiting room, and every move between them. Everything here is synchronous.

    A sequence that is live is in one place: in `live` of one seat, or in the room. `fail` is called for those that
    cannot go on, after which they are nowhere.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        roster: Roster,
        metrics: Metrics,
        fail: Callable[[Stream, SequenceFailure], None],
    ) -> None:
        self.room = WaitingRoom(settings.max_waiting_streams, settings.worker_wait_s, self._overdue)
        self.idle = asyncio.Event()
        """No sequence is live."""
        self.idle.set()
        self._settings = settings
        self._roster = roster
        self._metrics = metrics
        self._fail = fail
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.quarantine = Quarantine(self._loop.time)
        self._retries: dict[str, asyncio.TimerHandle] = {}

    def live(self) -> list[Stream]:
        """Every live sequence."""
        return [*itertools.chain.from_iterable(seat.live.values() for seat in self._roster), *self.room]

    def admit(self, model: str, streams: Sequence[Stream]) -> ErrorCode | None:
        """Give a new request its place: all sequences to one worker in one message, or all into the room while there
        is no worker or others wait already. Returns why neither could be."""
        candidates = self._roster.candidates(model)
        if candidates and not self.room.of(model):
            bound = self._settings.max_streams_per_worker - len(streams)
            roomy = [seat for seat in candidates if len(seat.live) <= bound]
            if any(self._send(seat, streams) for seat in roomy):
                return None
            if not roomy:
                return ErrorCode.OVERLOADED
            # A link that is full, or lost and nobody has said so yet: neither is reason to send anybody away.
        if not candidates and not self._worth_waiting(model):
            return ErrorCode.UNAVAILABLE
        if not self.room.has_room(len(streams)):
            return ErrorCode.OVERLOADED
        self._wait(streams)
        self.serve(model)
        return None

    def remove(self, stream: Stream) -> None:
        """The sequence has ended, wherever it was; that may make room for others."""
        if stream.worker:
            self._roster[stream.worker].remove(stream)
        elif stream in self.room:
            self.room.remove(stream)
        if not self.room and not any(seat.live for seat in self._roster):
            self.idle.set()
        if stream.worker:
            self.serve(stream.call.model)

    def lose(self, seat: Seat, cause: Cause, reason: str) -> None:
        """The worker is gone, or is to have nothing more to do. What it had goes on elsewhere."""
        streams = list(seat.live.values())
        seat.live.clear()
        seat.close()
        attributed = self._attribute_loss(seat, streams, cause)
        for stream in streams:
            self.settle(stream, "lost_again")
            stream.leave(cause, reason)
        self._wait(stream for stream in streams if stream not in attributed)
        for stream in attributed:
            self.quarantine.add(stream.call.model, stream.submit.input, stream.submit.sampling)
            text = f"workers failed with this request {len(stream.failures)} times in a row; {reason}"
            self._fail(stream, SequenceFailure(ErrorCode.QUARANTINED, text))
        if streams:
            _log.warning("streams_replayed", worker=seat.name, streams=len(streams), cause=str(cause), reason=reason)
        self.serve(seat.model)

    def _attribute_loss(self, seat: Seat, streams: Sequence[Stream], cause: Cause) -> list[Stream]:
        """The sequences that the loss of a worker is attributed to. Their failures then do not count against
        workers."""
        if cause not in (Cause.DIED, Cause.KILLED):
            return []
        death = WorkerFailure(seat.name, (seat.incarnation, None), within=cause is Cause.DIED)
        attributed = attribute_death(streams, seat.slots, seat.reached, death)
        for stream in attributed:
            self.exempt_workers(stream)
        return attributed

    def attribute_step(self, seat: Seat, stream: Stream, code: ErrorCode) -> bool:
        """A step failed that the sequence was part of. True when it is attributed to the sequence, and then does not
        count against the worker."""
        failure = WorkerFailure(seat.name, seat.failed_step, of_worker=code is ErrorCode.STEP)
        attributed = attribute_step(stream, failure)
        if attributed:
            self.exempt_workers(stream)
        return attributed

    def exempt_workers(self, stream: Stream) -> None:
        """Do not count the failures of a sequence against its workers: they are attributed to it, or it ends before it
        is cleared."""
        for failure in attributed_failures(stream):
            seat = self._roster.find(failure.worker)
            if seat is not None:
                seat.exempt(failure.failure)

    def suspend(self, stream: Stream, cause: Cause, reason: str) -> None:
        """One sequence lost its worker, which lives on."""
        seat = self._roster[stream.worker]
        seat.remove(stream)
        self.settle(stream, "lost_again")
        stream.leave(cause, reason)
        self._wait([stream])
        self.serve(seat.model)

    def postpone(self, stream: Stream) -> None:
        """The worker that was to go on with a sequence had no room: it waits as before."""
        seat = self._roster[stream.worker]
        seat.remove(stream)
        seat.refused(self._loop.time())
        stream.worker = ""
        self._wait([stream])
        self.serve(seat.model)

    def redirect(self, stream: Stream) -> bool:
        """The worker had no room for a newcomer: give it to one that may have, while nobody else waits for that. False
        when there is none, and nothing has changed then."""
        seat = self._roster[stream.worker]
        seat.refused(self._loop.time())
        other = None if self.room.of(seat.model) else self._taker(stream)
        if other is None:
            return False
        seat.live.pop(stream.submit.stream)
        if not self._send(other, [stream]):
            stream.worker = ""
            self._wait([stream])
            self.serve(seat.model)
        return True

    def serve(self, model: str) -> None:
        """Give waiting sequences to workers, the first admitted first. Nobody waits for a suspect whose turn has not
        come, but each worker keeps a slot free for it."""
        waiting = self.room.of(model)
        if not waiting:
            return
        if self._roster.hopeless(model) is not None:
            for stream in waiting:
                self._give_up(stream)
            return
        kept = 0
        for stream in waiting:
            # The rest of a request that has failed: its client is about to let go of it.
            if stream.call.failure is not None or (kept and suspect(stream)) or self._place(stream, kept):
                continue
            self._retry(model)
            if not suspect(stream):
                return
            kept = 1

    def settle(self, stream: Stream, outcome: str) -> None:
        """How the replay of a sequence went, if it is one."""
        if stream.cause is not None:
            self._metrics.replayed(stream.call.model, str(stream.cause), outcome).inc()
            stream.cause = None

    def _place(self, stream: Stream, kept: int) -> bool:
        while (seat := self._taker(stream, kept)) is not None:
            if self._send(seat, [stream]):
                self.room.remove(stream)
                return True
            seat.refused(self._loop.time())
        return False

    def _taker(self, stream: Stream, kept: int = 0) -> Seat | None:
        """Who may get it now. Where slots are `kept` for suspects, it must find a free one beside them."""
        now, bound = self._loop.time(), self._settings.max_streams_per_worker
        seats = [
            seat
            for seat in self._roster.candidates(stream.call.model)
            if not seat.full(now)
            and len(seat.live) < min(bound, seat.slots - kept if kept else bound)
            and may_run(stream, seat.live, seat.slots)
        ]
        # A device that fails its steps is always free.
        failed = stream.call.worker if stream.cause is Cause.STEP else ""
        return min(seats, key=lambda seat: seat.name == failed, default=None)

    def _send(self, seat: Seat, streams: Sequence[Stream]) -> bool:
        hello = seat.status.hello
        if hello is None:
            return False
        now = self._loop.time()
        submits = [stream.submit_as(next(self._numbers), now) for stream in streams]
        try:
            seat.worker.send_nowait(submits)
        except WorkerUnavailable as error:
            _log.info("submit_refused", worker=seat.name, request=submits[0].request, reason=str(error))
            return False
        for stream, submit in zip(streams, submits, strict=True):
            stream.place(submit, seat.name, seat.kind, hello.context)
            seat.place(stream, submit)
        streams[0].call.placed(seat.name, hello.config_digest)
        self.idle.clear()
        return True

    def _wait(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            self.room.add(stream)
            self.idle.clear()

    def _retry(self, model: str) -> None:
        """Look again soon where time alone makes room: a worker that was full, a circuit that was open."""
        timer = self._retries.get(model)
        if self._has_ready(model) and (timer is None or timer.when() <= self._loop.time()):
            self._retries[model] = self._loop.call_later(FULL_S, self.serve, model)

    def _has_ready(self, model: str) -> bool:
        return any(seat.ready for seat in self._roster.of(model))

    def _worth_waiting(self, model: str) -> bool:
        """There is no worker, and one may come. Where there are workers that only fail, a newcomer is told at once."""
        comes = not self._has_ready(model) and self._roster.hopeless(model) is None
        return self._settings.worker_wait_s > 0 and comes

    def _overdue(self, stream: Stream) -> None:
        if self._has_ready(stream.call.model):
            self.room.stay(stream)  # it waits for its turn, not for a worker: its own deadline counts
        else:
            self._give_up(stream)

    def _give_up(self, stream: Stream) -> None:
        if stream.cause is not None:
            failure = SequenceFailure(ErrorCode.LOST, f"{stream.loss}, and no other worker could go on with it")
        else:
            failure = SequenceFailure(ErrorCode.UNAVAILABLE, self._roster.excuse(stream.call.model))
        self._fail(stream, failure)
