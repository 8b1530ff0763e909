"""Exports traces by OTLP over HTTP, with the optional packages of OpenTelemetry.

A request is a span of the kind SERVER, with the attributes of OpenTelemetry's conventions for generative AI. In it,
each of its sequences has a span for each worker that computed it, with its tokenization, queue, prefill and decode
inside, and one for each replay. Workers report durations, and export nothing. All spans are made when the request ends.
A thread of the SDK exports them in batches and drops what its queue does not hold.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.tracing.traced_request import Attempt, RequestTrace, TracedRequest, TracedSequence

MAX_SEQUENCES = 32
"""Sequences of a request with spans of their own, five or six each: a span takes about 30 us of the event loop."""
SERVICE = "baton"
"""The `service.name`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has another."""
CHAT_ROUTES = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"})
_PARENT, _STATE = b"traceparent", b"tracestate"


class OtlpTraces:
    """The traces of one gateway."""

    def __init__(self, endpoint: str, version: str, clock: Callable[[], float]) -> None:
        """`endpoint` is the URL that takes traces, and `clock` the one of all times that traces get. OpenTelemetry's
        own environment variables set headers, sampling and the rest."""
        # It would log each malformed header, with the client's text.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
        named = Resource({SERVICE_NAME: SERVICE, SERVICE_VERSION: version})
        self._provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer(SERVICE, version)
        self._clock = clock

    def begin(self, headers: Sequence[tuple[bytes, bytes]], route: str, received: float) -> RequestTrace:
        parent = TraceContextTextMapPropagator().extract(_carrier(headers))
        return _OtlpTrace(self._tracer, parent, route, received, self._clock)

    def close(self, within_s: float) -> None:
        """Export what is left, for at most `within_s` seconds. Blocks."""
        # The SDK's own shutdown waits for the collector, at most 30 s.
        thread = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        thread.start()
        thread.join(within_s)


class _OtlpTrace:
    def __init__(
        self, tracer: Tracer, parent: Context, route: str, received: float, clock: Callable[[], float]
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._route = route
        self._received = received
        self._clock = clock
        self._clock_to_ns = 0
        """The wall clock less `_clock` when the request ended: the wall clock may be set at any time."""

    def refused(self, status: int, reason: str) -> None:
        with self._server(f"POST {self._route}".rstrip(), {"error.type": reason}, status, self._clock()) as span:
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR, reason))

    def ended(self, request: TracedRequest, status: int | None) -> None:
        operation = "chat" if self._route in CHAT_ROUTES else "text_completion"
        sequences = request.sequences
        failed = request.outcome not in ("answered", "client_gone")
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": SERVICE,
            "gen_ai.request.model": request.model,
            "gen_ai.response.model": request.model,
            "gen_ai.response.finish_reasons": [each.finish for each in sequences if each.finish],
            "gen_ai.usage.output_tokens": sum(each.completion_tokens for each in sequences),
            "baton.request.id": request.request_id,
            "baton.outcome": request.outcome,
        }
        if failed:
            attributes["error.type"] = request.outcome
        if len(sequences) != 1:
            attributes["gen_ai.request.choice.count"] = len(sequences)
        if request.streamed:
            attributes["gen_ai.request.stream"] = True
        if request.prompt_tokens is not None:
            attributes["gen_ai.usage.input_tokens"] = request.prompt_tokens
        if request.cached_tokens:
            attributes["gen_ai.usage.cache_read.input_tokens"] = request.cached_tokens
        now = self._clock()
        with self._server(f"{operation} {request.model}", attributes, status, now) as span:
            if failed:
                span.set_status(Status(StatusCode.ERROR, request.outcome))
            if not span.is_recording():  # it is not sampled, nor is what is inside
                return
            inside = set_span_in_context(span)
            for sequence in sequences[:MAX_SEQUENCES]:
                self._sequence(sequence, inside, now)

    @contextmanager
    def _server(
        self, name: str, attributes: Mapping[str, AttributeValue], status: int | None, now: float
    ) -> Iterator[Span]:
        self._clock_to_ns = time.time_ns() - round(now * 1e9)
        common: dict[str, AttributeValue] = {"http.request.method": "POST"}
        if self._route:
            common["http.route"] = self._route
        if status is not None:
            common["http.response.status_code"] = status
        span = self._tracer.start_span(
            name, self._parent, SpanKind.SERVER, common | dict(attributes), start_time=self._ns(self._received)
        )
        try:
            yield span
        finally:
            span.end(self._ns(now))

    def _sequence(self, sequence: TracedSequence, inside: Context, ended: float) -> None:
        """The spans of a sequence: one for each worker that computed it, with its parts inside, and its replays."""
        if not sequence.attempts:
            return
        about: dict[str, AttributeValue] = {"baton.sequence": sequence.index}
        if sequence.queued_s:
            self._span("admission", sequence.opened_at, sequence.opened_at + sequence.queued_s, about, inside)
        lost: Span | None = None
        spans: dict[float, Span] = {}
        for attempt, following in zip(sequence.attempts, (*sequence.attempts[1:], None), strict=True):
            tokens = (sequence.completion_tokens if following is None else following.resumed) - attempt.resumed
            lost = self._attempt(attempt, tokens, sequence.last_at, ended, about, inside, lost)
            spans[attempt.last_at] = lost
        for replay in sequence.replays:
            cause = about | {"baton.cause": replay.cause}
            self._span("replay", replay.lost_at, replay.resumed_at, cause, inside, spans.get(replay.lost_at))

    def _attempt(
        self,
        attempt: Attempt,
        tokens: int,
        last_at: float,
        ended: float,
        about: Mapping[str, AttributeValue],
        inside: Context,
        before: Span | None,
    ) -> Span:
        """The time of a sequence on one worker, linked to that on the worker `before`, which it has lost.

        The worker's durations are reckoned back from its first token, whose arrival the gateway's clock measured:
        clocks of two machines are never compared. None begins before the worker got the sequence.
        """
        about = dict(about) | {"baton.worker": attempt.worker, "baton.incarnation": attempt.incarnation}
        lost = {"error.type": attempt.cause} if attempt.cause else {}
        until = attempt.lost_at or max(last_at, attempt.sent_at) if attempt.first_at or attempt.lost_at else ended
        span = self._span("worker", attempt.sent_at, until, {**about, **lost}, inside, before)
        started, parts = attempt.started, set_span_in_context(span)
        if started is not None:
            slot_at = max(attempt.first_at - started.prefill_us / 1e6, attempt.sent_at)
            queued_at = max(slot_at - started.queue_us / 1e6, attempt.sent_at)
            tokenized_at = max(queued_at - started.tokenize_us / 1e6, attempt.sent_at)
            prompt = {"baton.prompt_tokens": started.prompt_tokens, "baton.cached_tokens": started.cached_tokens}
            self._span("tokenize", tokenized_at, queued_at, about, parts)
            self._span("queue", queued_at, slot_at, about, parts)
            self._span("prefill", slot_at, attempt.first_at, about | prompt, parts)
            output_at = attempt.last_at if attempt.lost_at else last_at
            self._span("decode", attempt.first_at, output_at, about | {"baton.completion_tokens": tokens}, parts)
        return span

    def _span(
        self,
        name: str,
        began: float,
        ended: float,
        attributes: Mapping[str, AttributeValue],
        inside: Context,
        link: Span | None = None,
    ) -> Span:
        links = [] if link is None else [Link(link.get_span_context())]
        span = self._tracer.start_span(
            name, inside, attributes=dict(attributes), links=links, start_time=self._ns(began)
        )
        if "error.type" in attributes:
            span.set_status(Status(StatusCode.ERROR, str(attributes["error.type"])))
        span.end(self._ns(max(began, ended)))
        return span

    def _ns(self, at: float) -> int:
        return round(at * 1e9) + self._clock_to_ns


def _carrier(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """The trace context of a request. Several lines of a state are one list; several parents are none (W3C)."""
    parents = [value.decode("latin-1") for name, value in headers if name == _PARENT]
    if len(parents) != 1:
        return {}
    states = [value.decode("latin-1") for name, value in headers if name == _STATE]
    return {"traceparent": parents[0]} | ({"tracestate": ",".join(states)} if states else {})
