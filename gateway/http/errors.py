"""How an error looks to a client: a status, OpenAI's error object, and perhaps when to come back."""

from dataclasses import dataclass, field

import msgspec

from protocol.errors import ErrorCode

_encode = msgspec.json.Encoder().encode

INVALID_TYPE = "invalid_request_error"
SERVER_TYPE = "server_error"

_BY_CODE: dict[ErrorCode, tuple[int, str]] = {
    ErrorCode.INVALID: (400, INVALID_TYPE),
    ErrorCode.UNSUPPORTED: (400, INVALID_TYPE),
    ErrorCode.CONTEXT: (400, INVALID_TYPE),
    ErrorCode.TEMPLATE: (400, INVALID_TYPE),
    ErrorCode.OVERLOADED: (429, "rate_limit_error"),
    ErrorCode.DEADLINE: (504, "timeout_error"),
    ErrorCode.STEP: (500, SERVER_TYPE),
    ErrorCode.NOT_FINITE: (500, SERVER_TYPE),
    ErrorCode.LOST: (502, SERVER_TYPE),
    ErrorCode.QUARANTINED: (500, SERVER_TYPE),
    ErrorCode.DRAINING: (503, SERVER_TYPE),
    ErrorCode.UNAVAILABLE: (503, SERVER_TYPE),
    ErrorCode.INTERNAL: (500, SERVER_TYPE),
}
COME_BACK = frozenset({ErrorCode.OVERLOADED, ErrorCode.LOST, ErrorCode.DRAINING, ErrorCode.UNAVAILABLE})
"""Codes whose answers carry `Retry-After`: nothing is wrong with the request."""


@dataclass(eq=False)
class ApiError(Exception):
    """Raised when a request is refused. It becomes the response, or the last chunk of an event stream."""

    status: int
    message: str
    code: str
    type: str = INVALID_TYPE
    param: str | None = None
    """The field of the request at fault, as a path: `messages[0].content`."""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def __str__(self) -> str:
        return self.message

    def body(self) -> bytes:
        """The JSON of OpenAI's error object."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return _encode({"error": error})


def invalid(param: str | None, message: str, code: str = ErrorCode.INVALID) -> ApiError:
    """A 400 that names its field."""
    return ApiError(400, message, str(code), param=param)


def unsupported(param: str, message: str | None = None) -> ApiError:
    """A 400 for an option that Baton does not have."""
    return invalid(param, message or f"`{param}` is not supported", ErrorCode.UNSUPPORTED)


def from_code(code: ErrorCode, message: str, *, param: str = "", retry_after_s: int = 1) -> ApiError:
    """The client's view of an error of the wire."""
    status, kind = _BY_CODE[code]
    headers = [(b"retry-after", str(retry_after_s).encode())] if code in COME_BACK else []
    return ApiError(status, message, str(code), kind, param or None, headers)
