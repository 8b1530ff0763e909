"""`/v1/responses/{id}`: retrieve, list the input of, cancel and delete stored responses."""

import functools
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import anyio.to_thread
import msgspec
from msgspec import Struct
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.errors import RefusalCode, RequestError, invalid
from gateway.generation.tenant import tenant_of
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import HttpExchange
from gateway.responses.request.schema import ENCRYPTED, LOGPROBS
from gateway.responses.service import ResponseService
from gateway.responses.store.stored import UNDER_WAY, StoredResponse
from gateway.settings import GatewaySettings

ITEM_PATH = "/v1/responses/{id}"
INPUT_PATH = "/v1/responses/{id}/input_items"
CANCEL_PATH = "/v1/responses/{id}/cancel"
MAX_PAGE = 100
PAGE = 20
_NUMBER = re.compile(r"[0-9]{1,9}")
_INCLUDES = ("include", "include[]")
Serve = Callable[[HttpExchange, str], Awaitable[None]]


class _Operations:
    """An ASGI app for one path, with a function for each method."""

    def __init__(
        self, path: str, settings: GatewaySettings, conventions: HttpConventions, by_method: Mapping[str, Serve]
    ) -> None:
        self._settings = settings
        self._conventions = conventions
        self._by_method = by_method
        self.route = Route(path, self)
        # The argument would add HEAD to GET.
        self.route.methods = set(by_method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send, self._settings, self._conventions)
        found = self.route.path_regex.match(scope["path"])
        try:
            await self._by_method[scope["method"]](exchange, "" if found is None else found["id"])
        except RequestError as error:
            await exchange.refuse(error)


class ResponseEndpoints:
    """Each method serves one operation. All raise `RequestError` for a response that does not exist or belongs to
    another key."""

    def __init__(self, service: ResponseService, settings: GatewaySettings, conventions: HttpConventions) -> None:
        self._service = service
        self._settings = settings
        self._conventions = conventions

    def routes(self) -> list[Route]:
        """The routes, whose apps are called directly."""
        paths: dict[str, dict[str, Serve]] = {
            ITEM_PATH: {"GET": self.retrieve, "DELETE": self.delete},
            INPUT_PATH: {"GET": self.input_items},
            CANCEL_PATH: {"POST": self.cancel},
        }
        return [_Operations(path, self._settings, self._conventions, each).route for path, each in paths.items()]

    async def retrieve(self, exchange: HttpExchange, response: str) -> None:
        """`GET /v1/responses/{id}`: the response, or the rest of its events."""
        query = _query(exchange, "stream", "starting_after", "include_obfuscation", *_INCLUDES)
        owner = tenant_of(exchange.key, "")
        if _flag(query, "include_obfuscation"):
            raise invalid("include_obfuscation", "`include_obfuscation` must be false: events are not obfuscated")
        if not _flag(query, "stream"):
            if "starting_after" in query:
                raise invalid("starting_after", "`starting_after` goes with `stream=true` only")
            await exchange.respond(200, current(await self._service.find(owner, response)))
            return
        after = query.get("starting_after", "")
        if after and not _NUMBER.fullmatch(after):
            raise invalid("starting_after", "`starting_after` must be the sequence_number of an event")
        feed = self._service.background.feed(owner, response)
        if feed is None:
            await self._service.find(owner, response)
            text = "`stream`: only responses of `background: true` and `stream: true` can be read so, and not for long"
            raise invalid("stream", text)
        number = int(after) + 1 if after else 0
        feed.check_position(number, "starting_after")
        await self._service.follow(exchange, feed, number)

    async def delete(self, exchange: HttpExchange, response: str) -> None:
        """`DELETE /v1/responses/{id}`. A response that is generated is cancelled."""
        _query(exchange)
        await self._service.delete(tenant_of(exchange.key, ""), response)
        await exchange.respond(
            200, msgspec.json.encode({"id": response, "object": "response.deleted", "deleted": True})
        )

    async def cancel(self, exchange: HttpExchange, response: str) -> None:
        """`POST /v1/responses/{id}/cancel`. A response that has ended stays as it is."""
        _query(exchange)
        owner = tenant_of(exchange.key, "")
        stored = await self._service.find(owner, response)
        if not stored.background:
            raise invalid("id", "only responses of `background: true` can be cancelled; end the connection of others")
        await exchange.respond(200, current(await self._service.cancel(owner, stored)))

    async def input_items(self, exchange: HttpExchange, response: str) -> None:
        """`GET /v1/responses/{id}/input_items`: the conversation up to the response, in pages."""
        query = _query(exchange, "limit", "order", "after", *_INCLUDES)
        limit, order = query.get("limit", str(PAGE)), query.get("order", "desc")
        if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MAX_PAGE:
            raise invalid("limit", f"`limit` is 1 to {MAX_PAGE}")
        if order not in ("asc", "desc"):
            raise invalid("order", "`order` is asc or desc")
        conversation = await self._service.conversation(tenant_of(exchange.key, ""), response)
        # It may have megabytes, and other clients do not wait for them to be decoded.
        page = functools.partial(
            self._page, conversation, limit=int(limit), newest_first=order == "desc", after=query.get("after")
        )
        await exchange.respond(200, await anyio.to_thread.run_sync(page))

    def _page(
        self, conversation: Sequence[StoredResponse], *, limit: int, newest_first: bool, after: str | None
    ) -> bytes:
        """Render a page of the input items of a conversation. Raises `RequestError`."""
        items = self._service.input_items(conversation)
        if newest_first:
            items.reverse()
        begin = 0
        if after:
            place = next((index for index, item in enumerate(items) if _id(item) == after), None)
            if place is None:
                raise invalid("after", "`after` is not the id of an item of this input")
            begin = place + 1
        page = items[begin : begin + limit]
        body: dict[str, Any] = {
            "object": "list",
            "data": page,
            "first_id": _id(page[0]) if page else None,
            "last_id": _id(page[-1]) if page else None,
            "has_more": begin + len(page) < len(items),
        }
        return msgspec.json.encode(body)


class _Identified(Struct):
    id: str


_identified = msgspec.json.Decoder(_Identified)


def _id(item: msgspec.Raw) -> str:
    return _identified.decode(item).id


def current(stored: StoredResponse) -> bytes:
    """The response as JSON. One that nothing generates any more has failed."""
    if stored.status not in UNDER_WAY or time.time() < stored.deadline:
        return stored.response
    error = {"code": "server_error", "message": "the server ended before the response did"}
    fields: dict[str, Any] = msgspec.json.decode(stored.response)
    return msgspec.json.encode(fields | {"status": "failed", "error": error})


def _query(exchange: HttpExchange, *known: str) -> dict[str, str]:
    """The parameters of the URL. Raises `RequestError` for another one, or one that is there twice."""
    given = parse_qs(exchange.query, keep_blank_values=True)
    for name, values in given.items():
        if name not in known:
            text = f"`{name[:100]}` is not a parameter of this path"
            raise invalid(name[:100], text, RefusalCode.UNKNOWN_PARAMETER)
        if name in _INCLUDES:
            if unknown := [value for value in values if value not in (LOGPROBS, ENCRYPTED)]:
                raise invalid("include", f"`include` has {unknown[0][:100]!r}; it takes {LOGPROBS} and {ENCRYPTED}")
        elif len(values) > 1:
            raise invalid(name, f"`{name}` is there more than once")
    return {name: values[0] for name, values in given.items()}


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise invalid(name, f"`{name}` is true or false")
    return value == "true"
