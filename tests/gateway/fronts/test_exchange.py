"""The windows between a front and the gateway, and the ends of an exchange, without a link."""

import asyncio
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Message

from gateway.fronts.exchange import RelayedExchange
from gateway.fronts.frames import (
    BODY_WINDOW,
    PART_BYTES,
    RESPONSE_WINDOW,
    BodyPart,
    BodyTaken,
    ClientLeft,
    ExchangeEnded,
    ExchangeOpened,
    ResponseDelivered,
    ResponsePart,
    ResponseStarted,
    ResponseTaken,
)
from gateway.fronts.inbox import GATEWAY_FRAMES, FrameInbox
from gateway.fronts.relay import Relay, RelayedRequest

pytestmark = pytest.mark.anyio

OPENED = ExchangeOpened(7, "POST", "/p", b"/p", b"", [], "1.1", "http", None, None, False)
SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/p",
    "raw_path": b"/p",
    "query_string": b"",
    "headers": [],
    "http_version": "1.1",
    "scheme": "http",
    "client": None,
    "server": None,
}
START: Message = {"type": "http.response.start", "status": 200, "headers": []}


class Sent:
    """An outbox whose frames the test reads."""

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def put(self, frame: Any, size: int = 0) -> None:
        self.frames.append(frame)

    def bytes(self) -> int:
        return sum(len(frame.body) for frame in self.frames if isinstance(frame, ResponsePart | BodyPart))


def body(size: int, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": b"x" * size, "more_body": more}


async def turns() -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def test_an_app_waits_while_a_client_takes_nothing() -> None:
    sent = Sent()
    exchange = RelayedExchange(OPENED, sent)  # type: ignore[arg-type]

    async def app() -> None:
        await exchange.send(START)
        for _ in range(1000):
            await exchange.send(body(1000))

    task = asyncio.ensure_future(app())
    await turns()
    assert RESPONSE_WINDOW <= sent.bytes() < RESPONSE_WINDOW + 1000
    exchange.taken(2000)
    await turns()
    assert RESPONSE_WINDOW + 2000 <= sent.bytes() < RESPONSE_WINDOW + 3000
    exchange.leave()
    await task
    assert sent.bytes() < RESPONSE_WINDOW + 3000, "nothing is sent to a client that has left"


async def test_a_large_piece_is_sent_in_parts_within_the_window() -> None:
    sent = Sent()
    exchange = RelayedExchange(OPENED, sent)  # type: ignore[arg-type]
    task = asyncio.ensure_future(exchange.send(body(10 * PART_BYTES + 1, more=False)))
    for _ in range(20):
        await turns()
        parts = [frame for frame in sent.frames if isinstance(frame, ResponsePart)]
        held = sum(len(frame.body) for frame in parts)
        assert held <= RESPONSE_WINDOW + PART_BYTES
        sent.frames.clear()
        exchange.taken(held)
        if parts and not parts[-1].more:
            break
    assert not task.done(), "the last byte was not delivered"
    exchange.delivered()
    await task
    assert (await exchange.receive())["type"] == "http.disconnect"


@pytest.mark.parametrize("parts", [[body(3)], [], [body(0)]], ids=["a part", "none", "empty"])
async def test_a_response_that_is_not_whole_is_ended(parts: list[Message]) -> None:
    sent = Sent()
    exchange = RelayedExchange(OPENED, sent)  # type: ignore[arg-type]
    for message in (START, *parts):
        await exchange.send(message)
    exchange.end()
    assert sent.frames[-1] == ExchangeEnded(7)


async def test_a_response_whose_client_stalls_at_its_end_is_ended() -> None:
    sent = Sent()
    exchange = RelayedExchange(OPENED, sent)  # type: ignore[arg-type]
    await exchange.send(START)
    with anyio.move_on_after(0) as stalled:  # as `HttpExchange` does after `client_stall_s`
        await exchange.send(body(3, more=False))
    assert stalled.cancelled_caught
    exchange.end()
    assert sent.frames[1:] == [ResponsePart(7, b"xxx", False), ExchangeEnded(7)]


async def test_a_response_that_is_delivered_is_not_ended() -> None:
    sent = Sent()
    exchange = RelayedExchange(OPENED, sent)  # type: ignore[arg-type]
    await exchange.send(START)
    task = asyncio.ensure_future(exchange.send(body(3, more=False)))
    await turns()
    exchange.delivered()
    await task
    exchange.end()
    assert sent.frames[1:] == [ResponsePart(7, b"xxx", False)]


async def test_a_body_is_read_to_its_end_before_the_client_counts_as_gone() -> None:
    sent = Sent()
    exchange = RelayedExchange(OPENED, sent)  # type: ignore[arg-type]
    exchange.add(BodyPart(7, b"ab", True))
    exchange.add(BodyPart(7, b"c", False))
    exchange.leave()
    found = [await exchange.receive() for _ in range(3)]
    assert [message.get("body") for message in found] == [b"ab", b"c", None]
    assert sent.frames == [BodyTaken(7, 2), BodyTaken(7, 1)]


async def test_a_front_sends_no_more_of_a_body_than_its_window() -> None:
    sent = Sent()
    request = RelayedRequest(7, sent)  # type: ignore[arg-type]

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * PART_BYTES, "more_body": True}

    task = asyncio.ensure_future(request.forward_body(receive))
    await turns()
    assert sent.bytes() == BODY_WINDOW
    request.read(1)
    await turns()
    assert sent.bytes() == BODY_WINDOW + PART_BYTES
    task.cancel()


