"""References to items: each response is read once for a request, and all of them have a bound."""

from typing import Any

import msgspec
import pytest

from gateway.body_budget import BodyBudget, HeldBody
from gateway.errors import RequestError
from gateway.responses.ids import output_item_id
from gateway.responses.service import ResponseService
from gateway.responses.store.memory import MemoryStore
from gateway.responses.store.stored import StoredResponse
from gateway.settings import GatewaySettings
from protocol.request import ChatInput

pytestmark = pytest.mark.anyio


class CountingStore(MemoryStore):
    reads = 0

    async def get(self, owner: str, response: str) -> StoredResponse | None:
        self.reads += 1
        return await super().get(owner, response)


async def service(responses: int, text: str) -> tuple[ResponseService, CountingStore, list[str]]:
    """A service with so many stored responses of one message, and the ids of the messages."""
    made = ResponseService(GatewaySettings(max_body_bytes=64 * 1024))
    made.store = store = CountingStore(1000, 1 << 30)
    ids = []
    for number in range(responses):
        response = f"resp_{number:024x}"
        ids.append(output_item_id("message", response, 0))
        item = {"id": ids[-1], "type": "message", "status": "completed", "role": "assistant", "content": text}
        body = msgspec.json.encode({"output": [item]})
        await store.put(
            StoredResponse(id=response, owner="", created=1, status="completed", response=body, inputs=b"[]")
        )
    return made, store, ids


async def decode(made: ResponseService, ids: list[str], held: HeldBody) -> Any:
    raw = msgspec.json.encode({"model": "tiny", "input": [{"type": "item_reference", "id": each} for each in ids]})
    return (await made.decode(raw, held, b"")).request.sequences[0].input


async def test_a_response_is_read_once_however_often_it_is_referred_to() -> None:
    made, store, (item,) = await service(1, "x")
    found = await decode(made, [item] * 500, HeldBody(BodyBudget(1 << 30, 1)))
    assert isinstance(found, ChatInput)
    assert [each.content for each in found.messages] == ["x"] * 500
    assert store.reads == 1


async def test_the_responses_referred_to_have_a_bound_and_count_as_a_body() -> None:
    made, _, ids = await service(40, "x" * 4000)
    held = HeldBody(BodyBudget(1 << 30, 1))
    await decode(made, ids[:5], held)
    assert held.size > 20_000
    with pytest.raises(RequestError) as caught:
        await decode(made, ids, HeldBody(BodyBudget(1 << 30, 1)))
    assert caught.value.status == 400
    assert "max_body_bytes" in caught.value.text


@pytest.mark.parametrize("name", ["msg_1", "resp_" + "0" * 24, "msg_" + "0" * 24 + "0001", "fc_" + "0" * 28, ""])
async def test_an_item_that_is_not_stored_is_a_404(name: str) -> None:
    made, _, _ = await service(1, "x")
    with pytest.raises(RequestError) as caught:
        await decode(made, [name], HeldBody(BodyBudget(1 << 30, 1)))
    assert (caught.value.status, caught.value.field) == (404, "input[0].id")
