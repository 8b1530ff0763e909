"""Stored responses in memory."""

from collections import OrderedDict
from collections.abc import Sequence

from gateway.responses.store.stored import ChainBroken, ChainTooLarge, StoredResponse


class _Owned:
    """The responses of one owner, the least recently used first."""

    def __init__(self) -> None:
        self.responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self.size = 0


class MemoryStore:
    """Implements `gateway.responses.store.stored.ResponseStore`. It ends with the process."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._owners: dict[str, _Owned] = {}
        self.count = 0
        self.size = 0
        """Bytes of all responses."""

    async def put(self, response: StoredResponse) -> bool:
        if response.size > self._most_bytes:
            return False
        self._drop(response.owner, response.id)
        owned = self._owners.setdefault(response.owner, _Owned())
        owned.responses[response.id] = response
        owned.size += response.size
        self.count += 1
        self.size += response.size
        while self.count > self._most or self.size > self._most_bytes:
            largest = max(self._owners, key=lambda owner: self._owners[owner].size)
            self._drop(largest, next(iter(self._owners[largest].responses)))
        return True

    async def get(self, owner: str, response: str) -> StoredResponse | None:
        owned = self._owners.get(owner)
        return None if owned is None else owned.responses.get(response)

    async def chain(self, owner: str, response: str, most: int) -> Sequence[StoredResponse]:
        owned = self._owners.get(owner)
        if owned is None or response not in owned.responses:
            return []
        found: list[StoredResponse] = []
        size = 0
        while response:
            each = owned.responses.get(response)
            if each is None:
                raise ChainBroken
            size += each.conversation_size
            if size > most:
                raise ChainTooLarge
            found.append(each)
            response = each.previous
        found.reverse()
        for each in found:
            owned.responses.move_to_end(each.id)
        return found

    async def delete(self, owner: str, response: str) -> bool:
        return self._drop(owner, response)

    def close(self) -> None:
        self._owners.clear()

    def _drop(self, owner: str, response: str) -> bool:
        owned = self._owners.get(owner)
        dropped = None if owned is None else owned.responses.pop(response, None)
        if owned is None or dropped is None:
            return False
        owned.size -= dropped.size
        self.count -= 1
        self.size -= dropped.size
        if not owned.responses:
            del self._owners[owner]
        return True
