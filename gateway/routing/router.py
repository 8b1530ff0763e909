"""Who computes what: model names to workers, admission, and what workers say of the live sequences."""

import asyncio
from collections.abc import Iterator

from actors.actor import Actor, Terminated
from actors.process.exit_cause import Origin
from actors.supervision.worker import (
    GraceEnded,
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerNotice,
    WorkerStatus,
)
from actors.supervision.worker_actor import WorkerRef
from actors.transport.rejections import Rejections
from gateway.http.body_budget import BodyRoom, HeldBody
from gateway.http.credentials import tenant_of
from gateway.http.errors import ApiError, from_code
from gateway.metrics import Metrics, Observed, WorkerSample
from gateway.routing.circuit_breaker import Breaker
from gateway.routing.failure_attribution import cleared
from gateway.routing.placement import Placement
from gateway.routing.plan import Choice, Plan
from gateway.routing.request_group import Call
from gateway.routing.sequence import Cause, Failure, Stream
from gateway.routing.worker_handle import Role, Seat
from gateway.routing.worker_pool import Roster
from gateway.settings import GatewaySettings
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Beat, Delta, Event, Failed, Finished, Step

DEADLINE_MARGIN_S = 2.0
"""The worker ends a sequence at its deadline; the gateway does so this much later, should the worker not."""


