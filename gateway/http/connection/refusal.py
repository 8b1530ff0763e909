"""Refusals of requests that do not reach the app."""

import secrets

from gateway.errors import RefusalCode, RequestError
from gateway.http.conventions import ErrorRenderer
from gateway.http.request_record import RequestRecords
from protocol.errors import ErrorCode

Headers = list[tuple[bytes, bytes]]


class HttpRefusal(Exception):
    """Raised for a request that is not valid HTTP, or asks for a part of HTTP that the server does not have."""

    def __init__(self, error: RequestError, status: int | None = None) -> None:
        super().__init__(error.text)
        self.error = error
        self.status = status
        """The status of the response; None for that of the error's code."""


class RefusalRenderer:
    """Renders refusals in the default dialect, and counts them: the app does not see these requests."""

    def __init__(self, errors: ErrorRenderer, records: RequestRecords) -> None:
        self._errors = errors
        self._records = records

    def render(self, refusal: HttpRefusal) -> tuple[int, Headers, bytes]:
        """The status, the headers and the body of the response."""
        error = refusal.error
        request_id, body = secrets.token_hex(12), self._errors.body(error)
        status = refusal.status or self._errors.status(error)
        record = self._records.begin({"path": "", "baton.request_id": request_id})
        record.reason = error.code
        record.started(status)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id.encode()),
            *error.headers,
        ]
        return status, headers, body


def malformed(text: str) -> HttpRefusal:
    """The refusal, with status 400, of a request that is not valid HTTP."""
    return HttpRefusal(RequestError(ErrorCode.INVALID, f"the request is not valid HTTP: {text}"))


def too_large(text: str) -> HttpRefusal:
    """The refusal of headers over the bound."""
    return HttpRefusal(RequestError(RefusalCode.HEADERS_TOO_LARGE, text))


def unsupported(status: int, text: str) -> HttpRefusal:
    """The refusal of valid HTTP that the server does not implement."""
    return HttpRefusal(RequestError(ErrorCode.UNSUPPORTED, text), status)
