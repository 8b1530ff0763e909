"""Refusals of requests that do not reach the app."""

import secrets

from gateway.errors import RefusalCode, RequestError
from gateway.http.conventions import ErrorRenderer
from protocol.errors import ErrorCode

Headers = list[tuple[bytes, bytes]]


class HttpRefusal(Exception):
    """Raised for a request that is not valid HTTP, or asks for a part of HTTP that the server does not have."""

    def __init__(self, error: RequestError, status: int | None = None) -> None:
        super().__init__(error.text)
        self.error = error
        self._status = status

    def render(self, errors: ErrorRenderer) -> tuple[int, Headers, bytes]:
        """The status, the headers and the body of the response."""
        body = errors.body(self.error)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", secrets.token_hex(12).encode()),
            *self.error.headers,
        ]
        return self._status or errors.status(self.error), headers, body


def malformed(text: str) -> HttpRefusal:
    """The refusal, with status 400, of a request that is not valid HTTP."""
    return HttpRefusal(RequestError(ErrorCode.INVALID, f"the request is not valid HTTP: {text}"))


def too_large(text: str) -> HttpRefusal:
    """The refusal of headers over the bound."""
    return HttpRefusal(RequestError(RefusalCode.HEADERS_TOO_LARGE, text))


def unsupported(status: int, text: str) -> HttpRefusal:
    """The refusal of valid HTTP that the server does not implement."""
    return HttpRefusal(RequestError(ErrorCode.UNSUPPORTED, text), status)
