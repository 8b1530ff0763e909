"""An HTTP client for one request per connection, on asyncio streams.

A pooled client would hide when bytes arrived, and keep connections open that the server is expected to release.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from cli.chaos.transcript import Transcript
from cli.client.event_parser import EventParser

MAX_LINE = 1 << 24
"""Maximum bytes of a header line, and of a chunk of a body."""


class InvalidAddress(ValueError):
    """Raised for a URL that is not a server's."""


@dataclass(frozen=True)
class ServerAddress:
    """The server that gets the requests. `key` is sent as a bearer token."""

    host: str
    port: int
    tls: bool = False
    key: str = ""

    @classmethod
    def of(cls, url: str, key: str = "") -> Self:
        """Parse a URL. Raises `InvalidAddress`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidAddress(f"{url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidAddress(f"{url} is not a URL like http://HOST:PORT")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, key)


@dataclass(frozen=True)
class ClientRequest:
    """One request. Requests with the same path and body are equal."""

    path: str
    body: Mapping[str, Any]

    @property
    def streaming(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def choices(self) -> int:
        """The number of choices that the answer must have."""
        return int(self.body.get("n", 1))


@dataclass(frozen=True)
class Disconnect:
    """The departure of a client before the end: after this many chunks or seconds, whichever is first."""

    chunks: int
    seconds: float
    abruptly: bool
    """Reset the connection instead of closing it."""


async def send(
    server: ServerAddress,
    request: ClientRequest,
    transcript: Transcript,
    *,
    sent: Callable[[], None] = lambda: None,
    leave: Disconnect | None = None,
) -> bool:
    """Send a request and record the response in `transcript` until the connection ends.

    Calls `sent` once the request has been written. Returns False if the client left before the end. Raises `OSError` if
    the connection cannot be made or breaks, `asyncio.LimitOverrunError` or `ValueError` if the response is not HTTP.
    """
    context = ssl.create_default_context() if server.tls else None
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=MAX_LINE, ssl=context)
    stayed = False
    try:
        writer.write(_encode(server, request))
        await writer.drain()
        sent()
        async with asyncio.timeout(None if leave is None else leave.seconds):
            stayed = await _read(reader, transcript, None if leave is None else leave.chunks)
    except TimeoutError:
        pass  # the client leaves
    finally:
        if leave is not None and leave.abruptly:
            writer.transport.abort()
        writer.close()
    return stayed


def _encode(server: ServerAddress, request: ClientRequest) -> bytes:
    payload = msgspec.json.encode(request.body)
    key = f"Authorization: Bearer {server.key}\r\n" if server.key else ""
    return (
        f"POST {request.path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nConnection: close\r\n{key}"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    ).encode() + payload


async def _read(reader: asyncio.StreamReader, transcript: Transcript, max_chunks: int | None) -> bool:
    """Read until the connection ends. Returns False if `max_chunks` arrived before that."""
    line = await reader.readline()
    transcript.status = int(line.split()[1]) if line else 0
    events = chunked = False
    while line := (await reader.readline()).strip():
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-type":
                events = value.strip().startswith(b"text/event-stream")
            case b"transfer-encoding":
                chunked = value.strip().lower() == b"chunked"
            case b"x-request-id":
                transcript.request_id = value.strip().decode("latin-1")
    parts = _chunks(reader) if chunked else _parts(reader)
    if not events:
        if body := b"".join([part async for part in parts]):
            transcript.add_body(body)
        return True
    parser = EventParser()
    async for part in parts:
        for event in parser.feed(part):
            transcript.add_event(event.data)
            if max_chunks is not None and len(transcript.stamps) >= max_chunks:
                return False
    return True


async def _parts(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield a body that ends with its connection."""
    while part := await reader.read(MAX_LINE):
        yield part


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the complete chunks of a chunked body (RFC 9112, section 7.1) without trailers.

    Raises `ValueError` for an invalid chunk size.
    """
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
