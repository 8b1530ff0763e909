"""A renderer that raises: the client still gets an error, and the server the exception."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import structlog

from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.streaming.dialect import AnswerHead, AnswerRenderer, Decoded, Dialect, EventRenderer
from tests.gateway.dialects import messages
from tests.gateway.dialects.messages import MessageEvents, MessageRenderer
from tests.gateway.harness.asgi import Connection
from tests.gateway.harness.transcripts import site
from tests.gateway.harness.virtual import BACKEND

pytestmark = pytest.mark.anyio
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


class Broken(Exception):
    """A bug of a renderer."""


class BrokenEvents(MessageEvents):
    """Renders the first delta, and fails at the second."""

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        if self._begun:
            raise Broken
        return super().deltas(deltas)


class BrokenRenderer(MessageRenderer):
    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        raise Broken

    def events(self, head: AnswerHead) -> EventRenderer:
        return BrokenEvents(head)


class NoEvents(MessageRenderer):
    """Has no renderer of events."""

    def events(self, head: AnswerHead) -> EventRenderer:
        raise Broken


class NoErrors(MessageRenderer):
    """Fails at the second delta, and at the error that follows."""

    def events(self, head: AnswerHead) -> EventRenderer:
        class Events(BrokenEvents):
            def error(self, error: RequestError) -> list[bytes]:
                raise Broken

        return Events(head)


async def failing(*texts: str, renderer: AnswerRenderer | None = None, **fields: Any) -> Connection:
    """An exchange with these deltas, whose exception the server gets."""
    given = renderer or BrokenRenderer()
    dialect = Dialect(
        messages.DIALECT.conventions, {"/broken": lambda raw: Decoded(messages.decode(raw).request, given)}
    )
    connections: list[Connection] = []
    raised = False
    try:
        async with site(dialects=[dialect]) as made:
            connections.append(made.post("/broken", BODY | fields))
            (stream,) = await made.placed()
            for text in texts:
                await made.token(stream, text, 1)
            made.worker.finish(stream)
            await connections[0].ended.wait()
    except* Broken:
        raised = True
    assert raised
    return connections[0]


async def test_a_whole_answer_is_an_error_of_the_gateway() -> None:
    connection = await failing("a")
    assert (connection.status, connection.whole) == (500, True)
    assert connection.error == {"type": "api_error", "message": "the gateway failed"}


async def test_a_stream_ends_with_an_error_of_the_gateway() -> None:
    connection = await failing("a", "b", stream=True)
    assert (connection.status, connection.whole) == (200, True)
    assert b"event: error\n" in connection.events[-1]
    assert b"the gateway failed" in connection.events[-1]


@pytest.mark.parametrize("renderer", [NoEvents(), NoErrors()], ids=["no events", "no errors"])
async def test_a_stream_whose_renderer_fails_twice_ends_with_an_error_of_the_dialect(renderer: AnswerRenderer) -> None:
    with structlog.testing.capture_logs() as logs:
        connection = await failing("a", "b", renderer=renderer, stream=True)
    assert (connection.status, connection.whole) == (200, True)
    assert b"event: error\n" in connection.events[-1]
    assert b"the gateway failed" in connection.events[-1]
    assert [line["event"] for line in logs].count("error_not_rendered") == 1
