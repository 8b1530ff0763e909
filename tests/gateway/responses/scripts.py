"""A worker that answers the tests' requests, and clients of its gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import openai

from protocol.events import Usage
from protocol.request import ChatInput
from tests.gateway.harness.serving import Served, serving

OPEN = "…"


class Script:
    """Answers every request with the next of these texts, in pieces of three characters. One that ends with `OPEN` is
    only begun."""

    def __init__(self, served: Served, *texts: str) -> None:
        self.served = served
        self.texts = texts

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self._run)
            yield
            group.cancel_scope.cancel()

    async def _run(self) -> None:
        worker = self.served.worker
        for count, text in enumerate(self.texts, 1):
            submit = (await worker.wait_submits(count))[-1]
            begun, text = text.endswith(OPEN), text.removesuffix(OPEN)
            pieces = [text[begin : begin + 3] for begin in range(0, len(text), 3)]
            for token, piece in enumerate(pieces):
                worker.token(submit.stream, piece, token)
                await anyio.lowlevel.checkpoint()
            if not begun:
                worker.finish(submit.stream, usage=Usage(4, len(pieces)))

    def input(self, request: int = -1) -> ChatInput:
        """The input that the worker got."""
        found = self.served.worker.submits[request].input
        assert isinstance(found, ChatInput)
        return found


@asynccontextmanager
async def scripted(*texts: str, **settings: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Script]]:
    """A client of a gateway whose worker follows a script."""
    async with serving(**settings) as served:
        script = Script(served, *texts)
        async with script.running(), client_of(served) as client:
            yield client, script


def client_of(served: Served, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=key, max_retries=0)
