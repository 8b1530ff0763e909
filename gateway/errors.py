"""Errors that clients see: a code, a status and a text. Each dialect writes them in its own format."""

from collections.abc import Sequence
from enum import StrEnum

from protocol.errors import ErrorCode

INTERNAL_TEXT = "the gateway failed"
"""The text of an internal error for clients; the log has the details."""


class RefusalCode(StrEnum):
    """Reasons of the gateway to refuse or end a request, beside the codes of workers (`protocol.errors.ErrorCode`)."""

    INVALID_JSON = "invalid_json"
    UNKNOWN_PARAMETER = "unknown_parameter"
    INVALID_API_KEY = "invalid_api_key"
    ADMIN_KEY_NEEDED = "admin_key_needed"
    HOST_NOT_ALLOWED = "host_not_allowed"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    KEYS_NOT_RELOADED = "keys_not_reloaded"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    WORKER_NOT_FOUND = "worker_not_found"
    STREAM_NOT_FOUND = "stream_not_found"
    RESPONSE_NOT_FOUND = "response_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TIMEOUT = "timeout"
    OPERATION_UNDER_WAY = "operation_under_way"
    STREAM_TAKEN = "stream_taken"
    EVENTS_GONE = "events_gone"
    STREAM_CANCELLED = "stream_cancelled"
    STREAM_DROPPED = "stream_dropped"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    HEADERS_TOO_LARGE = "headers_too_large"
    STREAM_LOST = "stream_lost"
    STREAM_ELSEWHERE = "stream_elsewhere"
    TLS_NOT_RELOADED = "tls_not_reloaded"
    NO_PROCESS = "no_process"
    NO_REMOTE_WORKERS = "no_remote_workers"
    RATE_LIMITED = "rate_limit_exceeded"


STATUS: dict[ErrorCode | RefusalCode, int] = {
    ErrorCode.INVALID: 400,
    ErrorCode.UNSUPPORTED: 400,
    ErrorCode.CONTEXT: 400,
    ErrorCode.TEMPLATE: 400,
    RefusalCode.INVALID_JSON: 400,
    RefusalCode.UNKNOWN_PARAMETER: 400,
    RefusalCode.INVALID_API_KEY: 401,
    RefusalCode.ADMIN_KEY_NEEDED: 403,
    RefusalCode.HOST_NOT_ALLOWED: 403,
    RefusalCode.ORIGIN_NOT_ALLOWED: 403,
    RefusalCode.NOT_FOUND: 404,
    RefusalCode.MODEL_NOT_FOUND: 404,
    RefusalCode.WORKER_NOT_FOUND: 404,
    RefusalCode.STREAM_NOT_FOUND: 404,
    RefusalCode.RESPONSE_NOT_FOUND: 404,
    RefusalCode.METHOD_NOT_ALLOWED: 405,
    RefusalCode.TIMEOUT: 408,
    RefusalCode.OPERATION_UNDER_WAY: 409,
    RefusalCode.KEYS_NOT_RELOADED: 409,
    RefusalCode.TLS_NOT_RELOADED: 409,
    RefusalCode.NO_PROCESS: 409,
    RefusalCode.NO_REMOTE_WORKERS: 409,
    RefusalCode.STREAM_TAKEN: 409,
    RefusalCode.STREAM_ELSEWHERE: 409,
    RefusalCode.EVENTS_GONE: 410,
    RefusalCode.STREAM_CANCELLED: 410,
    RefusalCode.STREAM_DROPPED: 410,
    RefusalCode.BODY_TOO_LARGE: 413,
    RefusalCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ErrorCode.OVERLOADED: 429,
    RefusalCode.RATE_LIMITED: 429,
    RefusalCode.HEADERS_TOO_LARGE: 431,
    ErrorCode.STEP: 500,
    ErrorCode.NOT_FINITE: 500,
    ErrorCode.QUARANTINED: 500,
    ErrorCode.INTERNAL: 500,
    ErrorCode.LOST: 502,
    RefusalCode.STREAM_LOST: 502,
    ErrorCode.DRAINING: 503,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.QUEUE_TIMEOUT: 503,
    ErrorCode.DEADLINE: 504,
}
"""The HTTP status of each code. A dialect may send another one."""
RETRYABLE = frozenset(
    {
        ErrorCode.OVERLOADED,
        ErrorCode.QUEUE_TIMEOUT,
        ErrorCode.LOST,
        ErrorCode.DRAINING,
        ErrorCode.UNAVAILABLE,
        RefusalCode.RATE_LIMITED,
        RefusalCode.STREAM_ELSEWHERE,
    }
)
"""Codes that say when to retry: nothing is wrong with the request."""


class RequestError(Exception):
    """Raised when a request is refused. It becomes the response, or the last event of a started stream.

    `field` is the path of the request field at fault, such as `messages[0].content`. `retry_after_s` is dropped unless
    the code is one of `RETRYABLE`. `headers` are further headers of the response.
    """

    def __init__(
        self,
        code: ErrorCode | RefusalCode,
        text: str,
        *,
        field: str | None = None,
        retry_after_s: int | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.field = field or None
        self.retry_after_s = retry_after_s if code in RETRYABLE else None
        self.request_id = ""
        """The id of the request, for dialects whose errors have it. Set before the error is rendered."""
        self._headers = headers

    @property
    def status(self) -> int:
        """The HTTP status, unless the dialect has another one for the code."""
        return STATUS[self.code]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that the response has in any dialect."""
        retry = [] if self.retry_after_s is None else [(b"retry-after", str(self.retry_after_s).encode())]
        return [*retry, *self._headers]


class ModelRequired(RequestError):
    """Raised for a body without a model that has to be known to decode it, where several are served. The error that the
    client gets has the names of those that its key may use."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.INVALID, "`model` is required", field="model")


def invalid(field: str | None, text: str, code: ErrorCode | RefusalCode = ErrorCode.INVALID) -> RequestError:
    """The refusal of a request whose field is wrong."""
    return RequestError(code, text, field=field)
