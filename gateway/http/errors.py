"""How errors become responses: each dialect writes them in its own shape, chosen by the path that was asked for."""

from collections.abc import Mapping
from typing import Protocol

from starlette.types import Receive, Scope, Send

from gateway.errors import RequestError


class ErrorRenderer(Protocol):
    """Writes errors as one dialect has them."""

    def status(self, error: RequestError) -> int:
        """The HTTP status of the response."""

    def body(self, error: RequestError) -> bytes:
        """The JSON body of the response."""

    def last_events(self, error: RequestError) -> bytes:
        """The end of a stream that the connection, not the answer, is the cause of: these events are never resumed."""


class ErrorRenderers:
    """The error renderers of an app. The default one is for requests that belong to no dialect."""

    def __init__(self, default: ErrorRenderer, prefixes: Mapping[str, ErrorRenderer]) -> None:
        """`prefixes`: the dialects by the beginning of their paths."""
        self.default = default
        self._prefixes = sorted(prefixes.items(), key=lambda item: len(item[0]), reverse=True)

    def for_path(self, path: str) -> ErrorRenderer:
        """The renderer of the longest prefix that the path is, or continues with a slash."""
        for prefix, renderer in self._prefixes:
            if path == prefix or path.startswith(f"{prefix}/"):
                return renderer
        return self.default


class Application(Protocol):
    """An ASGI app that knows how to write the errors of requests which do not reach it."""

    @property
    def errors(self) -> ErrorRenderers: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...
