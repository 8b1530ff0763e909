"""Generation requests that have ended, as their traces show them. Times are seconds of the event loop's clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Replay:
    """A gap in a sequence: it lost its worker, and another one continued it."""

    lost_at: float
    """The time of the last token of the lost worker; of the opening of the sequence if it had none."""
    resumed_at: float
    cause: str


@dataclass(frozen=True, slots=True)
class TracedSequence:
    """One sequence."""

    index: int
    worker: str
    finish: str
    opened_at: float
    first_at: float
    """0 if it has no token."""
    last_at: float
    queue_s: float | None
    """Measured by its last worker; None if it did not end well."""
    prefill_s: float | None
    """As `queue_s`."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    replays: Sequence[Replay]
    """The last one included."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request with all of its sequences."""

    request_id: str
    model: str
    outcome: str
    """`answered`, `client_gone`, or an error code."""
    prompt_tokens: int
    """Those of each prompt once, however many sequences it has."""
    sequences: Sequence[TracedSequence]


class RequestTrace(Protocol):
    """The trace of one HTTP request, which is exported once: when it was refused, or has ended."""

    def refused(self, status: int, reason: str) -> None:
        """Export a request that was refused; `reason` is the error code."""
        ...

    def ended(self, request: TracedRequest, status: int | None) -> None:
        """Export a generation request. `status` is None if its client left before the response began."""
        ...


class RequestTraces(Protocol):
    """Makes the traces of requests."""

    def begin(self, headers: Sequence[tuple[bytes, bytes]], route: str, received: float) -> RequestTrace:
        """Begin the trace of a request. Its parent is that of its `traceparent` header, if there is one. `route` is
        empty for a path that no route has."""
        ...