async def test_a_large_piece_of_a_body_is_sent_in_parts() -> None:
    sent = Sent()
    request = RelayedRequest(7, sent)  # type: ignore[arg-type]
    pieces = [(2 * PART_BYTES + 1, True), (PART_BYTES, True), (0, False)]

    async def receive() -> Message:
        if not pieces:
            return {"type": "http.disconnect"}
        size, more = pieces.pop(0)
        return {"type": "http.request", "body": b"x" * size, "more_body": more}

    task = asyncio.ensure_future(request.forward_body(receive))
    await turns()
    request.read(3 * PART_BYTES + 1)
    await task
    parts = [(len(part.body), part.more) for part in sent.frames]
    assert parts == [(PART_BYTES, True), (PART_BYTES, True), (1, True), (PART_BYTES, True), (0, False)]


async def test_a_front_reports_what_the_connection_takes() -> None:
    sent = Sent()
    relay = Relay(sent)  # type: ignore[arg-type]
    given: list[Message] = []
    gate = anyio.Event()

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        given.append(message)
        if message["type"] == "http.response.body":
            await gate.wait()

    task = asyncio.ensure_future(relay(SCOPE, receive, send))
    await turns()
    number = sent.frames[0].exchange
    relay.take(ResponseStarted(number, 200, []))
    half = RESPONSE_WINDOW // 2
    relay.take(ResponsePart(number, b"x" * half, True))
    await turns()
    assert sent.frames[1:] == [], "the connection has taken nothing"
    relay.take(ResponsePart(number, b"y", True))
    relay.take(ResponsePart(number, b"z", False))
    gate.set()
    await task
    assert sent.frames[1:] == [ResponseTaken(number, half), ResponseDelivered(number)]
    assert [message.get("body") for message in given] == [None, b"x" * half, b"yz"]
    relay.take(ResponsePart(number, b"late", True))


async def test_a_response_that_is_broken_off_does_not_wait_for_its_client() -> None:
    sent = Sent()
    relay = Relay(sent)  # type: ignore[arg-type]

    async def wait(message: Message | None = None) -> Any:
        await anyio.sleep_forever()

    task = asyncio.ensure_future(relay(SCOPE, wait, wait))
    await turns()
    number = sent.frames[0].exchange
    relay.take(ResponsePart(number, b"x", True))
    await turns()
    relay.take(ResponsePart(number, b"y", True))
    await turns()
    assert not task.done(), "its client may take it yet"
    relay.take(ExchangeEnded(number))
    await task
    assert sent.frames[1:] == [ClientLeft(number)]


async def test_a_response_that_has_been_broken_off_does_not_begin_to_wait_for_its_client() -> None:
    sent = Sent()
    relay = Relay(sent)  # type: ignore[arg-type]

    async def wait(message: Message | None = None) -> Any:
        await anyio.sleep_forever()

    task = asyncio.ensure_future(relay(SCOPE, wait, wait))
    await turns()
    number = sent.frames[0].exchange
    relay.take(ResponsePart(number, b"x", True))
    relay.take(ExchangeEnded(number))
    await turns()
    assert task.done()
    assert sent.frames[1:] == [ClientLeft(number)]


async def test_a_head_counts_with_its_path_and_query() -> None:
    sizes: list[int] = []

    class Sizes(Sent):
        def put(self, frame: Any, size: int = 0) -> None:
            super().put(frame, size)
            sizes.append(size)

    sent = Sizes()
    relay = Relay(sent)  # type: ignore[arg-type]

    async def leave() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError

    path = "/" + "p" * 30_000
    scope = SCOPE | {"path": path, "raw_path": path.encode(), "query_string": b"q" * 1000, "headers": [(b"a", b"b")]}
    task = asyncio.ensure_future(relay(scope, leave, send))
    await turns()
    relay.take(ExchangeEnded(sent.frames[0].exchange))
    await task
    assert sizes[0] == 2 * 30_001 + 1000 + 2


async def test_a_client_that_leaves_ends_the_exchange_in_the_front() -> None:
    sent = Sent()
    relay = Relay(sent)  # type: ignore[arg-type]

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError

    task = asyncio.ensure_future(relay(SCOPE, receive, send))
    await turns()
    number = sent.frames[0].exchange
    assert sent.frames[1:] == [ClientLeft(number)]
    assert not task.done(), "the gateway's app has not ended: a reset stream counts until then"
    relay.take(ExchangeEnded(number))
    await task
    assert sent.frames[1:] == [ClientLeft(number)]


async def test_the_gateway_reports_the_end_of_an_app_whose_client_has_left() -> None:
    sent = Sent()
    exchange = RelayedExchange(OPENED, sent)  # type: ignore[arg-type]
    exchange.leave()
    exchange.end()
    assert sent.frames == [ExchangeEnded(7)]


async def test_one_turn_handles_a_bounded_number_of_frames() -> None:
    handled: list[int] = []
    inbox: FrameInbox[Any] = FrameInbox(lambda frame: handled.append(frame.exchange), GATEWAY_FRAMES)
    inbox.add([ClientLeft(number) for number in range(GATEWAY_FRAMES)])
    inbox.add([ClientLeft(number) for number in range(GATEWAY_FRAMES, 3 * GATEWAY_FRAMES)])
    assert len(handled) == GATEWAY_FRAMES
    counts = [len(handled)]
    for _ in range(4):
        await asyncio.sleep(0)
        counts.append(len(handled))
    assert max(after - before for before, after in pairwise(counts)) <= GATEWAY_FRAMES
    assert handled == list(range(3 * GATEWAY_FRAMES))
