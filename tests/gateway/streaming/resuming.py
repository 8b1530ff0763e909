"""The real app over a fake worker, for streams that are kept: without sockets."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.app import create_app
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.resumable import ResumableStreams, StreamState
from tests.gateway.harness.asgi import Clients, Connection, clients
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import COMPLETION

KEPT = COMPLETION | {"stream": True, "stream_options": {"resume_s": 60}, "max_tokens": 100}


class Gateway:
    """The app over a fake worker, and its clients."""

    def __init__(self, made: Clients, router: Router, worker: FakeWorker, streams: ResumableStreams) -> None:
        self.open = made.open
        self.ask = made.ask
        self.router = router
        self.worker = worker
        self.streams = streams

    async def begin(self, body: dict[str, Any] = KEPT, /, **headers: str) -> tuple[Connection, int]:
        """A stream whose client has its first event, and its number at the worker."""
        known = len(self.worker.submits)
        connection = self.open("POST", "/v1/completions", body, **headers)
        submit = (await self.worker.wait_submits(known + 1))[-1]
        self.worker.token(submit.stream, "one", 1)
        await connection.until(1)
        return connection, submit.stream

    def count(self, state: StreamState) -> int:
        return int(_metric(self.router, f'baton_resumable_streams{{state="{state}"}}'))

    def outcomes(self) -> dict[str, int]:
        found = re.findall(r'baton_stream_detachments_total\{.*outcome="(\w+)"\} (\d+)', _text(self.router))
        return {outcome: int(count) for outcome, count in found}


def _text(router: Router) -> str:
    return router.metrics.render().decode()


def _metric(router: Router, name: str) -> float:
    return float(_text(router).split(name + " ")[1].split("\n")[0])


@asynccontextmanager
async def gateway(**chosen: Any) -> AsyncIterator[Gateway]:
    made = GatewaySettings(**chosen)
    router = Router(made)
    worker = FakeWorker(slots=64, context=4096).join(router)
    streams = ResumableStreams(made, router.metrics)
    async with clients(create_app(router, made, streams=streams)) as opened:
        yield Gateway(opened, router, worker, streams)


def stream_id(connection: Connection) -> str:
    return connection.headers["x-stream-id"]


def last_id(connection: Connection, index: int = -1) -> str:
    return connection.events[index].split(b"\n")[0].removeprefix(b"id: ").decode()
