"""The Responses API's own state: the store, and what a request needs of it."""

import time
from collections.abc import Sequence

import anyio
import msgspec
from msgspec import Struct

from gateway.body_budget import HeldBody
from gateway.errors import RefusalCode, RequestError, invalid
from gateway.generation.tenant import tenant_of
from gateway.http.exchange import HttpExchange
from gateway.responses.answer.renderer import ResponseAnswer
from gateway.responses.background import BackgroundResponse, BackgroundResponses
from gateway.responses.event_feed import EventFeed
from gateway.responses.ids import response_of
from gateway.responses.items.input_schema import InputItem
from gateway.responses.items.item import check_item, kind_of
from gateway.responses.request.decoding import EarlierItem, ResponsesDecoder, echo, own_items
from gateway.responses.request.schema import ENCRYPTED, ResponsesBody
from gateway.responses.store.opening import open_store
from gateway.responses.store.recording import Recording
from gateway.responses.store.stored import (
    UNDER_WAY,
    ChainBroken,
    ChainTooLarge,
    ResponseStore,
    StoredResponse,
    StoreUnavailable,
)
from gateway.routing.request_group import RequestGroup
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded, Respond
from protocol.errors import ErrorCode

PREVIOUS = "previous_response_id"
AFTER_DEADLINE_S = 60
"""Seconds after the deadline of a request in which its response is stored."""


class _Output(Struct):
    """The part of a stored response that a conversation continues."""

    output: tuple[InputItem, ...] = ()


class _RawOutput(Struct):
    """The same part as JSON."""

    output: list[msgspec.Raw] = []


