"""A collector of traces: it takes OTLP over HTTP on a free port, as a real one does, and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.ports import QuietHandler, serving_http


class Collector:
    """The spans that arrived, and the URL that takes them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.service: dict[str, str] = {}
        self.answers = threading.Event()
        """Cleared, it accepts requests and does not answer."""
        self.answers.set()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.service = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_span_id == parent.span_id]


def attributes(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@contextmanager
def collector() -> Iterator[Collector]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.answers.wait()
            found.take(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with serving_http(Handler) as url:
        found = Collector(f"{url}/v1/traces")
        try:
            yield found
        finally:
            found.answers.set()
