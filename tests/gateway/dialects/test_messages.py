"""A second dialect on the app: it streams, resumes and fails through the same core, beside OpenAI's."""

import ast
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, TextDelta, TokenCounts
from gateway.streaming.dialect import AnswerHead, Decoded, Dialect, EventRenderer
from protocol.errors import ErrorCode
from protocol.events import Usage
from protocol.request import ChatInput, Message
from tests.gateway.dialects import messages
from tests.gateway.dialects.messages import DIALECT, PATH, MessageRenderer
from tests.gateway.harness.asgi import Connection
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.transcripts import Site, site
from tests.gateway.harness.virtual import BACKEND

pytestmark = pytest.mark.anyio

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
STREAM = BODY | {"stream": True}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


@asynccontextmanager
async def served(**chosen: Any) -> AsyncIterator[Site]:
    async with site(dialects=[DIALECT], **chosen) as made:
        yield made


def events(connection: Connection) -> list[tuple[str, Any]]:
    """The name and the data of each event."""
    found = []
    for event in connection.events:
        fields = dict(line.split(": ", 1) for line in event.decode().split("\n"))
        found.append((fields["event"], json.loads(fields["data"])))
    return found


def text(connection: Connection) -> str:
    return "".join(data["delta"]["text"] for name, data in events(connection) if name == "content_block_delta")


def names(connection: Connection) -> list[str]:
    return [name for name, _ in events(connection)]


async def test_a_whole_answer() -> None:
    async with served() as made:
        connection = made.post(PATH, BODY | {"system": "be brief"})
        (submit,) = await made.worker.wait_submits(1)
        assert isinstance(submit.input, ChatInput)
        assert submit.input.messages == (Message("system", "be brief"), Message("user", "hi"))
        made.worker.finish(submit.stream, "Hello", reason="length", usage=Usage(3, 1))
        await connection.ended.wait()
    answer = json.loads(connection.body)
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 3, "output_tokens": 1},
    }


async def test_a_streamed_answer_has_named_events() -> None:
    async with served() as made:
        connection = made.post(PATH, STREAM)
        (stream,) = await made.placed()
        await made.token(stream, "Hel", 1)
        await made.token(stream, "lo", 2)
        made.worker.finish(stream, usage=Usage(3, 2))
        await connection.ended.wait()
    assert connection.headers["content-type"] == "text/event-stream"
    assert names(connection) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert text(connection) == "Hello"
    assert events(connection)[-2][1] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }


async def test_a_stream_continues_on_another_worker() -> None:
    async with served() as made:
        other = FakeWorker("b").join(made.router)
        connection = made.post(PATH, STREAM)
        (stream,) = await made.placed()
        await made.token(stream, "Hel", 1)
        made.worker.die()
        (again,) = await other.wait_submits(1)
        assert again.resume == (1,)
        other.finish(again.stream, "lo", usage=Usage(3, 2))
        await connection.ended.wait()
    assert text(connection) == "Hello"
    assert names(connection)[-1] == "message_stop"


async def test_a_stream_that_waits_for_a_worker_is_pinged() -> None:
    async with served() as made:
        connection = made.post(PATH, STREAM)
        (stream,) = await made.placed()
        await made.token(stream, "Hel", 1)
        made.worker.die()
        await anyio.sleep(6)
        assert connection.body.endswith(messages.MessageRenderer.keep_alive)
        await connection.leave()


async def test_a_stream_is_resumed_after_any_of_its_events() -> None:
    async with served() as made:
        first = made.post(PATH, STREAM | {"resume_s": 60})
        (stream,) = await made.placed()
        await made.token(stream, "Hel", 1)
        await made.token(stream, "lo", 2)
        await first.leave()
        made.worker.finish(stream, "!", usage=Usage(3, 3))
        stream_id = first.headers["x-stream-id"]
        whole = await made.clients.ask("GET", f"/v1/streams/{stream_id}")
        assert whole.events[: len(first.events)] == first.events
        assert whole.headers["content-type"] == "text/event-stream"
        for number, event in enumerate(whole.events, 1):
            assert event.startswith(f"id: {stream_id}-{number}\n".encode())
            rest = await made.clients.ask("GET", f"/v1/streams/{stream_id}", last_event_id=f"{stream_id}-{number}")
            assert (rest.status, rest.events) == (200 if rest.events else 204, whole.events[number:])
        again = await made.clients.ask("POST", PATH, STREAM, last_event_id=f"{stream_id}-2")
        assert again.events == whole.events[2:]
    assert text(whole) == "Hello!"


async def test_a_connection_that_loses_its_stream_gets_an_error_in_the_dialect_of_the_stream() -> None:
    async with served() as made:
        first = made.post(PATH, STREAM | {"resume_s": 60})
        (stream,) = await made.placed()
        await made.token(stream, "one", 1)
        path = f"/v1/streams/{first.headers['x-stream-id']}"
        second = made.clients.open("GET", path)
        await first.ended.wait()
        await second.until(len(first.events) - 1)
        deleted = await made.clients.ask("DELETE", path)
        await second.ended.wait()
    assert deleted.status == 204
    texts = [events(connection)[-1] for connection in (first, second)]
    assert [(name, data["error"]["message"]) for name, data in texts] == [
        ("error", "another connection picked this stream up"),
        ("error", "the stream was cancelled"),
    ]