class ResponseService:
    """Decodes requests with what is stored for their API key."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises `StoreUnavailable`."""
        self._settings = settings
        self._decoder = ResponsesDecoder(settings)
        self._outputs = msgspec.json.Decoder(_Output)
        self._inputs = msgspec.json.Decoder(tuple[InputItem, ...])
        self._raw_items = msgspec.json.Decoder(list[msgspec.Raw])
        self._raw_outputs = msgspec.json.Decoder(_RawOutput)
        self.store: ResponseStore | None = open_store(settings)
        self.background = BackgroundResponses(settings)

    def close(self) -> None:
        """Close the store, when nothing is generated any more."""
        if self.store is not None:
            self.store.close()

    async def decode(self, raw: bytes, held: HeldBody, key: bytes) -> Decoded:
        """Decode a body of `/v1/responses`. See `gateway.streaming.dialect.StatefulDecode`."""
        body = self._decoder.body(raw)
        owner = tenant_of(key, "")
        store = self._store_for(body)
        earlier = await self._earlier(owner, body, held)
        own = await self._resolved(owner, own_items(body), held)
        request, images = self._decoder.request(body, [*earlier, *own], size=len(raw))
        repeated = echo(body, stored=store is not None)
        recording = None
        if store is not None:
            longest = int(time.time() + self._settings.request_timeout_s) + AFTER_DEADLINE_S
            recording = Recording(
                store,
                owner,
                [each.item for each in own],
                previous=body.previous_response_id or "",
                echo_bytes=len(repeated),
                deadline=longest if body.background else 0,
            )
        answer = ResponseAnswer(
            echo=repeated,
            encrypted=ENCRYPTED in (body.include or ()),
            background=bool(body.background),
            on_end=None if recording is None else recording.end,
        )
        if body.background:
            respond = self._in_background(body, owner, answer, recording)
            return Decoded(request, answer, respond=respond, images=images)
        keep = None if recording is None else recording.keep
        return Decoded(request, answer, keep, portable=not _refers(body), images=images)

    def _in_background(
        self, body: ResponsesBody, owner: str, answer: ResponseAnswer, recording: Recording | None
    ) -> Respond:
        """Make the function that responds to a request in the background. Raises `RequestError`."""
        if recording is None:
            raise invalid(
                "background", "`background` needs a stored response: `store: true`, and a server with a store"
            )
        if body.stream_options is not None and body.stream_options.resume_s:
            text = "`stream_options.resume_s`: events of `background: true` are kept without it"
            raise invalid("stream_options.resume_s", text)
        self.background.check_room()
        streamed = bool(body.stream)

        async def respond(exchange: HttpExchange, group: RequestGroup) -> None:
            feed = EventFeed(self._settings) if streamed else None
            response = BackgroundResponse(group, answer, recording, exchange, self._settings, feed)
            self.background.start(owner, response)
            if feed is None:
                await exchange.respond(200, response.stored.response)
            else:
                await self.follow(exchange, feed, 0)

        return respond

    async def follow(self, exchange: HttpExchange, feed: EventFeed, number: int) -> None:
        """Send the events after this one, counted from 1, while the client is connected."""

        async def send(scope: anyio.CancelScope) -> None:
            await feed.send(exchange, scope, number)

        try:
            await exchange.while_connected(send)
        finally:
            exchange.close()

    async def find(self, owner: str, response: str) -> StoredResponse:
        """A response in its present state. Raises `RequestError`."""
        live = self.background.find(owner, response)
        if live is not None:
            return live.stored
        try:
            stored = None if self.store is None else await self.store.get(owner, response)
        except StoreUnavailable as error:
            raise self._unavailable(error) from error
        if stored is None:
            raise not_found(response, "id")
        return stored

    async def cancel(self, owner: str, stored: StoredResponse) -> StoredResponse:
        """End a response that is generated. Returns it in its last state."""
        live = self.background.find(owner, stored.id)
        if live is None:
            return stored
        live.cancel()
        await live.ended.wait()
        return live.stored

    async def delete(self, owner: str, response: str) -> None:
        """Drop a response, which is cancelled if it is generated. Raises `RequestError`."""
        live = self.background.find(owner, response)
        if live is not None:
            live.cancel()
            await live.ended.wait()
        self.background.forget(owner, response)
        try:
            deleted = self.store is not None and await self.store.delete(owner, response)
        except StoreUnavailable as error:
            raise self._unavailable(error) from error
        if not deleted and live is None:
            raise not_found(response, "id")

    async def conversation(self, owner: str, response: str) -> list[StoredResponse]:
        """The responses of a conversation up to this one. Raises `RequestError`."""
        stored = await self.find(owner, response)
        chain = await self._chain(owner, stored.previous, "id") if stored.previous else ()
        return [*chain, stored]

    def input_items(self, conversation: Sequence[StoredResponse]) -> list[msgspec.Raw]:
        """The items of a conversation without the output of its last response, as JSON."""
        items: list[msgspec.Raw] = []
        for each in conversation[:-1]:
            items += self._raw_items.decode(each.inputs)
            items += self._raw_outputs.decode(each.response).output
        items += self._raw_items.decode(conversation[-1].inputs)
        return items

    def _store_for(self, body: ResponsesBody) -> ResponseStore | None:
        """The store of a response; None for one that is not stored. Raises `RequestError`."""
        if body.store is False:
            return None
        if self.store is None and body.store:
            raise self._no_store("store")
        return self.store

    def _no_store(self, field: str) -> RequestError:
        return invalid(field, f"`{field}`: this server keeps no responses (--store none)", ErrorCode.UNSUPPORTED)

    def _unavailable(self, error: StoreUnavailable) -> RequestError:
        """The error for a store that failed."""
        text = f"the store of responses failed: {error}"
        return RequestError(ErrorCode.UNAVAILABLE, text, retry_after_s=self._settings.retry_after_s)

    async def _earlier(self, owner: str, body: ResponsesBody, held: HeldBody) -> list[EarlierItem]:
        """The items of the conversation that a request continues. Raises `RequestError`."""
        if body.previous_response_id is None:
            return []
        chain = await self._chain(owner, body.previous_response_id, PREVIOUS)
        if chain[-1].status in UNDER_WAY:
            text = f"`{PREVIOUS}`: the response is {chain[-1].status}; retrieve it until it has ended"
            raise invalid(PREVIOUS, text)
        held.grow(sum(each.conversation_size for each in chain))
        return [EarlierItem(item, PREVIOUS) for each in chain for item in self._items(each)]

    async def _chain(self, owner: str, response: str, field: str) -> Sequence[StoredResponse]:
        """The responses of a conversation, of which this one is the last. Raises `RequestError` naming `field`."""
        if self.store is None:
            raise self._no_store(field)
        most = self._settings.max_body_bytes
        try:
            chain = await self.store.chain(owner, response, most)
        except ChainBroken:
            text = f"`{field}`: a response earlier in this conversation is not kept any more; send all items"
            raise invalid(field, text, RefusalCode.RESPONSE_NOT_FOUND) from None
        except ChainTooLarge:
            text = f"`{field}`: the conversation has over {most} bytes (max_body_bytes)"
            raise invalid(field, text) from None
        except StoreUnavailable as error:
            raise self._unavailable(error) from error
        if not chain:
            raise not_found(response, field)
        return chain

    def _items(self, stored: StoredResponse) -> list[InputItem]:
        """The items of a stored response. Calls that are not complete are left out, as they cannot be answered."""
        output = self._outputs.decode(stored.response).output
        whole = [item for item in output if item.type != "function_call" or item.status == "completed"]
        return [*self._inputs.decode(stored.inputs), *whole]

    async def _resolved(self, owner: str, own: Sequence[EarlierItem], held: HeldBody) -> list[EarlierItem]:
        """The items of a body, with the items that its references stand for. Raises `RequestError`."""
        stored: dict[str, dict[str | None, InputItem]] = {}
        found = []
        for each in own:
            if kind_of(each.item) != "item_reference":
                found.append(each)
                continue
            check_item(each.item, each.field)
            field, name = f"{each.field}.id", each.item.id or ""
            response = response_of(name) or ""
            if response not in stored:
                stored[response] = await self._stored_items(owner, response, field, held)
            if name not in stored[response]:
                text = f"`{field}`: there is no stored item {name[:128]!r}; send the item itself"
                raise invalid(field, text, RefusalCode.RESPONSE_NOT_FOUND)
            found.append(EarlierItem(stored[response][name], each.field))
        return found

    async def _stored_items(self, owner: str, response: str, field: str, held: HeldBody) -> dict[str | None, InputItem]:
        """The items of a stored response by their ids; none if there is no such response. Their bytes count as those of
        a body, which bounds the number of responses that one request refers to. Raises `RequestError`."""
        if self.store is None:
            raise self._no_store(field)
        try:
            stored = await self.store.get(owner, response)
        except StoreUnavailable as error:
            raise self._unavailable(error) from error
        if stored is None:
            return {}
        if held.size + stored.conversation_size > 2 * self._settings.max_body_bytes:
            most = self._settings.max_body_bytes
            raise invalid(field, f"`{field}`: the responses referred to have over {most} bytes (max_body_bytes)")
        held.grow(stored.conversation_size)
        return {item.id: item for item in self._items(stored)}


def _refers(body: ResponsesBody) -> bool:
    """Return whether a body refers to what this gateway has stored."""
    items = () if isinstance(body.input, str) else body.input
    return body.previous_response_id is not None or any(kind_of(item) == "item_reference" for item in items)


def not_found(response: str, field: str) -> RequestError:
    """The error for a response that does not exist, or belongs to another key."""
    text = f"there is no response {response[:128]!r}: it was not stored, was dropped, or belongs to another key"
    return invalid(field, text, RefusalCode.RESPONSE_NOT_FOUND)
