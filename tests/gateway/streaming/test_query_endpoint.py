"""The endpoint of queries: bodies, clients that leave, and failures."""

import json
from typing import Any

import pytest

from gateway.streaming.query_endpoint import QueryEndpoint
from protocol.events import Tokenized
from tests.gateway.harness.transcripts import site
from tests.gateway.harness.virtual import BACKEND

pytestmark = pytest.mark.anyio
PATH = "/v1/messages/count_tokens"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def test_the_answer() -> None:
    async with site() as made:
        connection = made.post(PATH, BODY)
        (query,) = await made.worker.wait_queries(1)
        assert made.router.bodies.held == len(json.dumps(BODY))
        made.worker.say(Tokenized(query.query, 5))
        await connection.ended.wait()
        assert made.router.bodies.held == 0
    assert (connection.status, json.loads(connection.body)) == (200, {"input_tokens": 5})
    assert connection.headers["request-id"] == "golden"


async def test_a_client_that_leaves_frees_its_body() -> None:
    async with site() as made:
        connection = made.post(PATH, BODY)
        (query,) = await made.worker.wait_queries(1)
        await connection.leave()
        assert made.router.bodies.held == 0
        made.worker.say(Tokenized(query.query, 5))
    assert connection.status == 0


@pytest.mark.parametrize(
    ("settings", "body", "status"),
    [
        ({"max_body_bytes": 10}, BODY, 413),
        ({"max_body_values": 1024}, BODY | {"messages": BODY["messages"] * 600}, 413),
        ({"api_key": "secret"}, BODY, 401),
        ({}, {}, 400),
        ({}, BODY | {"max_tokens": 5}, 400),
    ],
    ids=["size", "values", "key", "missing", "unknown"],
)
async def test_a_refusal(settings: dict[str, Any], body: Any, status: int) -> None:
    async with site(**settings) as made:
        answer = await made.clients.ask("POST", PATH, body)
        assert made.router.bodies.held == 0
    assert answer.status == status
    assert answer.error["message"]


async def test_a_failure_of_the_dialect_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(raw: bytes) -> Any:
        raise ZeroDivisionError

    connections = []
    try:
        async with site() as made:
            endpoint = made.clients.app._direct("POST", PATH)  # type: ignore[attr-defined]
            assert isinstance(endpoint, QueryEndpoint)
            monkeypatch.setattr(endpoint, "_decode", broken)
            connections.append(made.clients.open("POST", PATH, BODY))
            await connections[0].ended.wait()
    except* ZeroDivisionError:
        pass
    assert (connections[0].status, connections[0].error["type"]) == (500, "api_error")
