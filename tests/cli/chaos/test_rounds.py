"""Rounds against a small HTTP server, and how a round is held against the undisturbed one."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from cli.chaos.asking import AddressRefused, Leaving, Request, Server, ask
from cli.chaos.heard import Choice, Heard
from cli.chaos.rounds import Noticed, Strike, compare, percentile, play

pytestmark = pytest.mark.anyio

ONE = Request("/v1/completions", {"stream": True})
CHUNK = b'data: {"id": "a", "choices": [{"index": 0, "text": "x", "token_ids": [1], "finish_reason": %s}]}\r\n\r\n'
USAGE = b'data: {"id": "a", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}\r\n\r\n'
EVENTS = b"HTTP/1.1 200 OK\r\nX-Request-ID: r7\r\nContent-Type: text/event-stream\r\n\r\n"


@dataclasses.dataclass
class Small:
    """Answers each connection with one chunk, waits until it may go on, and ends."""

    server: Server
    go_on: asyncio.Event
    heads: list[bytes]
    left: asyncio.Event


@asynccontextmanager
async def small(first: bytes = EVENTS) -> AsyncIterator[Small]:
    found = Small(Server("127.0.0.1", 0), asyncio.Event(), [], asyncio.Event())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(first + CHUNK % b"null")
        while not found.go_on.is_set():
            try:
                await asyncio.wait_for(reader.read(1 << 16), 0.01)
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
            if reader.at_eof():
                break
        if not found.go_on.is_set():
            found.left.set()
        writer.write(CHUNK % b'"stop"' + USAGE + b"data: [DONE]\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        found.server = replace(found.server, port=listening.sockets[0].getsockname()[1], key="secret")
        yield found


async def test_a_round_strikes_when_all_were_sent_and_one_has_its_tokens() -> None:
    async with small() as found:
        struck: list[int] = []

        def act() -> None:
            struck.append(len(found.heads))
            found.go_on.set()

        streams, at = await play(found.server, [ONE] * 3, Strike(1, act))
        assert at is not None
        assert struck == [3]
        assert [stream.breach(1) for stream in streams] == ["", "", ""]
        assert [stream.request for stream in streams] == ["r7"] * 3
        assert all(stream.stamps[0] <= at or stream.stamps[-1] > at for stream in streams)
        assert b"Authorization: Bearer secret" in found.heads[0]


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x;x\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize("size", [7, 10_000])
@pytest.mark.parametrize("cut", [False, True])
async def test_chunks_are_put_together_wherever_they_were_cut(size: int, cut: bool) -> None:
    body = chunked(CHUNK % b"null" + CHUNK % b'"stop"' + USAGE + b"data: [DONE]\n\n", size) + b"0\r\n\r\n"
    head = EVENTS.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body[: len(body) // 2 if cut else None])
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        heard = Heard()
        await ask(Server("127.0.0.1", listening.sockets[0].getsockname()[1]), ONE, heard)
    assert bool(heard.breach(1)) is cut
    assert heard.tokens == (2 if not cut else 1 if size == 7 else 0)


@pytest.mark.parametrize("abruptly", [True, False])
async def test_a_client_leaves_after_its_chunks(abruptly: bool) -> None:
    async with small() as found:
        heard = Heard()
        assert not await ask(found.server, ONE, heard, leave=Leaving(1, 60.0, abruptly))
        assert heard.tokens == 1
        await found.left.wait()


async def test_a_client_leaves_after_its_time() -> None:
    async with small() as found:
        heard = Heard()
        assert not await ask(found.server, ONE, heard, leave=Leaving(99, 0.05, False))
        await found.left.wait()


async def test_a_server_that_is_not_there_is_a_failure_of_each_stream() -> None:
    async with small() as found:
        gone = replace(found.server, port=1)
    streams, _ = await play(gone, [ONE] * 2, Strike(5, lambda: None))
    assert [stream.errors[0][0] for stream in streams] == ["connection", "connection"]


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://127.0.0.1:8000", Server("127.0.0.1", 8000)),
        ("https://example.org/x", Server("example.org", 443, tls=True)),
    ],
)
def test_an_address(url: str, server: Server) -> None:
    assert Server.of(url) == server


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x:99999"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused, match=r"is not http|Port"):
        Server.of(url)


def stream(choice: Choice | None = None, **changes: Any) -> Heard:
    whole = Heard(200, {0: choice or Choice("ab", [1, 2], ["stop"])}, {"a"}, [(3, 2)], ends=1, stamps=[0.0, 1.0])
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("other", "counts"),
    [
        pytest.param(stream(), (0, 0, 0), id="same"),
        pytest.param(stream(ends=0), (1, 0, 0), id="no end"),
        pytest.param(stream(errors=[("x", "y")]), (1, 0, 0), id="an error"),
        pytest.param(stream(Choice("ab", [1, 1, 2], ["stop"])), (0, 1, 0), id="a token twice"),
        pytest.param(stream(Choice("ab", [1, 3], ["stop"])), (0, 0, 1), id="another token"),
        pytest.param(stream(Choice("ab", [1], ["stop"])), (0, 0, 1), id="a token less"),
        pytest.param(stream(Choice("ac", [1, 2], ["stop"])), (0, 0, 1), id="another character"),
        pytest.param(stream(usages=[(3, 1)]), (0, 0, 1), id="another count"),
    ],
)
def test_what_is_noticed(other: Heard, counts: tuple[int, int, int]) -> None:
    noticed = compare([ONE, ONE], [stream(), other], 0.5, [stream(), stream()])
    assert (noticed.failed, noticed.duplicated, noticed.altered) == counts
    assert noticed.bad == sum(counts)
    assert bool(noticed.problem) == bool(counts[0])


def test_a_gap_is_longer_than_any_without_a_fault() -> None:
    cut, smooth, late = [0.0, 0.1, 2.1], [0.0, 0.9], [5.0, 9.0]
    streams = [stream(stamps=stamps) for stamps in (cut, smooth, late)]
    noticed = compare([ONE] * 3, streams, 0.5, [stream()] * 3)
    assert noticed.gaps_s == (2.0,)
    assert noticed.undisturbed_s == 1.0


def test_rounds_add_up() -> None:
    both = Noticed(1, 0, 0, 0, (0.1,), 0.5) + Noticed(2, 1, 1, 1, (0.2,), 0.3, "no")
    assert both == Noticed(3, 1, 1, 1, (0.1, 0.2), 0.5, "no")


def test_percentiles() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([], 0.5)) == (51.0, 100.0, None)
