"""Addresses, chunked bodies and clients that disconnect."""

import asyncio

import pytest

from cli.chaos.http_client import Disconnect, InvalidAddress, ServerAddress, send
from cli.chaos.transcript import Transcript
from tests.cli.chaos.interrupted_server import CHUNK, HEAD, REQUEST, USAGE, interrupted_server


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x;x\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.anyio
@pytest.mark.parametrize("size", [7, 10_000])
@pytest.mark.parametrize("truncated", [False, True])
async def test_a_chunked_body_is_put_together_wherever_it_was_split(size: int, truncated: bool) -> None:
    body = chunked(CHUNK % b"null" + CHUNK % b'"stop"' + USAGE + b"data: [DONE]\n\n", size) + b"0\r\n\r\n"
    head = HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body[: len(body) // 2 if truncated else None])
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        transcript = Transcript()
        await send(ServerAddress("127.0.0.1", listening.sockets[0].getsockname()[1]), REQUEST, transcript)
    assert bool(transcript.violation(1)) is truncated
    assert transcript.tokens == (2 if not truncated else 1 if size == 7 else 0)


@pytest.mark.anyio
@pytest.mark.parametrize("abruptly", [True, False])
async def test_a_client_leaves_after_its_chunks(abruptly: bool) -> None:
    async with interrupted_server() as server:
        transcript = Transcript()
        assert not await send(server.address, REQUEST, transcript, leave=Disconnect(1, 60.0, abruptly))
        assert transcript.tokens == 1
        await server.client_left.wait()


@pytest.mark.anyio
async def test_a_client_leaves_after_its_time() -> None:
    async with interrupted_server() as server:
        assert not await send(server.address, REQUEST, Transcript(), leave=Disconnect(99, 0.05, False))
        await server.client_left.wait()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", ServerAddress("127.0.0.1", 8000)),
        ("https://example.org/x", ServerAddress("example.org", 443, tls=True)),
    ],
)
def test_an_address_is_parsed_from_a_url(url: str, address: ServerAddress) -> None:
    assert ServerAddress.of(url) == address


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x:99999"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidAddress, match=r"is not a URL|Port"):
        ServerAddress.of(url)
