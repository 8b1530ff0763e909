"""OpenAI's error object."""

import msgspec

from gateway.errors import RefusalCode, RequestError
from protocol.errors import ErrorCode

DONE = b"data: [DONE]\n\n"
"""The last event of every stream."""
_encode = msgspec.json.Encoder().encode
_TYPES: dict[ErrorCode | RefusalCode, str] = {
    ErrorCode.OVERLOADED: "rate_limit_error",
    RefusalCode.RATE_LIMITED: "rate_limit_error",
    ErrorCode.DEADLINE: "timeout_error",
}


class OpenAIErrors:
    """Implements `gateway.http.conventions.ErrorRenderer`."""

    def status(self, error: RequestError) -> int:
        return error.status

    def body(self, error: RequestError) -> bytes:
        return error_object(error)

    def last_events(self, error: RequestError) -> bytes:
        return b"data: %s\n\n%s" % (error_object(error), DONE)


def error_object(error: RequestError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    kind = _TYPES.get(error.code) or ("server_error" if error.status >= 500 else "invalid_request_error")
    return _encode({"error": {"message": error.text, "type": kind, "param": error.field, "code": error.code}})
