"""Keeps one response when it has ended."""

import time
from collections.abc import Sequence

import msgspec
import structlog

from gateway.responses.items.input_schema import InputItem
from gateway.responses.items.item import listed
from gateway.responses.store.stored import UNDER_WAY, ResponseStore, StoredResponse, StoreUnavailable

_log = structlog.get_logger("gateway.responses.store.recording")


class Recording:
    """Stores one response with the input of its request. If that fails, it is logged, and the response is delivered."""

    def __init__(
        self,
        store: ResponseStore,
        owner: str,
        items: Sequence[InputItem],
        *,
        previous: str,
        echo_bytes: int,
        deadline: int = 0,
    ) -> None:
        """`items` are the input of the request itself, `echo_bytes` of the response repeat it. `deadline`: that of a
        response in the background."""
        self._store = store
        self._owner = owner
        self._items = items
        self._inputs = b""
        """The items as JSON, once they were encoded: clients ask for a response in the background again and again."""
        self._created = int(time.time())
        self._previous = previous
        self._echo_bytes = echo_bytes
        self._deadline = deadline
        self.ended: StoredResponse | None = None
        """The response that has ended."""

    def stored(self, response_id: str, status: str, response: bytes) -> StoredResponse:
        """The response in a state, as it is stored."""
        if not self._inputs:
            self._inputs = msgspec.json.encode(
                [listed(item, response_id, index) for index, item in enumerate(self._items)]
            )
            self._items = ()
        return StoredResponse(
            id=response_id,
            owner=self._owner,
            created=self._created,
            status=status,
            deadline=self._deadline if status in UNDER_WAY else 0,
            previous=self._previous,
            background=self._deadline > 0,
            echo_bytes=self._echo_bytes,
            response=response,
            inputs=self._inputs,
        )

    def end(self, response_id: str, status: str, response: bytes) -> None:
        """Note how the response ended. See `gateway.responses.answer.response_object.Finish`."""
        self.ended = self.stored(response_id, status, response)

    async def keep(self) -> None:
        """Store the response that has ended."""
        if self.ended is not None:
            await self.put(self.ended)

    async def put(self, response: StoredResponse) -> None:
        """Store a response in one of its states."""
        try:
            if not await self._store.put(response):
                _log.error("response_not_stored", response=response.id, reason="it is over max_stored_bytes")
        except StoreUnavailable as error:
            _log.error("response_not_stored", response=response.id, reason=str(error))
