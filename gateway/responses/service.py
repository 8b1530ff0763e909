"""The Responses API's own state: the store, and what a request needs of it."""

import time

import msgspec
from msgspec import Struct

from gateway.body_budget import HeldBody
from gateway.errors import RefusalCode, RequestError, invalid
from gateway.responses.answer.renderer import ResponseAnswer
from gateway.responses.ids import response_of
from gateway.responses.items.input_schema import InputItem
from gateway.responses.items.item import kind_of
from gateway.responses.request.decoding import EarlierItem, ResponsesDecoder, echo, own_items
from gateway.responses.request.schema import ENCRYPTED, ResponsesBody
from gateway.responses.store.memory import MemoryStore
from gateway.responses.store.recording import Recording
from gateway.responses.store.stored import (
    ChainBroken,
    ChainTooLarge,
    ResponseStore,
    StoredResponse,
    StoreUnavailable,
)
from gateway.routing.tenant import tenant_of
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded
from protocol.errors import ErrorCode

PREVIOUS = "previous_response_id"


class _Output(Struct):
    """The part of a stored response that a conversation continues."""

    output: tuple[InputItem, ...] = ()


class ResponseService:
    """Decodes requests with what is stored for their API key."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._decoder = ResponsesDecoder(settings)
        self._outputs = msgspec.json.Decoder(_Output)
        self._inputs = msgspec.json.Decoder(tuple[InputItem, ...])
        self.store: ResponseStore | None = (
            None if settings.store == "none" else MemoryStore(settings.max_stored_responses, settings.max_stored_bytes)
        )

    async def decode(self, raw: bytes, held: HeldBody, key: bytes) -> Decoded:
        """Decode a body of `/v1/responses`. See `gateway.streaming.dialect.StatefulDecode`."""
        body = self._decoder.body(raw)
        owner = tenant_of(key, "")
        store = self._store_for(body)
        earlier = await self._earlier(owner, body, held)
        own = [await self._resolved(owner, each, held) for each in own_items(body)]
        request = self._decoder.request(body, [*earlier, *own], size=len(raw))
        recording = None
        if store is not None:
            recording = Recording(
                store,
                owner,
                [each.item for each in own],
                created=int(time.time()),
                previous=body.previous_response_id or "",
                background=bool(body.background),
            )
        answer = ResponseAnswer(
            echo=echo(body, stored=store is not None),
            encrypted=ENCRYPTED in (body.include or ()),
            on_end=None if recording is None else recording.end,
        )
        return Decoded(request, answer, None if recording is None else recording.keep)

    def _store_for(self, body: ResponsesBody) -> ResponseStore | None:
        """The store of a response; None for one that is not stored. Raises `RequestError`."""
        if body.store is False:
            return None
        if self.store is None and body.store:
            raise self._no_store("store")
        return self.store

    def _no_store(self, field: str) -> RequestError:
        return invalid(field, f"`{field}`: this server keeps no responses (--store none)", ErrorCode.UNSUPPORTED)

    async def _earlier(self, owner: str, body: ResponsesBody, held: HeldBody) -> list[EarlierItem]:
        """The items of the conversation that a request continues. Raises `RequestError`."""
        if body.previous_response_id is None:
            return []
        if self.store is None:
            raise self._no_store(PREVIOUS)
        most = self._settings.max_body_bytes
        try:
            chain = await self.store.chain(owner, body.previous_response_id, most)
        except ChainBroken:
            text = f"`{PREVIOUS}`: a response earlier in this conversation is not kept any more; send all items"
            raise invalid(PREVIOUS, text, RefusalCode.RESPONSE_NOT_FOUND) from None
        except ChainTooLarge:
            text = f"`{PREVIOUS}`: the conversation has over {most} bytes (max_body_bytes)"
            raise invalid(PREVIOUS, text) from None
        except StoreUnavailable as error:
            raise unavailable(error) from error
        if not chain:
            raise not_found(body.previous_response_id, PREVIOUS)
        held.grow(sum(each.size for each in chain))
        return [EarlierItem(item, PREVIOUS) for each in chain for item in self._items(each)]

    def _items(self, stored: StoredResponse) -> list[InputItem]:
        """The items of a stored response. Calls that were cut off are left out, as they cannot be answered."""
        output = self._outputs.decode(stored.response).output
        whole = [item for item in output if item.type != "function_call" or item.status == "completed"]
        return [*self._inputs.decode(stored.inputs), *whole]

    async def _resolved(self, owner: str, given: EarlierItem, held: HeldBody) -> EarlierItem:
        """The item that a reference stands for, or the item itself. Raises `RequestError`."""
        if kind_of(given.item) != "item_reference":
            return given
        field, name = f"{given.field}.id", given.item.id or ""
        if self.store is None:
            raise self._no_store(field)
        response = response_of(name)
        try:
            stored = None if response is None else await self.store.get(owner, response)
        except StoreUnavailable as error:
            raise unavailable(error) from error
        for item in () if stored is None else self._items(stored):
            if item.id == name:
                held.grow(len(msgspec.json.encode(item)))
                return EarlierItem(item, given.field)
        text = f"`{field}`: there is no stored item {name[:128]!r}; send the item itself"
        raise invalid(field, text, RefusalCode.RESPONSE_NOT_FOUND)


def not_found(response: str, field: str) -> RequestError:
    """The error for a response that does not exist, or belongs to another key."""
    text = f"there is no response {response[:128]!r}: it was not stored, was dropped, or belongs to another key"
    return invalid(field, text, RefusalCode.RESPONSE_NOT_FOUND)


def unavailable(error: StoreUnavailable) -> RequestError:
    """The error for a store that failed."""
    return RequestError(ErrorCode.UNAVAILABLE, f"the store of responses failed: {error}")
