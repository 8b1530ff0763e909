"""Exports traces by OTLP over HTTP, with the optional packages of OpenTelemetry.

A request is a span of the kind SERVER, with the attributes of OpenTelemetry's conventions for generative AI; each of
its sequences has child spans for its wait in the queue, its prefill, its decoding and its replays. All are made when
the request ends. A thread of the SDK exports them in batches and drops what its queue does not hold.
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
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.tracing.traced_request import RequestTrace, TracedRequest, TracedSequence

MAX_SEQUENCES = 64
"""Sequences of a request with spans of their own: each span takes about 30 us of the event loop."""
SERVICE = "baton"
"""The `service.name`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has another."""
CHAT_ROUTES = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"})
_CONTEXT_HEADERS = frozenset({b"traceparent", b"tracestate"})


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
        carrier = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in _CONTEXT_HEADERS
        }
        parent = TraceContextTextMapPropagator().extract(carrier)
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
        with self._server(f"POST {self._route}".rstrip(), {"error.type": reason}, status) as span:
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
            "gen_ai.request.choice.count": len(sequences),
            "gen_ai.response.finish_reasons": [each.finish for each in sequences if each.finish],
            "gen_ai.usage.input_tokens": request.prompt_tokens,
            "gen_ai.usage.output_tokens": sum(each.completion_tokens for each in sequences),
            "baton.request.id": request.request_id,
            "baton.outcome": request.outcome,
        }
        if failed:
            attributes["error.type"] = request.outcome
        with self._server(f"{operation} {request.model}", attributes, status) as span:
            if failed:
                span.set_status(Status(StatusCode.ERROR, request.outcome))
            inside = set_span_in_context(span)
            for sequence in sequences[:MAX_SEQUENCES]:
                self._sequence(sequence, inside)

    @contextmanager
    def _server(self, name: str, attributes: Mapping[str, AttributeValue], status: int | None) -> Iterator[Span]:
        now = self._clock()
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

    def _sequence(self, sequence: TracedSequence, inside: Context) -> None:
        """The parts of a sequence. Queue and prefill are those of its last worker, back from the first token of that
        worker, which the gateway's clock measured."""
        if sequence.first_at:
            about: dict[str, AttributeValue] = {"baton.sequence": sequence.index, "baton.worker": sequence.worker}
            if sequence.prefill_s is not None and sequence.queue_s is not None:
                last = sequence.replays[-1] if sequence.replays else None
                begun = sequence.opened_at if last is None else last.lost_at
                token_at = sequence.first_at if last is None else max(sequence.first_at, last.resumed_at)
                slot_at = max(token_at - sequence.prefill_s, begun)
                self._part("queue", max(slot_at - sequence.queue_s, begun), slot_at, about, inside)
                prompt = {"baton.prompt_tokens": sequence.prompt_tokens, "baton.cached_tokens": sequence.cached_tokens}
                self._part("prefill", slot_at, token_at, about | prompt, inside)
            tokens = {"baton.completion_tokens": sequence.completion_tokens}
            self._part("decode", sequence.first_at, sequence.last_at, about | tokens, inside)
        for replay in sequence.replays:
            cause: dict[str, AttributeValue] = {"baton.sequence": sequence.index, "baton.cause": replay.cause}
            self._part("replay", replay.lost_at, replay.resumed_at, cause, inside)

    def _part(
        self, name: str, began: float, ended: float, attributes: Mapping[str, AttributeValue], inside: Context
    ) -> None:
        span = self._tracer.start_span(name, inside, attributes=dict(attributes), start_time=self._ns(began))
        span.end(self._ns(ended))

    def _ns(self, at: float) -> int:
        return round(at * 1e9) + self._clock_to_ns
