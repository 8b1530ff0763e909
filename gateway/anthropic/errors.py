"""Anthropic's error object."""

from typing import Any

import msgspec

from gateway.errors import RequestError
from gateway.generation.tools import own_paths
from gateway.streaming.sse import END
from protocol.errors import ErrorCode

OVERLOADED_STATUS = 529
"""Anthropic's own status for a server that is overloaded."""
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    410: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED_STATUS: "overloaded_error",
}
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""Anthropic's client, whose tool runner asks for a thread, then sends the whole conversation instead."""
_encode = msgspec.json.Encoder().encode


class AnthropicErrors:
    """Implements `gateway.http.conventions.ErrorRenderer`."""

    def status(self, error: RequestError) -> int:
        return OVERLOADED_STATUS if error.code is ErrorCode.OVERLOADED else error.status

    def body(self, error: RequestError) -> bytes:
        text = own_paths(error.text, "input_schema")
        described: dict[str, Any] = {"type": _TYPES.get(self.status(error), "api_error"), "message": text}
        if error.code is ErrorCode.UNSUPPORTED and error.field == "thread":
            described["details"] = _NO_THREADS
        return _encode({"type": "error", "error": described, "request_id": error.request_id or None})

    def last_events(self, error: RequestError) -> bytes:
        return b"event: error\ndata: " + self.body(error) + END


ERRORS = AnthropicErrors()
