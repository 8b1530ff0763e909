"""Streams of messages are resumed after any of their events, with the key in the client's own header."""

import json
from typing import Any

import pytest

from protocol.events import Usage
from tests.gateway.anthropic.bodies import BODY
from tests.gateway.harness.transcripts import site
from tests.gateway.harness.virtual import BACKEND

pytestmark = pytest.mark.anyio
PATH = "/v1/messages"


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_a_stream_is_resumed_after_any_of_its_events() -> None:
    async with site(api_key="secret") as made:
        body = BODY | {"stream": True, "resume_s": 60}
        first = made.clients.open("POST", PATH, body, x_api_key="secret")
        (stream,) = await made.placed()
        await made.token(stream, "Hel", 1)
        await made.token(stream, "lo", 2)
        await first.leave()
        made.worker.finish(stream, "!", usage=Usage(3, 3))
        stream_id = first.headers["x-stream-id"]
        path = f"/v1/streams/{stream_id}"
        whole = await made.clients.ask("GET", path, x_api_key="secret")
        assert whole.events[: len(first.events)] == first.events
        for number in range(1, len(whole.events) + 1):
            last = f"{stream_id}-{number}"
            rest = await made.clients.ask("GET", path, last_event_id=last, x_api_key="secret")
            assert (rest.status, rest.events) == (200 if rest.events else 204, whole.events[number:])
        again = await made.clients.ask("POST", PATH, body, last_event_id=f"{stream_id}-3", x_api_key="secret")
        assert again.events == whole.events[3:]
        refused = await made.clients.ask("GET", path)
    data = [json.loads(event.rpartition(b"data: ")[2]) for event in whole.events]
    assert "".join(each["delta"]["text"] for each in data if each["type"] == "content_block_delta") == "Hello!"
    assert refused.status == 401


async def test_a_connection_that_loses_its_stream_gets_an_error_of_its_own_format() -> None:
    async with site() as made:
        first = made.clients.open("POST", PATH, BODY | {"stream": True, "resume_s": 60}, x_request_id="mine")
        (stream,) = await made.placed()
        await made.token(stream, "one", 1)
        second = made.clients.open("GET", f"/v1/streams/{first.headers['x-stream-id']}")
        await first.ended.wait()
        await second.until(1)
        await second.leave()
    assert first.events[-1].startswith(b"event: error\n")
    assert json.loads(first.events[-1].rpartition(b"data: ")[2]) == {
        "type": "error",
        "error": {"type": "conflict_error", "message": "another connection picked this stream up"},
        "request_id": "mine",
    }
