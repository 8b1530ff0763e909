"""Requests for streams that another gateway may keep: what reaches it is made anew, and nothing hostile is asked."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.app import create_app
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Dialect
from gateway.streaming.peer import PeerUnreachable
from tests.gateway.dialects.messages import DIALECT
from tests.gateway.harness.asgi import Clients, clients

pytestmark = pytest.mark.anyio

ID = "chatcmpl-0123456789abcdef01234567"


class Kept:
    """An answer."""

    status = 200
    retry_after = ""
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, anywhere: bool) -> None:
        self.anywhere = anywhere

    async def body(self) -> AsyncIterator[bytes]:
        yield b"data: [DONE]\n\n"


class Other:
    """Another gateway, which has every stream, or is gone."""

    pid = 1

    def __init__(self, *, gone: bool = False, anywhere: bool = False) -> None:
        self.anywhere = anywhere
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self._gone = gone

    @asynccontextmanager
    async def ask(self, method: str, target: str, headers: dict[str, str]) -> AsyncIterator[Kept]:
        self.asked.append((method, target, {name: headers[name] for name in headers if name != "x-request-id"}))
        if self._gone:
            raise PeerUnreachable("it has ended")
        yield Kept(self.anywhere)


@asynccontextmanager
async def successor(other: Other, dialects: Sequence[Dialect] = ()) -> AsyncIterator[Clients]:
    chosen = GatewaySettings()
    router = Router(chosen)
    async with clients(create_app(router, chosen, peer=other, dialects=dialects)) as opened:
        yield opened


async def test_it_is_asked_in_words_of_our_own() -> None:
    other = Other()
    async with successor(other) as opened:
        for query, headers in (
            ("", {}),
            ("starting_after=17", {"authorization": "Bearer k"}),
            ("starting_after=17", {"last_event_id": f"{ID}-0018", "cookie": "c"}),
        ):
            answer = await opened.ask("GET", f"/v1/streams/{ID}", query=query, **headers)
            assert (answer.status, answer.events) == (200, [b"data: [DONE]"])
        await opened.ask("DELETE", f"/v1/streams/{ID}", query="what=ever")
        await opened.ask("POST", "/v1/completions", {}, last_event_id=f"{ID}-1")
    assert other.asked == [
        ("GET", f"/v1/streams/{ID}?starting_after=0", {}),
        ("GET", f"/v1/streams/{ID}?starting_after=17", {"authorization": "Bearer k"}),
        ("GET", f"/v1/streams/{ID}", {"Last-Event-ID": f"{ID}-18"}),
        ("DELETE", f"/v1/streams/{ID}", {}),
        ("GET", f"/v1/streams/{ID}", {"Last-Event-ID": f"{ID}-1"}),
    ]


@pytest.mark.parametrize("gateways", ["any", "one"])
async def test_the_answer_says_where_the_stream_can_be_resumed(gateways: str) -> None:
    async with successor(Other(anywhere=gateways == "any")) as opened:
        answer = await opened.ask("GET", f"/v1/streams/{ID}")
    assert answer.headers["x-stream-gateways"] == gateways


async def test_a_key_in_the_header_of_a_dialect_is_sent_as_a_bearer_token() -> None:
    other = Other()
    async with successor(other, dialects=[DIALECT]) as opened:
        await opened.ask("GET", f"/v1/streams/{ID}", x_api_key="k")
    assert other.asked == [("GET", f"/v1/streams/{ID}?starting_after=0", {"authorization": "Bearer k"})]


@pytest.mark.parametrize(
    "stream_id", ["unknown", "../admin/gateway", "\x01", "é", "x" * 30_000, ";" * 30_000, f"{ID}?"]
)
@pytest.mark.parametrize("way", ["path", "cancel", "header"])
async def test_what_is_no_id_is_not_passed_on(way: str, stream_id: str) -> None:
    other = Other()
    async with successor(other) as opened:
        if way == "header":
            answer = await opened.ask("POST", "/v1/completions", {}, last_event_id=f"{stream_id}-1")
        else:
            answer = await opened.ask("DELETE" if way == "cancel" else "GET", f"/v1/streams/{stream_id}")
    assert (answer.status, answer.error["code"]) == (404, "stream_not_found")
    assert other.asked == []


async def test_one_that_is_gone_has_no_streams() -> None:
    other = Other(gone=True)
    async with successor(other) as opened:
        with anyio.fail_after(20):
            answer = await opened.ask("GET", f"/v1/streams/{ID}")
    assert (answer.status, len(other.asked)) == (404, 1)
