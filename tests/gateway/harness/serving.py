"""The real server on a real socket, in the test's event loop, with workers whose frames the test sends."""

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import httpx

from gateway.app import create_app
from gateway.http.listener import Listener
from gateway.http.server import listen, serve
from gateway.http.tls import tls_of
from gateway.images.loading import ImageLoader
from gateway.keys.api_keys import ApiKeys
from gateway.responses.service import ResponseService
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.gateway.harness.fakes import FakeWorker

COMPLETION = {"model": "tiny", "prompt": "hi", "max_tokens": 8}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@dataclass
class Served:
    """A running gateway."""

    listener: Listener
    router: Router
    workers: list[FakeWorker]
    client: httpx.AsyncClient
    app: Any = field(repr=False)
    responses: ResponseService

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    @property
    def worker(self) -> FakeWorker:
        return self.workers[0]

    @property
    def live(self) -> int:
        """Sequences that the gateway has open."""
        return sum(len(handle.live) for handle in self.router.pool)

    async def until(self, true: Callable[[], bool]) -> None:
        """Let the loop turn until something holds; the test's time limit ends a wait in vain. A long wait leaves the
        core to others."""
        turns = 0
        while not true():
            await (anyio.lowlevel.checkpoint() if turns < 100 else anyio.sleep(0.001))
            turns += 1


@asynccontextmanager
async def serving(
    *names: str,
    slots: int = 4,
    make: Callable[[str], FakeWorker] | None = None,
    trusted: ssl.SSLContext | bool = False,
    server: Callable[..., Awaitable[None]] = serve,
    images: Callable[[GatewaySettings], ImageLoader] = ImageLoader,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A gateway on a free port with fake workers of these names (one, `w0`, by default). `trusted`: what its client
    trusts, over TLS. `server` does what `serve` does, and
    `images` makes what loads the images of requests."""
    chosen = GatewaySettings(port=0, flush_s=0.1, **settings)
    keys = ApiKeys(chosen)
    router = Router(chosen, keys.weight, keys.priority_class)
    build = make or (lambda name: FakeWorker(name, slots=slots))
    workers = [build(name).join(router) for name in names or ("w0",)]
    tls = tls_of(chosen)
    listener = listen(chosen, tls)
    port = listener.getsockname()[1]
    shutdown, served = anyio.Event(), anyio.Event()
    responses = ResponseService(chosen)
    app = create_app(router, chosen, keys=keys, responses=responses, tls=tls, images=images(chosen))
    with closing(responses):
        async with anyio.create_task_group() as group:
            group.start_soon(responses.background.run)

            async def run_server() -> None:
                await server(app, chosen, shutdown=shutdown, listener=listener)
                served.set()

            group.start_soon(run_server)
            base = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=base, timeout=30, trust_env=False, verify=trusted) as client:
                yield Served(listener, router, workers, client, app, responses)
            shutdown.set()
            await served.wait()
            group.cancel_scope.cancel()


async def events(response: httpx.Response) -> list[Any]:
    """The events of a stream: decoded JSON, and the string `[DONE]`."""
    found: list[Any] = []
    # Not `aiter_lines`: it ends lines at U+2028 too, which JSON may hold as it is.
    for line in (await response.aread()).decode().split("\n"):
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def choices(
    client: httpx.AsyncClient, body: dict[str, Any], fifth: Callable[[], None] = lambda: None, event: int = 5
) -> list[dict[str, Any]]:
    """The choices of a stream of completions, which must end well and once. `fifth` is called at its fifth event, or
    another `event`."""
    found: list[dict[str, Any]] = []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                found.append(choice)
                if len(found) == event:
                    fifth()
    assert sum(choice["finish_reason"] is not None for choice in found) == 1
    return found


async def open_raw(port: int, path: str, body: dict[str, Any]) -> anyio.abc.SocketStream:
    """A request on a bare socket, which the test reads, or not, and closes as it likes."""
    stream = await anyio.connect_tcp("127.0.0.1", port)
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    await stream.send(head.encode() + b"Content-Length: %d\r\n\r\n" % len(payload) + payload)
    return stream
