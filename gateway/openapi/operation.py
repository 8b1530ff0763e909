"""Descriptions of single operations: what each route takes and answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import STATUS, RefusalCode
from protocol.errors import ErrorCode

JSON = "application/json"
Code = ErrorCode | RefusalCode
Contents = Mapping[str, Any]
"""The type of a body for each content type, or a tuple of several; None for one that has no schema of its own."""

EVERYWHERE: tuple[Code, ...] = (
    RefusalCode.HEADERS_TOO_LARGE,
    RefusalCode.HOST_NOT_ALLOWED,
    RefusalCode.ORIGIN_NOT_ALLOWED,
    ErrorCode.INTERNAL,
    ErrorCode.UNAVAILABLE,
)
"""Errors that every route may have, whatever it does."""
OF_BODIES: tuple[Code, ...] = (
    ErrorCode.INVALID,
    RefusalCode.INVALID_JSON,
    RefusalCode.UNKNOWN_PARAMETER,
    RefusalCode.TIMEOUT,
    RefusalCode.BODY_TOO_LARGE,
    RefusalCode.UNSUPPORTED_MEDIA_TYPE,
)
"""Errors of every route that reads a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOperation:
    """One method of one route."""

    summary: str
    answers: Mapping[int, Contents] = field(default_factory=dict)
    """The bodies of responses that are no errors, by their status."""
    errors: tuple[Code, ...] = ()
    """Besides `EVERYWHERE`, and those of the body and of the key."""
    body: Any = None
    """The type of the request's JSON body; None without one."""
    body_required: bool = True
    parameters: tuple[Mapping[str, Any], ...] = ()
    """Parameters in the query and in headers, as OpenAPI has them; those of the path come from the path."""
    open: bool = False
    """It needs no key."""
    error: Any = None
    """The type of its errors, or a tuple of several; None for that of the document."""
    statuses: Mapping[Code, int] = field(default_factory=lambda: STATUS)
    """The status of each code."""

    @property
    def codes(self) -> tuple[Code, ...]:
        """The codes of all errors that it may answer with."""
        of_key = () if self.open else (RefusalCode.INVALID_API_KEY,)
        of_body = () if self.body is None else OF_BODIES
        return (*EVERYWHERE, *of_key, *of_body, *self.errors)
