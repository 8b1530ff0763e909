"""The interface of an API dialect. Everything else in the gateway is the same for all dialects.

A dialect is a folder beside `gateway/openai`. It decodes bodies into requests (`Decode`), writes answers
(`AnswerRenderer`, `EventRenderer`) and errors (`gateway.http.errors.ErrorRenderer`), and lists its paths (`Dialect`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from starlette.routing import Route

from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.generation.request import GenerationRequest
from gateway.http.conventions import HttpConventions


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields of an answer that are known before its first token."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    config_digest: str
    """Of the worker that computes it: equal digests compute equal tokens. Empty when the worker has none."""


class EventRenderer(Protocol):
    """Writes one answer as a stream of events.

    An element of what it returns is one event, whole, as it is sent. The gateway counts events from 1, and a client
    resumes after a number. Server-sent events get an id, made of the answer's id and the number.
    """

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        """The events of what the sequences got. Called once or more; empty deltas may have no event."""

    def end(self, counts: TokenCounts, *, continued: bool) -> list[bytes]:
        """The last events, after the last deltas. `continued`: see `AnswerRenderer.whole`."""

    def error(self, error: RequestError) -> list[bytes]:
        """The last events of an answer that failed, maybe before any deltas."""


class AnswerRenderer(Protocol):
    """Writes the answer to one request as its options ask for: made with the request by the dialect's `Decode`."""

    content_type: bytes
    """Of the answer as a stream."""
    keep_alive: bytes
    """What is sent, without a number, while the answer waits for a worker; clients skip it."""

    def answer_id(self, token: str) -> str:
        """The id of an answer, a prefix and the token, 24 hexadecimal digits: `[a-z]{1,8}[-_]` and the token."""

    def whole(self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool) -> bytes:
        """The whole answer as a JSON body. `continued`: a worker of another kind continued a sequence, so that tokens
        may differ from those of an undisturbed run."""

    def events(self, head: AnswerHead) -> EventRenderer:
        """The renderer of the answer as a stream."""


class Decoded(NamedTuple):
    """A body as a dialect understood it."""

    request: GenerationRequest
    renderer: AnswerRenderer


Decode = Callable[[bytes], Decoded]
"""Decodes the body of a generation request. Raises `RequestError` naming the field."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API as the app mounts it."""

    conventions: HttpConventions
    generation: Mapping[str, Decode]
    """The paths to POST generation requests to."""
    routes: Sequence[Route] = ()
    """Whatever else there is."""
    prefixes: Sequence[str] = field(default=())
    """Beginnings of paths whose errors it writes, known routes or not, besides those of `generation`."""
