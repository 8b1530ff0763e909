"""The interface of an API dialect. Everything else in the gateway is the same for all dialects.

A dialect is a folder beside `gateway/openai`. It decodes bodies into requests (`Decode`), writes answers
(`AnswerRenderer`, `EventRenderer`) and errors (`gateway.http.conventions.ErrorRenderer`), and lists its paths
(`Dialect`).
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

from starlette.routing import Route

from gateway.body_budget import HeldBody
from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.generation.prompt_query import PromptQuery
from gateway.generation.request import GenerationRequest
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import HttpExchange
from gateway.images.sources import GivenImage
from gateway.routing.request_group import RequestGroup
from protocol.events import Tokenized


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields of an answer that are known before its first token."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    config_digest: str
    """The digest of the worker that computes it: equal digests compute equal tokens. Empty when the worker has none."""


class EventRenderer(Protocol):
    """Writes one answer as a stream of events.

    An element of what it returns is one event, whole, as it is sent. The gateway counts events from 1, and a client
    resumes after a number. Server-sent events get an id, made of the answer's id and the number.
    """

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        """Render new deltas. Called at least once, maybe without any delta, before `end` and `error`. Raises
        `RequestError` for an answer that is ended, as it is more than the dialect keeps; `error` follows."""

    def end(self, counts: TokenCounts, *, continued: bool) -> list[bytes]:
        """Render the last events of an answer that ended well. `continued`: see `AnswerRenderer.whole`."""

    def error(self, error: RequestError) -> list[bytes]:
        """Render the last events of an answer that failed."""


@runtime_checkable
class NumberedEvents(Protocol):
    """An `EventRenderer` whose events have numbers of their own."""

    def continue_after(self, number: int) -> None:
        """Number the next event as the one after this one, counted from 1."""


class AnswerRenderer(Protocol):
    """Writes the answer to one request, as the options of that request ask. Made by the dialect's `Decode`."""

    content_type: bytes
    """The content type of the answer as a stream."""
    keep_alive: bytes
    """Sent at intervals, and not counted as an event, while the answer waits for a worker; clients skip it."""

    def answer_id(self, token: str) -> str:
        """The id of the answer: `[a-z]{1,8}[-_]` and the token, which is 24 hexadecimal digits."""

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        """Render the whole answer as a JSON body, in parts of any size; what takes milliseconds to render must be
        several. Other requests are served between parts. `continued`: a worker of another kind continued a sequence, so
        its tokens may differ from those of an undisturbed run. Raises `RequestError`, at the first part, if the output
        has no answer to this request."""

    def events(self, head: AnswerHead) -> EventRenderer:
        """Make the renderer of the answer as a stream."""


Keep = Callable[[], Awaitable[None]]
"""Keeps an answer whose end was rendered. Awaited before the client gets the end, and must be short."""
Respond = Callable[[HttpExchange, RequestGroup], Awaitable[None]]
"""Responds to a request in place of the endpoint, and closes its group, maybe after the connection has ended. The group
is its own from the call on, before anything is awaited."""


Prepare = Callable[[Sequence[OutputDelta]], Awaitable[None]]
"""Computes what the renderer needs of a whole answer, before `AnswerRenderer.whole`; it lets others be served. Raises
`RequestError`."""


class Decoded(NamedTuple):
    """A body as a dialect understood it."""

    request: GenerationRequest
    renderer: AnswerRenderer
    keep: Keep | None = None
    respond: Respond | None = None
    admitted: Callable[[], None] | None = None
    """Called when the request was admitted."""
    prepare: Prepare | None = None
    portable: bool = True
    """Its body is all that another gateway needs to compute the same answer."""
    images: tuple[GivenImage, ...] = ()
    """The images of its chat, which are loaded before the request is admitted."""
    once_loaded: Callable[[], "Decoded"] | None = None
    """Decodes the body again, which depends on what the model can do: called once a worker has loaded it."""

    def of_model(self, model: str) -> "Decoded":
        """The same for a body that names no model."""
        return self._replace(request=replace(self.request, model=model))


class AnsweredAtOnce(NamedTuple):
    """The answer to a body that asks for nothing to be generated."""

    body: bytes
    """JSON."""
    model: str
    """The model that it is about."""
    first: Callable[[], Awaitable[None]] | None = None
    """Awaited before the answer is sent. Raises `RequestError`."""


Decode = Callable[[bytes], Decoded | AnsweredAtOnce]
"""Decodes the body of a generation request. Raises `RequestError` naming the field."""
StatefulDecode = Callable[[bytes, HeldBody, bytes], Awaitable[Decoded | AnsweredAtOnce]]
"""Decodes a body with what the dialect keeps for the API key, the last argument. What belongs to the request besides
its body grows the held body. Raises `RequestError`."""


class DecodedQuery(NamedTuple):
    """The body of a query as a dialect understood it."""

    query: PromptQuery
    render: Callable[[Tokenized, int | None], bytes]
    """Writes the answer as a JSON body. The number is the context of the model, if it is known."""
    images: tuple[GivenImage, ...] = ()
    """As those of `Decoded`."""


DecodeQuery = Callable[[bytes], DecodedQuery]
"""Decodes the body of a query. Raises `RequestError` naming the field."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API as the app mounts it."""

    conventions: HttpConventions
    generation: Mapping[str, Decode]
    """The paths to POST generation requests to."""
    queries: Mapping[str, DecodeQuery] = field(default_factory=dict)
    """The paths to POST queries for prompts to."""
    stateful: Mapping[str, StatefulDecode] = field(default_factory=dict)
    """Further such paths, of a dialect that keeps answers."""
    routes: Sequence[Route] = ()
    """Its other routes."""
    direct: Sequence[Route] = ()
    """Further routes, whose endpoints are ASGI apps that respond through an `HttpExchange`."""
    prefixes: Sequence[str] = ()
    """Beginnings of further paths whose errors it writes, whether there are such routes or not."""
