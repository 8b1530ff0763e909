"""Records of HTTP requests, for the metrics and for the log: route, status, reason and key name."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import structlog
from starlette.routing import Route
from starlette.types import Scope

from actors.transport.log_limit import LogLimit
from gateway.errors import RefusalCode
from gateway.http.access.gateways import TrustedGateways
from gateway.tracing.traced_request import RequestTrace, RequestTraces
from protocol.errors import ErrorCode

_log = structlog.get_logger("gateway.http.request_record")

OTHER = "other"
"""The route of requests for paths that no route has."""
_KEY = "baton.record"


class RequestRecord:
    """One request. The middleware makes it, and whatever sends its response calls `started`."""

    __slots__ = ("_noted", "admitted", "key_name", "reason", "received", "request_id", "route", "status", "trace")

    def __init__(
        self, scope: Scope, route: str = OTHER, noted: "Callable[[RequestRecord], None] | None" = None
    ) -> None:
        # It does not keep the scope, which has the record: each request would wait for a garbage collection.
        self._noted = noted
        self.request_id: str = scope.get("baton.request_id", "")
        """The id that the response carries."""
        self.key_name: str = scope.get("baton.key_name", "")
        """The name of the client's API key, never the key; empty without one. The middleware sets it."""
        self.route = route
        """The route's path, with the names of its parameters."""
        self.received = asyncio.get_running_loop().time()
        self.trace: RequestTrace | None = None
        """Set for requests that are traced."""
        self.admitted = False
        """A generation request that the router took, whose end is logged when it comes."""
        self.status: int | None = None
        """The status of the response; None before it starts."""
        self.reason: ErrorCode | RefusalCode | None = None
        """The code of its refusal or failure."""

    def started(self, status: int) -> None:
        """Note that the response starts. It counts once, however many parts of the app see it."""
        if self.status is not None:
            return
        self.status = status
        if self._noted is not None:
            self._noted(self)


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request; a new one, which counts nothing, outside of the app."""
    found: RequestRecord | None = scope.get(_KEY)
    return RequestRecord(scope) if found is None else found


class RequestRecords:
    """Makes the records of one app. Every response is counted when it starts, and every refusal is logged, at a bounded
    rate. No text of a client is a label or in a line: routes, statuses and reasons are closed sets."""

    def __init__(
        self,
        routes: Iterable[Route],
        count: Callable[[str, int, str], None],
        limit: LogLimit,
        traces: RequestTraces | None = None,
        gateways: TrustedGateways | None = None,
    ) -> None:
        """`count` is called with the route, the status and the reason of each response; the reason is empty, or a code.
        `traces` gets generation requests, and those refused POST requests that are logged. `gateways` decides
        whose headers may name the parent of a trace; without it everyone's do."""
        every = tuple(routes)
        self._whole = {route.path: route.path for route in every if "{" not in route.path}
        self._patterns: Sequence[Route] = [route for route in every if "{" in route.path]
        self._count = count
        self._limit = limit
        self._traces = traces
        self._gateways = gateways

    def begin(self, scope: Scope) -> RequestRecord:
        """Make the record of a request, which `record_of` finds in its scope."""
        record = scope[_KEY] = RequestRecord(scope, self._route(scope["path"]), self._noted)
        if self._traces is not None and scope.get("method") == "POST":
            route = "" if record.route == OTHER else record.route
            headers = scope["headers"] if self._gateways is None else self._gateways.trace_headers(scope)
            record.trace = self._traces.begin(headers, route, record.received)
        return record

    def _route(self, path: str) -> str:
        found = self._whole.get(path)
        if found is not None:
            return found
        matching = (route.path_format for route in self._patterns if route.path_regex.match(path))
        return next(matching, OTHER)

    def _noted(self, record: RequestRecord) -> None:
        status, code = record.status or 0, record.reason
        self._count(record.route, status, "" if code is None else code.value)
        if code is None or record.admitted:
            return
        left_out = self._limit.take(code.value)
        if left_out is not None:
            if record.trace is not None:
                record.trace.refused(status, code.value)
            more = {"left_out": left_out} if left_out else {}
            _log.info(
                "request_refused",
                request=record.request_id,
                route=record.route,
                status=status,
                code=code.value,
                key=record.key_name,
                **more,
            )
