"""HTTP conventions of API dialects: the format of errors, and the headers of keys, ids and limits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Receive, Scope, Send

from gateway.errors import RequestError
from gateway.http.request_record import RequestRecords
from gateway.keys.limit_state import LimitState, openai_headers


class ErrorRenderer(Protocol):
    """Writes errors as one dialect has them."""

    def status(self, error: RequestError) -> int:
        """The HTTP status of the response."""

    def body(self, error: RequestError) -> bytes:
        """The JSON body of the response."""

    def last_events(self, error: RequestError) -> bytes:
        """The end of a stream whose connection, not whose answer, has failed. These events are not numbered, as a
        resumed stream does not repeat them."""


@dataclass(frozen=True, slots=True)
class HttpConventions:
    """The conventions of one dialect."""

    errors: ErrorRenderer
    key_headers: tuple[bytes, ...] = ()
    """Headers, in lower case, one of which may bear the API key instead of `Authorization`."""
    id_headers: tuple[bytes, ...] = (b"x-request-id",)
    """Headers, in lower case, that bear the id of the request in every response."""
    limit_headers: Callable[[Iterable[LimitState]], Sequence[tuple[bytes, bytes]]] = openai_headers
    """Writes the headers about the limits of an API key."""
    curl_type: bool = False
    """Clients may give a JSON body the type that curl has by default."""

    def named(self, request_id: str) -> list[tuple[bytes, bytes]]:
        """The headers of a response that bear the id of its request."""
        return [(header, request_id.encode()) for header in self.id_headers]


class ConventionsByPath:
    """The conventions of an app's dialects. The default ones are for requests that belong to no dialect."""

    def __init__(self, default: HttpConventions, prefixes: Mapping[str, HttpConventions]) -> None:
        """`prefixes`: the dialects by the beginnings of their paths."""
        self.default = default
        self._prefixes = sorted(prefixes.items(), key=lambda item: len(item[0]), reverse=True)

    def of(self, path: str) -> HttpConventions:
        """Those of the longest prefix that the path is, or continues with a slash."""
        for prefix, conventions in self._prefixes:
            if path == prefix or path.startswith(f"{prefix}/"):
                return conventions
        return self.default


class Application(Protocol):
    """An ASGI app that knows the conventions for requests which do not reach it, and counts them with its own."""

    @property
    def conventions(self) -> ConventionsByPath: ...

    @property
    def records(self) -> RequestRecords: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...