@pytest.mark.parametrize("begun", [False, True], ids=["before the first token", "in the stream"])
async def test_a_failure(begun: bool) -> None:
    async with served() as made:
        connection = made.post(PATH, STREAM)
        (stream,) = await made.placed()
        if begun:
            await made.token(stream, "Hel", 1)
        made.worker.fail(stream, ErrorCode.CONTEXT, "too long", "messages")
        await connection.ended.wait()
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    if begun:
        assert (connection.status, events(connection)[-1]) == (200, ("error", error))
    else:
        assert (connection.status, json.loads(connection.body)) == (400, error)


@pytest.mark.parametrize(
    ("method", "path", "body", "settings", "status", "kind"),
    [
        ("POST", PATH, BODY | {"model": "huge"}, {}, 404, "not_found_error"),
        ("POST", PATH, {}, {}, 400, "invalid_request_error"),
        ("POST", PATH, BODY, {"api_key": "secret"}, 401, "authentication_error"),
        ("POST", PATH, BODY, {"max_body_bytes": 10}, 413, "api_error"),
        ("GET", PATH, None, {}, 405, "api_error"),
        ("POST", f"{PATH}/nothing", BODY, {}, 404, "not_found_error"),
    ],
    ids=["model", "field", "key", "body", "method", "path"],
)
async def test_a_refusal(method: str, path: str, body: Any, settings: dict[str, Any], status: int, kind: str) -> None:
    async with served(**settings) as made:
        answer = await made.clients.ask(method, path, body)
    assert (answer.status, json.loads(answer.body)["error"]["type"]) == (status, kind)


async def test_a_dialect_may_have_a_status_of_its_own() -> None:
    async with served(max_streams_per_worker=1, max_waiting_streams=0, max_choices=1, retry_after_s=7) as made:
        first = made.post(PATH, STREAM)
        await made.placed()
        refused = await made.clients.ask("POST", PATH, BODY)
        openai = await made.clients.ask("POST", "/v1/chat/completions", BODY)
        await first.leave()
    assert (refused.status, refused.headers["retry-after"], refused.error["type"]) == (529, "7", "overloaded_error")
    assert (openai.status, openai.headers["retry-after"], openai.error["type"]) == (429, "7", "rate_limit_error")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (PATH, {"x_api_key": "secret"}, 404),
        (PATH, {"authorization": "Bearer secret"}, 404),
        (PATH, {"x_api_key": "wrong"}, 401),
        (PATH, {"x_api_key": "secret", "authorization": "Bearer wrong"}, 401),
        ("/v1/chat/completions", {"x_api_key": "secret"}, 401),
    ],
)
async def test_the_key_may_be_in_the_header_of_the_dialect(path: str, headers: dict[str, str], status: int) -> None:
    async with served(api_key="secret") as made:
        answer = await made.clients.ask("POST", path, BODY | {"model": "huge"}, **headers)
    assert answer.status == status


async def test_a_stream_is_resumed_and_cancelled_with_the_key_in_the_header_of_its_dialect() -> None:
    async with served(api_key="secret") as made:
        first = made.clients.open("POST", PATH, STREAM | {"resume_s": 60}, x_api_key="secret")
        (stream,) = await made.placed()
        await made.token(stream, "Hel", 1)
        await first.leave()
        made.worker.finish(stream, "lo", usage=Usage(3, 2))
        path = f"/v1/streams/{first.headers['x-stream-id']}"
        assert (await made.clients.ask("GET", path)).status == 401
        assert (await made.clients.ask("GET", path, x_api_key="wrong")).status == 401
        rest = await made.clients.ask("GET", path, x_api_key="secret")
        deleted = await made.clients.ask("DELETE", path, x_api_key="secret")
    assert (rest.status, text(rest), deleted.status) == (200, "Hello", 204)


async def test_paths_of_no_dialect_are_answered_as_openai_does() -> None:
    async with served() as made:
        unknown = await made.clients.ask("GET", "/v1/messagesx")
    assert unknown.error["code"] == "not_found"
    assert unknown.error["message"].endswith("did you mean /v1/messages?")


def test_it_shares_no_code_with_openai() -> None:
    tree = ast.parse(Path(messages.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in imported if module and module.startswith("gateway.openai")]


class LineEvents:
    """Implements `gateway.streaming.dialect.EventRenderer` as lines of JSON."""

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        return [b'{"text":"%s"}\n' % delta.text.encode() for delta in deltas if isinstance(delta, TextDelta)]

    def end(self, counts: TokenCounts, *, continued: bool) -> list[bytes]:
        return [b'{"done":%d}\n' % counts.completion]

    def error(self, error: RequestError) -> list[bytes]:
        return [b'{"error":"%s"}\n' % error.text.encode()]


class LineRenderer(MessageRenderer):
    content_type = b"application/x-ndjson"
    keep_alive = b""

    def events(self, head: AnswerHead) -> EventRenderer:
        return LineEvents()


async def test_a_format_without_event_ids_is_resumed_by_number() -> None:
    lines = Dialect(DIALECT.conventions, {"/lines": lambda raw: Decoded(messages.decode(raw).request, LineRenderer())})
    async with site(dialects=[lines]) as made:
        first = made.post("/lines", STREAM | {"resume_s": 60})
        (stream,) = await made.placed()
        await made.token(stream, "Hel", 1)
        await made.token(stream, "lo", 2)
        await first.leave()
        made.worker.finish(stream, "!", usage=Usage(3, 3))
        rest = await made.clients.ask("GET", f"/v1/streams/{first.headers['x-stream-id']}", query="starting_after=1")
    assert first.body == b'{"text":"Hel"}\n{"text":"lo"}\n'
    assert (rest.headers["content-type"], rest.body) == (
        "application/x-ndjson",
        b'{"text":"lo"}\n{"text":"!"}\n{"done":3}\n',
    )