class Router(Actor[WorkerNotice | Terminated]):
    """Admits requests, and hands the sequences what their workers send. Synchronous, on one event loop.

    It watches the workers: their notices are its messages. A sequence is released exactly once: at its terminal event,
    when no worker can go on with it, or when its client leaves, whichever comes first.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._admitted = 0
        self._draining = False
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self.roster = Roster(self._clock)
        self.rejections = Rejections()
        """What the links to the workers refused."""
        self.bodies = BodyRoom(settings.max_total_body_bytes, settings.retry_after_s)
        self.metrics = Metrics(self.samples, self.waiting, lambda: self.rejections.total)
        self.metrics.watch_bodies(lambda: self.bodies.held)
        self._placement = Placement(settings, self.roster, self.metrics, self._fail)

    def add(self, worker: WorkerRef, name: str, model: str, role: Role = Role.ACTIVE) -> None:
        """Let a worker serve a model. Its name is the one in its events. Raises `ValueError` for a name twice."""
        self.roster.add(Seat(worker, name, model, self.metrics, role))

    def remove(self, worker: str) -> None:
        """Forget a worker that has ended. Raises `ValueError` while it has live sequences or is active."""
        seat = self.roster[worker]
        if seat.live or seat.role is Role.ACTIVE:
            raise ValueError(f"worker {worker!r} is in use")
        self.roster.remove(worker)

    # What clients ask for.

    def open(self, plan: Plan, request: str, body: HeldBody | None = None, key: bytes = b"") -> Call:
        """Admit a request whole, of a client that showed this key. While its model has no worker, but may have one
        again, it waits. Each choice of a prompt takes the room of the `body` again, as a worker gets it. Raises
        `ApiError`."""
        model = plan.model
        body = body or HeldBody(self.bodies)
        if self._draining:
            raise self._error(ErrorCode.DRAINING, "the gateway is shutting down")
        if not self.roster.of(model):
            raise self.no_model(model)
        if any(self._placement.quarantine.refuses(model, choice.input, choice.sampling) for choice in plan.choices):
            text = "requests like this one have killed workers, not long ago: it is not tried again"
            raise self._error(ErrorCode.QUARANTINED, text)
        body.grow((plan.form.per_prompt - 1) * body.size)
        call = Call(request, model, body, eager=plan.form.stream, release=self._release)
        streams = [
            Stream(self._submit(call, choice, key), index, call, now=self._clock())
            for index, choice in enumerate(plan.choices)
        ]
        call.attach(streams)
        refusal = self._placement.admit(model, streams)
        if refusal is not None:
            body.release()
            full = f"the workers of model {model!r} have all the requests they can hold"
            raise self._error(refusal, full if refusal is ErrorCode.OVERLOADED else self.roster.excuse(model))
        call.deadline = self._loop.call_later(self._settings.request_timeout_s + DEADLINE_MARGIN_S, self._expire, call)
        return call

    def _submit(self, call: Call, choice: Choice, key: bytes) -> Submit:
        self._admitted += 1
        tenant = tenant_of(key, choice.salt)
        return Submit(self._admitted, call.request, choice.input, choice.sampling, choice.limits, tenant=tenant)

    def _release(self, call: Call) -> None:
        """The client lets go: what still lives of its call is cancelled at its worker."""
        if call.deadline is not None:
            call.deadline.cancel()
        for stream in self._let_go(call):
            self._placement.settle(stream, "cancelled")
            self._observed(stream).ended("cancelled").inc()
            stream.cancel()

    def _expire(self, call: Call) -> None:
        failure = Failure(ErrorCode.DEADLINE, f"not finished within {self._settings.request_timeout_s:g} s")
        for stream in self._let_go(call):
            self._end_badly(stream, failure)

    def _let_go(self, call: Call) -> list[Stream]:
        """Take what lives of a call from where it is."""
        streams = [stream for stream in call.streams if not stream.ended]
        for stream in streams:
            self._placement.acquit(stream)
        for seat in self.seats():
            seat.cancel([stream for stream in streams if stream.worker == seat.name])
        # Those that wait go first, or they would be given the room that the others make.
        for stream in sorted(streams, key=lambda stream: bool(stream.worker)):
            self._placement.remove(stream)
        return streams

    # What workers notify it of.

    def handle(self, message: WorkerNotice | Terminated) -> None:
        """Takes effect at once: what is lost goes to other workers before this returns."""
        match message:
            case WorkerEvent(worker, incarnation, event):
                self.worker_event(worker, incarnation, event)
            case WorkerChanged(status):
                self.worker_changed(status)
            case IncarnationLost():
                self.worker_lost(message)
            case GraceEnded(worker, incarnation):
                if incarnation == self.roster[worker].incarnation:
                    self.migrate(worker)
            case Terminated(worker):
                if self.roster.find(worker) is not None:  # its supervision has failed
                    self.migrate(worker)

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        """A step, a beat, an end or a failure."""
        seat = self.roster[worker]
        if incarnation != seat.incarnation:
            return
        if isinstance(event, Finished | Failed):
            seat.answered(event.stream)
        if isinstance(event, Step | Beat):
            seat.counters.saw(incarnation, event.gauges)
            seat.reached = event.gauges.reached
        if isinstance(event, Step):
            now = self._clock()
            for delta in event.deltas:
                self._deliver(seat, delta, now)
        elif isinstance(event, Finished):
            self.roster.heard(seat, event)
            self._finished(seat, event)
        elif isinstance(event, Failed):
            self._failed(seat, seat.live.get(event.stream), event)

    def worker_changed(self, status: WorkerStatus) -> None:
        """A worker started, got on with loading, became ready, or is no longer."""
        seat = self.roster[status.name]
        if status.incarnation != seat.incarnation:
            seat.forget()
            self._placement.lose(seat, Cause.DIED, f"worker {seat.name} was replaced")
            seat.incarnation = status.incarnation
            seat.breaker = Breaker()
        seat.refresh(status)
        self.roster.promote(seat.model)
        self._placement.serve(seat.model)

    def worker_lost(self, lost: IncarnationLost) -> None:
        """An incarnation is gone; what it held goes on elsewhere."""
        seat = self.roster[lost.worker]
        if lost.incarnation == seat.incarnation:
            cause = Cause.KILLED if lost.origin is Origin.OUTSIDE else Cause.DIED
            seat.forget()
            reason = f"worker {lost.worker} was lost: {lost.reason}"
            self._placement.lose(seat, Cause.LEFT if lost.asked else cause, reason)

    def migrate(self, worker: str) -> None:
        """Take every live sequence off a worker, which gets nothing more until its next incarnation. They go on with
        other workers of the model, or wait for one."""
        seat = self.roster[worker]
        seat.cancel(list(seat.live.values()))
        self._placement.lose(seat, Cause.MOVED, f"worker {worker} was to be free")

    def _deliver(self, seat: Seat, event: Delta | Finished, now: float) -> Stream | None:
        """Hand a live sequence what a step brought; None when it does not live, or no longer."""
        stream = seat.live.get(event.stream)
        if stream is None:
            return None
        if not stream.push(event):
            text = f"the worker sent more than the {stream.limit} tokens asked for"
            seat.cancel([stream])
            self._fail(stream, Failure(ErrorCode.INTERNAL, text))
            return None
        if stream.cause is not None:
            self._resumed(seat, stream, now)
        count = len(event.tokens)
        if count:
            if stream.first_at:
                seat.observed.inter_token.observe((now - stream.last_at) / count, count)
            else:
                stream.first_at = now
                seat.observed.first_token.observe(now - stream.opened_at)
            stream.last_at = now
            if stream.charges and cleared(stream, count):
                seat.standing.served()
                self._placement.serve(seat.model)
        return stream

    def _resumed(self, seat: Seat, stream: Stream, now: float) -> None:
        """Another worker brought something: the gap is over for the client."""
        if stream.first_at:
            seat.observed.gap.observe(now - stream.last_at)
        self._placement.settle(stream, "continued" if stream.continued else "resumed")

    def _finished(self, seat: Seat, event: Finished) -> None:
        now = self._clock()
        stream = self._deliver(seat, event, now)
        if stream is None:
            return
        if event.reason == "cancelled":
            self._fail(stream, Failure(ErrorCode.INTERNAL, "the worker cancelled what nobody had cancelled"))
            return
        observed = seat.observed
        observed.queue_wait.observe(event.usage.queue_ms / 1000)
        observed.end_to_end.observe(now - stream.opened_at)
        observed.ended(event.reason).inc()
        seat.standing.served()
        self._placement.remove(stream)
        stream.finish(event.reason, event.usage)

    def _failed(self, seat: Seat, stream: Stream | None, event: Failed) -> None:
        """A worker ended a sequence: for good, or another one may go on with it. None is one that lives no more."""
        placement, reason = self._placement, f"worker {seat.name}: {event.text}"
        # Who is to blame is decided first: what the worker is not to blame for must not open its circuit.
        again = event.code in (ErrorCode.STEP, ErrorCode.NOT_FINITE)
        guilty = again and stream is not None and placement.accuse(seat, stream, event.code)
        self.roster.heard(seat, event)
        if stream is None:
            return
        match event.code:
            case ErrorCode.LOST:
                # It ends for a reason of its own, which may be this sequence: `worker_lost` follows, and puts it down
                # to somebody.
                seat.close()
            case ErrorCode.DRAINING:
                seat.close()
                placement.suspend(stream, Cause.LEFT, reason)
            case ErrorCode.STEP | ErrorCode.NOT_FINITE if not guilty:
                placement.suspend(stream, Cause.STEP, reason)
            case ErrorCode.OVERLOADED | ErrorCode.UNAVAILABLE if stream.waited:
                placement.postpone(stream)
            case ErrorCode.OVERLOADED if placement.redirect(stream):
                pass
            case _:
                self._fail(stream, Failure(event.code, event.text, event.field))

    def _fail(self, stream: Stream, failure: Failure) -> None:
        self._placement.remove(stream)
        self._end_badly(stream, failure)

    def _end_badly(self, stream: Stream, failure: Failure) -> None:
        self._placement.settle(stream, str(failure.code))
        self._observed(stream).ended(str(failure.code)).inc()
        stream.fail(failure)
        # The request has failed with it. Its client may be away: what else it has is not to compute until it returns.
        self._loop.call_soon(stream.call.cancel_nowait)

    def _observed(self, stream: Stream) -> Observed:
        """Where its end is counted: at the last worker that it had."""
        seat = self.roster.find(stream.call.worker)
        return seat.observed if seat is not None else self.metrics.of(stream.call.model, "", "")

    # The end of the gateway.

    def drain_nowait(self) -> None:
        """Admit nothing more."""
        self._draining = True

    async def idle(self) -> None:
        """Until no sequence lives."""
        await self._placement.idle.wait()

    def fail_all(self, text: str) -> None:
        """End what still lives, typed."""
        # Those that wait go first, or they would be given the room that the others make.
        for stream in reversed(self._placement.live()):
            self._fail(stream, Failure(ErrorCode.DRAINING, text))

    # What others look at.

    @property
    def draining(self) -> bool:
        return self._draining

    def models(self) -> list[str]:
        """Names of the models, in the order in which they were added."""
        return self.roster.models()

    def no_model(self, name: str, *, param: str = "model") -> ApiError:
        """The refusal of a name that no model has; it says which there are."""
        names = ", ".join(repr(model) for model in self.models()) or "none"
        return ApiError(404, f"there is no model {name[:128]!r}; available: {names}", "model_not_found", param=param)

    def seats(self) -> Iterator[Seat]:
        """The workers and what they hold; to look at, not to change."""
        return iter(self.roster)

    def samples(self) -> list[WorkerSample]:
        """The workers, for a scrape."""
        return [seat.sample() for seat in self.seats()]

    def waiting(self) -> dict[str, int]:
        """Sequences that wait for a worker, by model."""
        return {model: len(self._placement.room.of(model)) for model in self.models()}

    def _error(self, code: ErrorCode, text: str) -> ApiError:
        return from_code(code, text, retry_after_s=self._settings.retry_after_s)
