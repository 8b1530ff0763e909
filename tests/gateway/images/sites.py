"""Servers of images on this machine, and fetchers that may connect to them."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketAttribute, SocketStream
from msgspec.structs import replace

from gateway.body_budget import BodyBudget, HeldBody
from gateway.images.fetching import ImageFetcher
from gateway.images.sources import GivenImage
from protocol.bounds import MAX_IMAGE_BYTES
from protocol.events import Capabilities, Ready
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.images.files import PNG

FIELD = "messages[0].content[0].image_url"
Answer = Callable[[SocketStream], Awaitable[None]]


@dataclass
class Site:
    """A server of images on this machine, and the names that were resolved for it."""

    port: int = 0
    resolved: list[str] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    open: int = 0
    most: int = 0
    addresses: list[str] = field(default_factory=lambda: ["127.0.0.1"])
    budget: BodyBudget = field(default_factory=lambda: BodyBudget(1 << 30, 1))

    secure: bool = False

    def fetcher(
        self,
        deadline_s: float = 5.0,
        public: Callable[[str], bool] = "127.0.0.1".__eq__,
        trusted: ssl.SSLContext | None = None,
    ) -> ImageFetcher:
        async def resolve(host: str, port: int) -> list[str]:
            self.resolved.append(host)
            return list(self.addresses)

        return ImageFetcher(("*",), resolve=resolve, public=public, deadline_s=deadline_s, trusted=trusted)

    async def fetch(
        self, fetcher: ImageFetcher | None = None, path: str = "/a.png", most: int = MAX_IMAGE_BYTES
    ) -> bytes:
        held = HeldBody(self.budget)
        source = GivenImage(FIELD, "url", f"http{'s' * self.secure}://images.test:{self.port}{path}")
        try:
            return await (fetcher or self.fetcher()).fetch(source, "anna", most, held)
        finally:
            held.release()


@asynccontextmanager
async def site(answer: Answer, *, secure: bool = False) -> AsyncIterator[Site]:
    """Serve images. With `secure`, the answer begins with the handshake of TLS."""
    made = Site(secure=secure)

    async def serve(stream: SocketStream) -> None:
        made.open += 1
        made.most = max(made.most, made.open)
        try:
            async with stream:
                if not secure:
                    made.requests.append(await stream.receive())
                await answer(stream)
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            pass
        finally:
            made.open -= 1

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    made.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield made
        group.cancel_scope.cancel()
    assert made.budget.held == 0


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode()


def whole(data: bytes = PNG, kind: str = "image/png", *lines: str, status: str = "200 OK") -> Answer:
    async def answer(stream: SocketStream) -> None:
        await stream.send(head(f"Content-Type: {kind}", f"Content-Length: {len(data)}", *lines, status=status) + data)

    return answer


async def endless(stream: SocketStream) -> None:
    await stream.send(head("Content-Type: image/png"))
    while True:
        await stream.send(b"x" * 65536)


async def drip(stream: SocketStream) -> None:
    await stream.send(head("Content-Type: image/png"))
    while True:
        await stream.send(b"x")
        await anyio.sleep(0.01)


async def silent(stream: SocketStream) -> None:
    await stream.receive()


def seeing(name: str) -> FakeWorker:
    """A worker whose model takes images."""
    worker = FakeWorker(name, slots=8)
    worker.status = replace(worker.status, ready=Ready(Capabilities(chat=True, images=True)))
    return worker
