"""Large whole answers are sent in pieces: the real app without sockets, in virtual time."""

import json
from typing import Any

import anyio
import pytest

from gateway.streaming.pieces import PIECE_BYTES, joined
from protocol.events import Delta, Logprobs, Step, TokenLogprob
from tests.gateway.harness.asgi import Connection
from tests.gateway.harness.transcripts import Site, site
from tests.gateway.harness.virtual import BACKEND

pytestmark = pytest.mark.anyio

LIKELY = TokenLogprob(1, -1.0, b"x")
BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 128, "logprobs": 20}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


class Pieces(Connection):
    """A client that notes the size of each piece."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.sizes: list[int] = []

    async def _receive_message(self, message: Any) -> None:
        await super()._receive_message(message)
        if message["type"] == "http.response.body":
            self.sizes.append(len(message["body"]))


async def answer(made: Site, tokens: int, choices: int = 1) -> Pieces:
    """The whole answer of choices with so many tokens each; its last step has been reported when this returns."""
    connection = Pieces(made.clients.app, "POST", "/v1/completions", BODY | {"n": choices})
    made.clients.start(connection)
    for stream in await made.placed(choices):
        report = Logprobs(LIKELY, tuple(TokenLogprob(token, -2.0, b"y%d" % token) for token in range(20)))
        made.worker.say(Step((Delta(stream, (1,) * tokens, "x" * tokens, (report,) * tokens),)))
        made.worker.finish(stream)
    return connection


async def test_a_small_answer_has_its_length() -> None:
    async with site() as made:
        connection = await answer(made, 4)
        await connection.ended.wait()
        assert connection.headers["content-length"] == str(len(connection.body))
        assert len(connection.sizes) == 1


async def test_a_large_answer_is_sent_in_pieces_without_its_length() -> None:
    async with site() as made:
        connection = await answer(made, 120, choices=6)
        await connection.ended.wait()
        assert connection.whole
        assert "content-length" not in connection.headers
        assert len(json.loads(connection.body)["choices"]) == 6
        assert len(connection.sizes) > 3
        assert max(connection.sizes) < 2 * PIECE_BYTES


async def test_others_are_served_between_pieces() -> None:
    async with site() as made:
        connection = await answer(made, 100, choices=4)
        await connection.started()
        other = await made.clients.ask("GET", "/health/live")
        assert other.status == 200
        assert not connection.ended.is_set()


async def test_a_client_that_takes_no_further_piece_is_dropped() -> None:
    async with site() as made:
        connection = await answer(made, 100, choices=4)
        await connection.started()
        connection.stalled = True
        await anyio.sleep(29)
        assert not connection.ended.is_set()
        await connection.ended.wait()
        assert not connection.whole
        assert made.router.answers.held == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("gone", [False, True], ids=["answered", "client-gone"])
async def test_the_memory_of_an_answer_is_given_back_when_it_ends(stream: bool, gone: bool) -> None:
    async with site() as made:
        connection = Pieces(made.clients.app, "POST", "/v1/completions", BODY | {"stream": stream})
        made.clients.start(connection)
        (placed,) = await made.placed(1)
        made.worker.say(Step((Delta(placed, (1,) * 100, "x" * 100),)))
        assert made.router.answers.held > 0
        if gone:
            await connection.leave()
        else:
            made.worker.finish(placed)
        await connection.ended.wait()
        assert made.router.answers.held == 0
        assert made.router.answers.count == 0, "an answer that is counted further is kept for ever"


async def test_an_answer_that_has_to_give_way_while_it_is_sent_is_broken_off() -> None:
    async with site(max_answer_bytes=2 << 20, max_total_answer_bytes=2 << 20) as made:
        connection = await answer(made, 128, choices=4)
        await connection.started()
        connection.stalled = True
        other = made.post("/v1/completions", BODY | {"n": 2, "stream": True})
        first, second = (await made.placed(6))[4:]
        report = Logprobs(LIKELY, (LIKELY,) * 20)
        for stream in (first, second):
            made.worker.say(Step((Delta(stream, (1,) * 100, "x", (report,) * 100),)))
        await connection.ended.wait()
        assert not connection.whole
        for stream in (first, second):
            made.worker.finish(stream)
        await other.ended.wait()
        assert other.events[-1].endswith(b"[DONE]")
        assert b"overloaded" not in other.body


def test_parts_are_joined_to_pieces() -> None:
    parts = [b"x" * (PIECE_BYTES - 1), b"", b"y", b"z", b"w" * 3 * PIECE_BYTES, b"end"]
    assert [len(piece) for piece in joined(parts)] == [PIECE_BYTES, 3 * PIECE_BYTES + 1, 3]
    assert b"".join(joined(parts)) == b"".join(parts)
    assert list(joined([b"a", b"b"])) == [b"ab"]
