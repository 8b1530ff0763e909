"""A streamed answer over connections that break: every event arrives once."""

import json
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from cli.client import event_stream
from cli.client.event_stream import EventStream
from cli.client.model_client import ModelRequest, Summary
from cli.client.remote import RemoteClient
from cli.config.errors import CommandFailed
from protocol.request import Limits, Sampling
from tests.gateway.faults.cutting import breaking_way
from tests.gateway.harness.real import launch, real_gateway

BODY = {"stream": True, "stream_options": {"include_usage": True}}


class Broken(httpx.SyncByteStream):
    """Yields its parts and then breaks the connection."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        raise httpx.ReadError("connection reset")


def event(number: int, data: object) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\nid: x-{number}\n\n".encode()


KEPT = {"x-stream-id": "x"}
DONE = event(9, "[DONE]")
DELETED = httpx.Response(204)


class Script:
    """Answers each request with the next of its responses."""

    def __init__(self, *responses: httpx.Response | httpx.HTTPError) -> None:
        self._responses = list(responses)
        self.asked: list[tuple[str, str, str]] = []
        self.pauses: list[float] = []
        self.bodies: list[Any] = []

    def respond(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.path, request.headers.get("last-event-id", "")))
        if request.content:
            self.bodies.append(json.loads(request.content))
        response = self._responses.pop(0)
        if isinstance(response, httpx.HTTPError):
            raise response
        return response

    def chunks(self) -> Any:
        client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(self.respond))
        return EventStream(client, self.pauses.append).chunks("/v1/completions", BODY)


def test_it_resumes_after_the_last_complete_event() -> None:
    first, second = event(1, {"n": 1}), event(2, {"n": 2})
    script = Script(
        httpx.Response(200, headers=KEPT, stream=Broken(first, second[:9])),
        httpx.ConnectError("refused"),
        httpx.Response(503, json={"error": {"message": "later"}}),
        httpx.Response(409, headers={"retry-after": "1"}, json={"error": {"message": "elsewhere"}}),
        httpx.Response(200, headers=KEPT, stream=Broken(second)),
        httpx.Response(200, headers=KEPT, content=event(3, {"n": 3}) + DONE),
        DELETED,
    )
    assert [chunk["n"] for chunk in script.chunks()] == [1, 2, 3]
    get = ("GET", "/v1/streams/x")
    delete = ("DELETE", "/v1/streams/x", "")
    assert script.asked == [("POST", "/v1/completions", ""), *[(*get, "x-1")] * 4, (*get, "x-2"), delete]
    assert script.pauses == [0.1, 0.2, 0.4, 0.1], "a connection that brought something begins anew"


def test_a_stream_that_lacked_only_its_end_is_complete() -> None:
    broken = httpx.Response(200, headers=KEPT, stream=Broken(event(1, {"n": 1})))
    assert [chunk["n"] for chunk in Script(broken, httpx.Response(204), DELETED).chunks()] == [1]


def test_a_stream_that_broke_before_its_first_event_starts_again() -> None:
    whole = httpx.Response(200, content=event(1, {"n": 1}) + DONE)
    script = Script(httpx.Response(200, headers=KEPT, stream=Broken()), whole, DELETED)
    assert [chunk["n"] for chunk in script.chunks()] == [1]
    assert script.asked[1] == ("GET", "/v1/streams/x", "")


@pytest.mark.parametrize("status", [400, 429])
def test_a_server_without_resumable_streams_gets_the_request_again(status: int) -> None:
    refusal = httpx.Response(status, json={"error": {"message": "stream_options.resume_s: no"}})
    script = Script(refusal, httpx.Response(200, content=event(1, {"n": 1}) + DONE))
    assert [chunk["n"] for chunk in script.chunks()] == [1]
    assert [body["stream_options"] for body in script.bodies] == [
        {"include_usage": True, "resume_s": 60.0},
        {"include_usage": True},
    ]


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (httpx.Response(410, json={"error": {"message": "no longer kept"}}), r"refused \(410\): no longer kept"),
        (httpx.Response(200, content=event(2, {"error": {"message": "lost"}})), "server says: lost"),
    ],
)
def test_a_stream_that_cannot_be_resumed_is_a_command_error(last: httpx.Response, sentence: str) -> None:
    broken = httpx.Response(200, headers=KEPT, stream=Broken(event(1, {"n": 1})))
    with pytest.raises(CommandFailed, match=sentence):
        list(Script(broken, last, httpx.Response(204)).chunks())


@pytest.mark.parametrize(
    ("unreachable", "sentence"),
    [
        (httpx.ConnectError("refused"), "went away: refused"),
        (httpx.Response(503, json={"error": {"message": "later"}}), r"refused \(503\): later"),
    ],
)
def test_a_client_gives_up_a_server_that_does_not_return(
    unreachable: httpx.Response | httpx.HTTPError, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "RESUME_S", 0.0)
    broken = httpx.Response(200, headers=KEPT, stream=Broken(event(1, {"n": 1})))
    with pytest.raises(CommandFailed, match=sentence):
        list(Script(broken, unreachable, httpx.Response(204)).chunks())


def test_closing_the_stream_cancels_it_on_the_server() -> None:
    script = Script(httpx.Response(200, headers=KEPT, content=event(1, {"n": 1}) + DONE), httpx.Response(204))
    chunks = script.chunks()
    assert next(chunks) == {"n": 1}
    chunks.close()
    assert script.asked[-1] == ("DELETE", "/v1/streams/x", "")


@pytest.mark.anyio
async def test_a_broken_connection_does_not_change_the_answer() -> None:
    """A proxy in front of a real gateway breaks the connection twice."""
    ask = ModelRequest(Sampling(seed=3, temperature=1.0), Limits(max_tokens=60, ignore_eos=True), prompt="Hello")

    def answer(port: int) -> tuple[str, Summary]:
        answers = RemoteClient.connect(f"http://127.0.0.1:{port}")
        *pieces, summary = answers.stream(ask)
        answers.close()
        assert isinstance(summary, Summary)
        return "".join(map(str, pieces)), summary

    async with real_gateway(launch("w0", rate=100.0)) as real:
        expected, counts = await anyio.to_thread.run_sync(answer, real.port)
        async with breaking_way(real.port, b"-3\n", cuts=2) as way:
            got, summary = await anyio.to_thread.run_sync(answer, way.port)
        assert way.cuts == 0
    assert got == expected
    assert (summary.completion_tokens, summary.reason) == (counts.completion_tokens, counts.reason)
    assert summary.completion_tokens == 60
