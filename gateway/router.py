"""Who computes what: model names to workers, admission, and the live sequences of each worker."""

import asyncio
import itertools
from collections.abc import Iterator

import structlog

from actors.worker import Worker, WorkerStatus, WorkerUnavailable
from gateway.errors import ApiError, from_code
from gateway.metrics import Metrics, WorkerSample
from gateway.requests import Plan
from gateway.roster import Roster
from gateway.settings import GatewaySettings
from gateway.streams import Call, Failure, Stream
from gateway.workers import Role, Seat
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Delta, Event, Failed, Finished, Step

DEADLINE_MARGIN_S = 2.0
"""The worker ends a sequence at its deadline; the gateway does so this much later, should the worker not."""

_log = structlog.get_logger("gateway.router")


class Router:
    """Owns the map from models to workers and every live sequence. Everything here is synchronous, on one event loop.

    It listens to the workers (`WorkerListener`). A sequence is released exactly once: at its terminal event, at the
    loss of its worker, or when its client lets go, whichever comes first.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._numbers = itertools.count(1)
        self._draining = False
        self._clock = asyncio.get_running_loop().time
        self.roster = Roster(self._clock)
        self._idle = asyncio.Event()
        self._idle.set()
        self.metrics = Metrics(self.samples)

    def add(self, worker: Worker, name: str, model: str, role: Role = Role.ACTIVE) -> None:
        """Let a worker serve a model. Its name is the one in its events. Raises `ValueError` for a name twice."""
        self.roster.add(Seat(worker, name, model, self.metrics, role))

    def remove(self, worker: str) -> None:
        """Forget a worker that has ended. Raises `ValueError` while it has live sequences or is active."""
        seat = self.roster[worker]
        if seat.live or seat.role is Role.ACTIVE:
            raise ValueError(f"worker {worker!r} is in use")
        self.roster.remove(worker)

    # What clients ask for.

    def open(self, plan: Plan, request: str) -> Call:
        """Admit a request whole: all its sequences go to one worker in one message. Raises `ApiError`."""
        model = plan.model
        if self._draining:
            raise self._error(ErrorCode.DRAINING, "the gateway is shutting down")
        if not self.roster.of(model):
            names = ", ".join(repr(name) for name in self.models()) or "none"
            raise ApiError(404, f"there is no model {model!r}; available: {names}", "model_not_found", param="model")
        ready = self.roster.candidates(model)
        if not ready:
            raise self._error(ErrorCode.UNAVAILABLE, self.roster.excuse(model))
        bound = self._settings.max_streams_per_worker - len(plan.choices)
        for seat in ready:
            if len(seat.live) <= bound:
                call = Call(request, model, eager=plan.stream, release=self._release)
                if self._start(seat, call, plan):
                    return call
        raise self._error(ErrorCode.OVERLOADED, f"the workers of model {model!r} have all the requests they can hold")

    def _start(self, seat: Seat, call: Call, plan: Plan) -> bool:
        hello = seat.status.hello
        if hello is None:
            return False
        now = self._clock()
        streams = [
            Stream(
                Submit(next(self._numbers), call.request, choice.input, choice.sampling, choice.limits),
                index,
                limit=choice.limits.max_tokens or hello.context,
                now=now,
                on_change=call.changed,
            )
            for index, choice in enumerate(plan.choices)
        ]
        try:
            seat.worker.send_nowait([stream.submit for stream in streams])
        except WorkerUnavailable as error:
            _log.info("submit_refused", worker=seat.name, request=call.request, reason=str(error))
            return False
        call.attach(streams, seat.name, f"fp_{hello.config_digest[:16]}" if hello.config_digest else None)
        seat.live.update((stream.submit.stream, stream) for stream in streams)
        self._idle.clear()
        seat.calls[call] = asyncio.get_running_loop().call_later(
            self._settings.request_timeout_s + DEADLINE_MARGIN_S, self._expire, seat, call
        )
        return True

    def _release(self, call: Call) -> None:
        """The client lets go: what still lives of its call is cancelled at the worker."""
        if not call.worker:
            return
        seat = self.roster[call.worker]
        timer = seat.calls.pop(call, None)
        if timer is not None:
            timer.cancel()
        cancelled = [stream for stream in call.streams if not stream.ended]
        for stream in cancelled:
            self._forget(seat, stream)
            seat.observed.ended("cancelled").inc()
            stream.cancel()
        seat.cancel(cancelled)

    def _expire(self, seat: Seat, call: Call) -> None:
        failure = Failure(ErrorCode.DEADLINE, f"not finished within {self._settings.request_timeout_s:g} s")
        expired = [stream for stream in call.streams if not stream.ended]
        for stream in expired:
            self._fail(seat, stream, failure)
        seat.cancel(expired)

    # What workers say (`WorkerListener`).

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        """A step, an end or a failure."""
        seat = self.roster[worker]
        if incarnation != seat.incarnation:
            return
        self.roster.heard(seat, event)
        if isinstance(event, Step):
            seat.counters.saw(incarnation, event.gauges)
            now = self._clock()
            for delta in event.deltas:
                self._deliver(seat, delta, now)
        elif isinstance(event, Finished):
            self._finished(seat, event)
        elif isinstance(event, Failed) and (stream := seat.live.get(event.stream)) is not None:
            self._fail(seat, stream, Failure(event.code, event.text, event.field))

    def worker_changed(self, status: WorkerStatus) -> None:
        """A worker started, got on with loading, became ready, or is no longer."""
        seat = self.roster[status.name]
        if status.incarnation != seat.incarnation:
            self._lose(seat, f"worker {seat.name} was replaced")
            seat.incarnation = status.incarnation
        seat.refresh(status)
        self.roster.promote(seat.model)

    def worker_lost(self, worker: str, incarnation: int, reason: str) -> None:
        """An incarnation is gone, and what it held ends typed."""
        seat = self.roster[worker]
        if incarnation == seat.incarnation:
            self._lose(seat, f"worker {worker} was lost: {reason}")

    def _lose(self, seat: Seat, text: str) -> None:
        # The seam for replay: each stream here has its Submit and the ids that its client got.
        seat.forget_cancels()
        self.roster.promote(seat.model)
        for stream in list(seat.live.values()):
            self._fail(seat, stream, Failure(ErrorCode.LOST, text))

    def _deliver(self, seat: Seat, event: Delta | Finished, now: float) -> Stream | None:
        """Hand a live sequence what a step brought; None when it does not live, or no longer."""
        stream = seat.live.get(event.stream)
        if stream is None:
            return None
        if not stream.push(event):
            text = f"the worker sent more than the {stream.limit} tokens asked for"
            self._fail(seat, stream, Failure(ErrorCode.INTERNAL, text))
            seat.cancel([stream])
            return None
        count = len(event.tokens)
        if count:
            if stream.first_at:
                seat.observed.inter_token.observe((now - stream.last_at) / count, count)
            else:
                stream.first_at = now
                seat.observed.first_token.observe(now - stream.opened_at)
            stream.last_at = now
        return stream

    def _finished(self, seat: Seat, event: Finished) -> None:
        now = self._clock()
        stream = self._deliver(seat, event, now)
        if stream is None:
            return
        if event.reason == "cancelled":
            self._fail(seat, stream, Failure(ErrorCode.INTERNAL, "the worker cancelled what nobody had cancelled"))
            return
        self._forget(seat, stream)
        observed = seat.observed
        observed.queue_wait.observe(event.usage.queue_ms / 1000)
        observed.end_to_end.observe(now - stream.opened_at)
        observed.ended(event.reason).inc()
        stream.finish(event.reason, event.usage)

    def _fail(self, seat: Seat, stream: Stream, failure: Failure) -> None:
        self._forget(seat, stream)
        seat.observed.ended(str(failure.code)).inc()
        stream.fail(failure)

    def _forget(self, seat: Seat, stream: Stream) -> None:
        del seat.live[stream.submit.stream]
        if not any(other.live for other in self.roster):
            self._idle.set()

    # The end of the gateway.

    def drain_nowait(self) -> None:
        """Admit nothing more."""
        self._draining = True

    async def idle(self) -> None:
        """Until no sequence lives."""
        await self._idle.wait()

    def fail_all(self, text: str) -> None:
        """End what still lives, typed."""
        for seat in self.roster:
            for stream in list(seat.live.values()):
                self._fail(seat, stream, Failure(ErrorCode.DRAINING, text))

    # What others look at.

    @property
    def draining(self) -> bool:
        return self._draining

    def models(self) -> list[str]:
        """Names of the models, in the order in which they were added."""
        return self.roster.models()

    def seats(self) -> Iterator[Seat]:
        """The workers and what they hold; to look at, not to change."""
        return iter(self.roster)

    def samples(self) -> list[WorkerSample]:
        """The workers, for a scrape."""
        return [seat.sample() for seat in self.roster]

    def _error(self, code: ErrorCode, text: str) -> ApiError:
        return from_code(code, text, retry_after_s=self._settings.retry_after_s)
