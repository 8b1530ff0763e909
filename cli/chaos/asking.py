"""Requests over HTTP as a client sends them, down to how it leaves: asyncio streams, for their times to be true.

A pooled client would hide when bytes came, and keep connections that the server must be seen to give back.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from cli.chaos.heard import Heard
from cli.client.event_parser import EventParser

MAX_LINE = 1 << 24
"""Bytes of one line of a head, and of one chunk of a body."""


class AddressRefused(ValueError):
    """Raised for a URL that is none of a server."""


@dataclass(frozen=True)
class Server:
    """Where requests go. `key` is sent as a bearer token."""

    host: str
    port: int
    tls: bool = False
    key: str = ""

    @classmethod
    def of(cls, url: str, key: str = "") -> Self:
        """Raises `AddressRefused`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise AddressRefused(f"{url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AddressRefused(f"{url} is not http://HOST:PORT")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, key)


@dataclass(frozen=True)
class Request:
    """One request. Two of the same path and body are the same."""

    path: str
    body: Mapping[str, Any]

    @property
    def streaming(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def choices(self) -> int:
        """Sequences that its answer has."""
        return int(self.body.get("n", 1))


@dataclass(frozen=True)
class Leaving:
    """A client that does not wait for the end: it leaves after so many chunks, or so many seconds."""

    chunks: int
    seconds: float
    abruptly: bool
    """Its connection is reset, not closed."""


async def ask(
    server: Server,
    request: Request,
    heard: Heard,
    *,
    sent: Callable[[], None] = lambda: None,
    leave: Leaving | None = None,
) -> bool:
    """Send a request and put all that comes into `heard`, up to the end of the connection. False when it left before.

    Raises `OSError` when the connection cannot be made or breaks, and `asyncio.LimitOverrunError` or `ValueError` for
    what is not HTTP.
    """
    context = ssl.create_default_context() if server.tls else None
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=MAX_LINE, ssl=context)
    stayed = False
    try:
        writer.write(_encode(server, request))
        await writer.drain()
        sent()
        async with asyncio.timeout(None if leave is None else leave.seconds):
            stayed = await _read(reader, request, heard, None if leave is None else leave.chunks)
    except TimeoutError:
        pass  # it has waited long enough
    finally:
        if leave is not None and leave.abruptly:
            writer.transport.abort()
        writer.close()
    return stayed


def _encode(server: Server, request: Request) -> bytes:
    payload = msgspec.json.encode(request.body)
    key = f"Authorization: Bearer {server.key}\r\n" if server.key else ""
    return (
        f"POST {request.path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nConnection: close\r\n{key}"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    ).encode() + payload


async def _read(reader: asyncio.StreamReader, request: Request, heard: Heard, most: int | None) -> bool:
    """Read to the end of the connection. False when `most` chunks had come before."""
    line = await reader.readline()
    heard.status = int(line.split()[1]) if line else 0
    events = chunked = False
    while line := (await reader.readline()).strip():
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-type":
                events = value.strip().startswith(b"text/event-stream")
            case b"transfer-encoding":
                chunked = value.strip().lower() == b"chunked"
            case b"x-request-id":
                heard.request = value.strip().decode("latin-1")
    parts = _chunks(reader) if chunked else _parts(reader)
    if not events:
        if body := b"".join([part async for part in parts]):
            heard.whole(body)
        return True
    parser = EventParser()
    async for part in parts:
        for event in parser.feed(part):
            heard.event(event.data)
            if most is not None and len(heard.stamps) >= most:
                return False
    return True


async def _parts(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body that ends with its connection."""
    while part := await reader.read(MAX_LINE):
        yield part


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body in chunks (RFC 9112, 7.1), without trailers; of one that is cut, those that came whole. Raises
    `ValueError` for what is none."""
    while line := await reader.readline():
        size = int(line.partition(b";")[0], 16)
        if not size:
            return
        if size > MAX_LINE:
            raise ValueError(f"a chunk of {size} bytes")
        try:
            chunk = await reader.readexactly(size + len(b"\r\n"))
        except asyncio.IncompleteReadError:
            return
        yield chunk[:size]
