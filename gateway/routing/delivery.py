"""Delivers what workers report to the live sequences that it concerns."""

import math
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from gateway.generation.delta import StopReason
from gateway.routing.failure import Cause, RequestFailure
from gateway.routing.failure_attribution import cleared
from gateway.routing.placement.placement import Placement
from gateway.routing.sequence import MAX_REPLAYS, LiveSequence
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from gateway.tracing.traced_request import Replay
from protocol.errors import ErrorCode
from protocol.events import Delta, Event, Failed, Finished, Heartbeat, PromptLogprobs, Step, Usage

_log = structlog.get_logger("gateway.routing.delivery")


class Delivery:
    """Handles the events of workers: output, ends and failures of sequences. Synchronous.

    `fail` is called for a sequence that ends with a failure, and `begun` for one that has its first token on a worker.
    """

    def __init__(
        self,
        pool: WorkerPool,
        placement: Placement,
        clock: Callable[[], float],
        fail: Callable[[LiveSequence, RequestFailure], None],
        begun: Callable[[WorkerHandle, LiveSequence], None],
    ) -> None:
        self._pool = pool
        self._placement = placement
        self._clock = clock
        self._fail = fail
        self._begun = begun

    def take(self, handle: WorkerHandle, event: Event) -> None:
        """Handle a step, log-probabilities of a prompt, a heartbeat, or an end or a failure of a sequence. An exception
        ends the sequence at which it was raised, and no other."""
        if isinstance(event, PromptLogprobs | Finished | Failed):
            concerned = handle.live.get(event.stream)
            if not isinstance(event, PromptLogprobs):
                handle.answered(event.stream)
            try:
                self._take_event(handle, event)
            except Exception as error:  # noqa: BLE001  see above
                self._panicked(handle, concerned, error)
            return
        if isinstance(event, Step | Heartbeat):
            handle.counters.add(handle.incarnation, event.gauges)
            handle.reached, handle.steps_failed = event.gauges.reached, event.gauges.steps_failed
            handle.note_others(event.gauges.others)
            self._placement.routing.report(handle, event.prefixes)
        if isinstance(event, Step):
            now = self._clock()
            for delta in event.deltas:
                try:
                    self._deliver(handle, delta, now)
                except Exception as error:  # noqa: BLE001  see above
                    self._panicked(handle, handle.live.get(delta.stream), error)
            for started in event.started:
                if (sequence := handle.live.get(started.stream)) is not None:
                    sequence.started(started, now)
                    self._placement.routing.started(handle, started)
                    self._begun(handle, sequence)

    def _take_event(self, handle: WorkerHandle, event: PromptLogprobs | Finished | Failed) -> None:
        if isinstance(event, PromptLogprobs):
            self._deliver_prompt(handle, event)
        elif isinstance(event, Finished):
            self._pool.note_end(handle, event)
            self._finished(handle, event)
        else:
            self._failed(handle, handle.live.get(event.stream), event)

    def _panicked(self, handle: WorkerHandle, sequence: LiveSequence | None, error: Exception) -> None:
        """End a sequence for which an event of its worker could not be handled: the next one would not follow on it.
        Not if it has ended by now, or went to another worker or into the queue."""
        log = _log.bind(worker=handle.name)
        log.error("event_failed", exc_info=error)
        if sequence is None or sequence.ended or (sequence.worker != handle.name and self._placement.has(sequence)):
            return
        failure = RequestFailure(ErrorCode.INTERNAL, f"an event of its worker failed: {type(error).__name__}")
        try:
            handle.cancel([sequence])
            self._fail(sequence, failure)
        except Exception as second:
            log.error("sequence_abandoned", exc_info=second)
            self._placement.abandon(handle, sequence)
            if not sequence.ended:
                sequence.fail(failure)

    def _deliver(self, handle: WorkerHandle, event: Delta | Finished, now: float) -> LiveSequence | None:
        """Deliver the result of a step to a live sequence. None when there is no such sequence, or no longer."""
        sequence = handle.live.get(event.stream)
        if sequence is None:
            return None
        if not sequence.push(event):
            text = f"the worker sent more than the {sequence.limit} tokens asked for"
            handle.cancel([sequence])
            self._fail(sequence, RequestFailure(ErrorCode.INTERNAL, text))
            return None
        if sequence.cause is not None:
            self._resumed(handle, sequence, now)
        count = len(event.tokens)
        if count:
            self._placement.charges.generated(sequence, count)
            if sequence.first_at:
                handle.observed.inter_token.observe((now - sequence.last_at) / count, count)
            else:
                sequence.first_at = now
                handle.observed.first_token.observe(now - sequence.opened_at)
            sequence.last_at = now
            if sequence.failures and cleared(sequence, count):
                handle.exemptions.clear()
                handle.on_change(handle)
                self._placement.serve(handle.model)
        return sequence

    def _deliver_prompt(self, handle: WorkerHandle, event: PromptLogprobs) -> None:
        """Deliver log-probabilities of its prompt to a live sequence, if there is one."""
        sequence = handle.live.get(event.stream)
        if sequence is None:
            return
        if not sequence.push_prompt(event):
            handle.cancel([sequence])
            text = "the worker sent log-probabilities of the prompt that were not asked for"
            self._fail(sequence, RequestFailure(ErrorCode.INTERNAL, text))
        elif sequence.cause is not None:
            self._resumed(handle, sequence, self._clock())

    def _resumed(self, handle: WorkerHandle, sequence: LiveSequence, now: float) -> None:
        """Note the first delivery of another worker: the client's gap is over."""
        if sequence.first_at:
            handle.observed.gap.observe(now - sequence.last_at)
        del sequence.replays[MAX_REPLAYS - 1 :]
        sequence.replays.append(Replay(sequence.last_at, now, str(sequence.cause)))
        self._placement.settle(sequence, "continued" if sequence.continued else "resumed")

    def _finished(self, handle: WorkerHandle, event: Finished) -> None:
        now = self._clock()
        sequence = self._deliver(handle, event, now)
        if sequence is None:
            return
        if event.reason == "cancelled":
            self._fail(sequence, RequestFailure(ErrorCode.INTERNAL, "the worker cancelled what nobody had cancelled"))
            return
        observed, usage = handle.observed, _as_first_cached(sequence, event.usage)
        observed.queue_wait.observe(sequence.queued_s + usage.queue_ms / 1000)
        observed.prefill.observe(usage.prefill_ms / 1000)
        observed.decode.observe(usage.decode_ms / 1000)
        if usage.completion_tokens > 1 and not sequence.replays:  # or the time would be that of some of its tokens
            observed.output_token.observe(usage.decode_ms / 1000 / (usage.completion_tokens - 1))
        observed.prompt_tokens.observe(usage.prompt_tokens)
        observed.completion_tokens.observe(usage.completion_tokens)
        observed.end_to_end.observe(now - sequence.opened_at)
        observed.ended(event.reason).inc()
        handle.exemptions.clear()
        self._placement.charges.settle(sequence, usage)
        self._placement.routing.finished(handle, sequence, usage)
        self._placement.remove(sequence)
        sequence.finish(StopReason(event.reason), usage, event.stop)

    def _failed(self, handle: WorkerHandle, sequence: LiveSequence | None, event: Failed) -> None:
        """Handle a sequence's failure on its worker: it ends, or another worker continues it. None is a sequence that
        does not live any more."""
        placement, reason = self._placement, f"worker {handle.name}: {event.text}"
        # Attributed first: a failure that is attributed to the request must not open the circuit of the worker.
        again = event.code in (ErrorCode.STEP, ErrorCode.NOT_FINITE)
        attributed = again and sequence is not None and placement.attribute_step(handle, sequence, event.code)
        self._pool.note_end(handle, event)
        if sequence is None:
            return
        match event.code:
            case ErrorCode.LOST:
                # The worker ends, maybe because of this sequence: `worker_lost` follows, which attributes it.
                handle.close()
            case ErrorCode.DRAINING:
                handle.close()
                placement.suspend(sequence, Cause.LEFT, reason)
            case ErrorCode.STEP | ErrorCode.NOT_FINITE if not attributed:
                placement.suspend(sequence, Cause.STEP, reason)
            case ErrorCode.OVERLOADED | ErrorCode.UNAVAILABLE if sequence.waited and not event.retry_after_s:
                placement.postpone(sequence)
            case ErrorCode.OVERLOADED if not event.retry_after_s and placement.redirect(sequence):
                pass
            case ErrorCode.QUEUE_TIMEOUT if sequence.terms.queue_until < math.inf:
                placement.wait_ends.time_out(sequence)
            case _:
                self._fail(sequence, RequestFailure(event.code, event.text, event.field, event.retry_after_s))


def _as_first_cached(sequence: LiveSequence, usage: Usage) -> Usage:
    """Return the usage without cached tokens that the sequence itself had computed, on a worker before the last one."""
    began = next((each.started for each in sequence.attempts if each.started is not None), None)
    if len(sequence.attempts) < 2 or began is None:
        return usage
    return replace(usage, cached_tokens=min(usage.cached_tokens, began.cached_tokens))
