"""Attackers beside the clients of a soak: connections and requests that mean no good, for as long as it lasts.

Nothing is expected of their answers, but each attack must end: within `LIMIT_S` after its last byte the server has
answered or closed the connection.
"""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes

from cli.chaos.http_client import ServerAddress

LIMIT_S = 90.0
"""Longer than every time limit of the server's connections."""
HOLD_S = 3.0
"""Time for which attackers that hold something hold it."""
PAUSE_S = 0.05
"""Mean pause of an attacker between two attacks."""
READ = 1 << 16


@dataclass
class AttackTally:
    """The attacks, by name and by how they ended."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest_probe_s: float = 0.0
    """The longest time that `/health/live` took to answer meanwhile."""

    @property
    def held(self) -> list[str]:
        """A text for each attack whose connection the server neither answered nor closed."""
        return [f"{name}: {count} connections were held" for (name, end), count in self.ended.items() if end == "held"]


@dataclass(frozen=True)
class Connection:
    """An attacker's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rng: random.Random

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: object) -> None:
        """Send a whole request."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.send(_head("POST", path, f"Content-Length: {len(payload)}") + payload)


Attack = Callable[[Connection], Awaitable[None]]


def _head(method: str, path: str, *headers: str) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def unread_body(attacker: Connection) -> None:
    """A chunked body for a route that reads none."""
    path = attacker.rng.choice(["/health/live", "/metrics", "/nowhere", "/v1/models"])
    await attacker.send(_head("POST", path, "Transfer-Encoding: chunked"))
    for _ in range(40):
        await attacker.send(b"1\r\nx\r\n")
        await asyncio.sleep(0)
    await attacker.send(b"0\r\n\r\n")


async def huge_answer(attacker: Connection) -> None:
    """As many tokens and log-probabilities as one request can ask for."""
    body = {"model": "chaos", "n": 64, "max_tokens": 100_000, "logprobs": True, "top_logprobs": 20}
    await attacker.post("/v1/chat/completions", body | {"messages": [{"role": "user", "content": "x"}]})


async def two_lengths(attacker: Connection) -> None:
    """`Content-Length` beside `Transfer-Encoding`."""
    head = _head("POST", "/v1/completions", "Content-Length: 5", "Transfer-Encoding: chunked")
    await attacker.send(head + b"0\r\n\r\nGET /admin/workers HTTP/1.1\r\n\r\n")


async def upgrade(attacker: Connection) -> None:
    """An upgrade to another protocol."""
    kind = attacker.rng.choice(["h2c", "websocket"])
    await attacker.send(_head("GET", "/admin/workers", "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {kind}"))


async def random_bytes(attacker: Connection) -> None:
    """Bytes of no protocol."""
    await attacker.send(attacker.rng.randbytes(attacker.rng.randrange(1, 5000)) + b"\r\n\r\n")


async def wrong_bodies(attacker: Connection) -> None:
    """Bodies that are not what they should be, pipelined."""
    bodies = [b"", b"[" * 5000, b"{}", b'{"model": 1}', b"\xff", b'{"model": "chaos", "prompt": "x", "n": 1e9}']
    for _ in range(20):
        await attacker.post("/v1/completions", attacker.rng.choice(bodies))


async def another_host(attacker: Connection) -> None:
    """A page of another site that had its name resolved to this server."""
    await attacker.send(b"GET /admin/workers HTTP/1.1\r\nHost: evil.example\r\n\r\n")


async def trickle(attacker: Connection) -> None:
    """A header that never ends."""
    await attacker.send(b"GET / HTTP/1.1\r\n")
    for _ in range(int(HOLD_S / 0.1)):
        await attacker.send(b"x: y\r\n")
        await asyncio.sleep(0.1)
    attacker.writer.write_eof()


async def unread_answer(attacker: Connection) -> None:
    """A stream that is not read, and reset."""
    await attacker.post("/v1/completions", {"model": "chaos", "prompt": "x", "max_tokens": 500, "stream": True})
    await asyncio.sleep(attacker.rng.uniform(0.0, HOLD_S))
    attacker.writer.transport.abort()


def _http2() -> H2Connection:
    client = H2Connection(H2Configuration(header_encoding=None))
    client.initiate_connection()
    return client


def _open(client: H2Connection, method: bytes, path: bytes, *, end: bool) -> int:
    number = client.get_next_available_stream_id()
    head = [(b":method", method), (b":scheme", b"http"), (b":authority", b"127.0.0.1"), (b":path", path)]
    client.send_headers(number, [*head, (b"content-type", b"application/json")], end_stream=end)
    return number


async def resets(attacker: Connection) -> None:
    """Streams that are opened and reset."""
    client = _http2()
    for _ in range(300):
        client.reset_stream(_open(client, b"GET", b"/metrics", end=True), ErrorCodes.CANCEL)
        await attacker.send(client.data_to_send())
    attacker.writer.write_eof()


async def closed_window(attacker: Connection) -> None:
    """A stream over HTTP/2 whose client opens no window for it."""
    client = _http2()
    number = _open(client, b"POST", b"/v1/completions", end=False)
    body = {"model": "chaos", "prompt": "x", "max_tokens": 500, "n": 4, "stream": True, "return_token_ids": True}
    client.send_data(number, json.dumps(body).encode(), end_stream=True)
    await attacker.send(client.data_to_send())
    await asyncio.sleep(HOLD_S)
    attacker.writer.write_eof()


ATTACKS: tuple[Attack, ...] = (
    *(unread_body, huge_answer, two_lengths, upgrade, random_bytes, wrong_bodies, another_host, trickle),
    *(unread_answer, resets, closed_window),
)


@asynccontextmanager
async def _connection(server: ServerAddress, rng: random.Random) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        yield Connection(reader, writer, rng)
    finally:
        writer.close()


async def _end_of(attack: Attack, attacker: Connection) -> str:
    """Run an attack; return how it ended: answered, closed or held."""
    try:
        await attack(attacker)
        async with asyncio.timeout(LIMIT_S):
            return "answered" if await attacker.reader.read(READ) else "closed"
    except TimeoutError:
        return "held"
    except OSError:
        return "closed"


async def attack_forever(server: ServerAddress, rng: random.Random, tally: AttackTally) -> None:
    """Attack the server in one way after the other, each on a connection of its own."""
    while True:
        attack = rng.choice(ATTACKS)
        async with _connection(server, rng) as attacker:
            tally.ended[attack.__name__, await _end_of(attack, attacker)] += 1
        await asyncio.sleep(rng.expovariate(1 / PAUSE_S))


async def probe_forever(server: ServerAddress, tally: AttackTally, every_s: float = 0.2) -> None:
    """Ask whether the server lives, and note how long the answer took."""
    clock = asyncio.get_running_loop().time
    for _ in itertools.count():
        began = clock()
        async with _connection(server, random.Random()) as probe:
            await probe.send(_head("GET", "/health/live", "Connection: close"))
            await probe.reader.read(READ)
        tally.slowest_probe_s = max(tally.slowest_probe_s, clock() - began)
        await asyncio.sleep(every_s)
