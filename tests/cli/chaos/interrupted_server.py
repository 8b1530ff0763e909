"""A small HTTP server whose answers stop after the first chunk until the test resumes them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from cli.chaos.http_client import ClientRequest, ServerAddress

REQUEST = ClientRequest("/v1/completions", {"stream": True})
CHUNK = b'data: {"id": "a", "choices": [{"index": 0, "text": "x", "token_ids": [1], "finish_reason": %s}]}\r\n\r\n'
USAGE = b'data: {"id": "a", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}\r\n\r\n'
HEAD = b"HTTP/1.1 200 OK\r\nX-Request-ID: r7\r\nContent-Type: text/event-stream\r\n\r\n"


@dataclass
class InterruptedServer:
    """Answers each connection with one chunk, waits for `resume` or the client's end, and sends the rest."""

    address: ServerAddress
    resume: asyncio.Event
    heads: list[bytes]
    """The head of each request."""
    client_left: asyncio.Event


@asynccontextmanager
async def interrupted_server() -> AsyncIterator[InterruptedServer]:
    server = InterruptedServer(ServerAddress("127.0.0.1", 0), asyncio.Event(), [], asyncio.Event())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(HEAD + CHUNK % b"null")
        while not server.resume.is_set():
            try:
                await asyncio.wait_for(reader.read(1 << 16), 0.01)
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
            if reader.at_eof():
                break
        if not server.resume.is_set():
            server.client_left.set()
        writer.write(CHUNK % b'"stop"' + USAGE + b"data: [DONE]\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        server.address = replace(server.address, port=listening.sockets[0].getsockname()[1], key="secret")
        yield server
