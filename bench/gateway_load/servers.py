"""Child process of `bench/gateway.py`: one of its servers, which a JSON object describes.

    python bench/gateway_load/servers.py '{"kind": "bare", "streams": 8, "rate": 50.0, "tokens": 200}'

It prints `PORT` and the port once it accepts requests, and serves until SIGTERM.
"""

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import anyio
import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from actors.process.logs import configure_logging
from actors.transport.log_limit import LogLimit
from bench.gateway_load.ticks import Ticks
from cli.config.launch import worker_command
from gateway.daemon import run_daemon
from gateway.fleet.launch import WorkerLaunch
from gateway.generation.delta import TextDelta
from gateway.http.conventions import ConventionsByPath, HttpConventions
from gateway.http.request_record import RequestRecords
from gateway.http.server import listen, serve
from gateway.openai.answer import OpenAIAnswer
from gateway.openai.errors import DONE, OpenAIErrors
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead
from workers.process.spec import ScriptedSpec, WorkerSpec

Kind = Literal["gateway", "bare", "vllm", "mlx_lm"]
"""The last two are programs of their own: `vllm_front.py` and `mlx_front.py`."""


class ServerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The server that a child runs."""

    kind: Kind
    streams: Annotated[int, Meta(ge=1)]
    """At once, at most."""
    rate: Annotated[float, Meta(ge=0.0)]
    """Tokens a second of each stream; 0 is as fast as possible."""
    tokens: Annotated[int, Meta(ge=1)]
    """Tokens of each stream of the bare app; the clients of the others state theirs."""
    gateways: Annotated[int, Meta(ge=1)] = 1
    """Processes of the gateway that serve HTTP."""
    model: str = ""
    """A checkpoint, whose configuration and tokenizer vLLM needs."""
    workers: Annotated[int, Meta(ge=1)] = 1
    """Scripted workers of the gateway; each has all `streams`."""


async def run_gateway(spec: ServerSpec) -> None:
    """Serve with a gateway and its scripted workers."""
    # The parent reads the port from this process's output and nothing after it: a log would fill the pipe.
    configure_logging("gateway", "error")
    worker = WorkerSpec(
        name="w",
        model_name="scripted",
        model_path="",
        backend="scripted",
        max_batch_size=spec.streams,
        max_queue=spec.streams,
        step_tokens=4 * spec.streams,
        log_level="warning",
        scripted=ScriptedSpec(tokens_per_second=spec.rate),
    )
    port = 0
    ready: set[str] = set()

    def listening(_: str, taken: int) -> None:
        nonlocal port
        port = taken

    def status(status: Any) -> None:
        if status.state == "ready":
            ready.add(status.name)
            if len(ready) == spec.workers:
                print("PORT", port, flush=True)

    settings = GatewaySettings(port=0, shutdown_grace_s=0, gateways=spec.gateways)
    names = [f"w{number}" for number in range(spec.workers)]
    launches = [WorkerLaunch(name, "scripted", worker_command(replace(worker, name=name))) for name in names]
    await run_daemon(settings, launches, on_status=status, on_listening=listening)


class Bare:
    """The limit: an ASGI app that does nothing but send the same chunks as often."""

    def __init__(self, rate: float, tokens: int) -> None:
        head = AnswerHead("cmpl-" + "0" * 24, int(time.time()), "scripted", "scripted")
        (self._chunk,) = OpenAIAnswer(chat=False).events(head).deltas([TextDelta(index=0, text="x")])
        self._tokens = tokens
        self.ticks = Ticks(rate)
        self.conventions = ConventionsByPath(HttpConventions(OpenAIErrors()), {})
        self.records = RequestRecords((), lambda route, status, reason: None, LogLimit(time.monotonic))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        message = {"type": "http.response.body", "body": self._chunk, "more_body": True}
        for _ in range(self._tokens):
            await self.ticks.next()
            await send(message)
        await send({"type": "http.response.body", "body": DONE})


async def run_bare(spec: ServerSpec) -> None:
    """Serve the bare app with the gateway's own HTTP server."""
    settings = GatewaySettings(port=0)
    listener = listen(settings)
    print("PORT", listener.getsockname()[1], flush=True)
    app = Bare(spec.rate, spec.tokens)
    async with anyio.create_task_group() as group:
        group.start_soon(app.ticks.run)
        await serve(app, settings, shutdown=anyio.Event(), listener=listener)


def main(text: str) -> None:
    """Serve what `text`, a `ServerSpec` as JSON, describes. Raises `msgspec.ValidationError`."""
    spec = msgspec.json.decode(text, type=ServerSpec)
    anyio.run({"gateway": run_gateway, "bare": run_bare}[spec.kind], spec)


if __name__ == "__main__":
    main(*sys.argv[1:])
