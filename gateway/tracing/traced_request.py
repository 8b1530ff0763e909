"""Generation requests that have ended, as their traces show them. Times are seconds of the event loop's clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.events import StartedStream


@dataclass(slots=True)
class Attempt:
    """A sequence on one incarnation of a worker. Owned by the sequence until it has ended."""

    worker: str
    incarnation: int
    sent_at: float
    """The time at which the worker got it."""
    resumed: int
    """Tokens of the answer that it got with it."""
    started: StartedStream | None = None
    """Its way to the first token there; None if it had none, or of a worker that does not report it."""
    first_at: float = 0.0
    """The time of that token; 0 without one."""
    lost_at: float = 0.0
    """The time at which the loss of the worker was noticed; 0 if it kept it to its end."""
    last_at: float = 0.0
    """The time of the last token from a worker that it lost."""
    cause: str = ""
    """Why it lost the worker."""


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
    finish: str
    opened_at: float
    queued_s: float
    """Seconds for which it waited in the gateway for its first worker."""
    last_at: float
    """The time of its last token; of its opening without one."""
    completion_tokens: int
    attempts: Sequence[Attempt]
    """In the order of time; of many the first ones and the last."""
    replays: Sequence[Replay]
    """As `attempts`."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request with all of its sequences."""

    request_id: str
    model: str
    outcome: str
    """`answered`, `client_gone`, or an error code."""
    streamed: bool
    prompt_tokens: int | None
    """Those of each prompt once, however many sequences it has; None if a prompt came to no first token."""
    cached_tokens: int
    """Those of them that the prefix cache had."""
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
