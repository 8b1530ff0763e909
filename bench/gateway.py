"""How much the gateway adds to its HTTP server: streamed tokens beside a bare Hypercorn app that sends the same bytes.

    python bench/gateway.py [--streams 1,64,256] [--rate 50] [--seconds 4] [--rounds 3] [--open 1000]

A scripted worker (a process of its own, behind the real link) emits for every stream at once, `--rate` tokens a second
each, then flat out (rate 0). The limit is an ASGI app on Hypercorn that wakes all its streams as often and sends each
a chunk of the very same bytes. Runs of the two alternate, and medians over the rounds are printed, one JSON object a
line:

  tok_s         tokens per second of wall time, over all streams
  cpu_us_token  CPU microseconds per token of the server's process (the worker's and the client's are others)
  p99_ms        99th percentile of the time between the arrivals of one stream
  tokens_chunk  tokens per chunk: above 1 the gateway coalesces, being behind

Flat out, one stream is bound by the scripted worker's own step, and many coalesce: a chunk then carries many tokens.

`ratio` is tok_s against the limit's; `cpu_ratio` the limit's CPU per token against the gateway's, which is what counts
when a core is the bound. `--open` then opens that many streams at once on one gateway and counts what went wrong.
Needs Linux, for the CPU clock of another process.
"""

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.descriptors import raise_limit
from actors.process.logs import configure_logging
from bench.command_line import above_zero, at_least, command_line, levels
from gateway.daemon import run_daemon
from gateway.fleet.launch import WorkerLaunch
from gateway.generation.delta import TextDelta
from gateway.http.conventions import ConventionsByPath, HttpConventions
from gateway.http.server import listen, serve
from gateway.openai.answer import OpenAIAnswer
from gateway.openai.errors import DONE, OpenAIErrors
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead
from workers.process.spec import ScriptedSpec, WorkerSpec

FLAT_OUT_TOKENS = 1500


# The servers, each in a process of its own.


async def run_gateway(streams: int, rate: float) -> None:
    """The real thing, over one scripted worker."""
    # Whoever measures reads the port from this process's output and nothing after it: a log would fill the pipe.
    configure_logging("gateway", "error")
    spec = WorkerSpec(
        name="w0",
        model_name="scripted",
        model_path="",
        backend="scripted",
        max_batch_size=streams,
        max_queue=streams,
        step_tokens=4 * streams,
        log_level="warning",
        scripted=ScriptedSpec(tokens_per_second=rate),
    )
    text = msgspec.json.encode(spec).decode()

    def command(endpoint: str, incarnation: int) -> list[str]:
        argv = [sys.executable, "-m", "workers", "--endpoint", endpoint]
        return [*argv, "--incarnation", str(incarnation), "--spec", text]

    port = 0

    def listening(_: str, taken: int) -> None:
        nonlocal port
        port = taken

    def status(status: Any) -> None:
        if status.state == "ready":
            print("PORT", port, flush=True)

    settings = GatewaySettings(port=0, shutdown_grace_s=0)
    await run_daemon(settings, [WorkerLaunch("w0", "scripted", command)], on_status=status, on_listening=listening)


class Bare:
    """The limit: the least that an ASGI app can do to send the same chunks as often."""

    def __init__(self, rate: float, tokens: int) -> None:
        head = AnswerHead("cmpl-" + "0" * 24, int(time.time()), "scripted", "scripted")
        (self._chunk,) = OpenAIAnswer(chat=False).events(head).deltas([TextDelta(index=0, text="x")])
        self._rate = rate
        self._tokens = tokens
        self._tick = asyncio.Event()
        self.conventions = ConventionsByPath(HttpConventions(OpenAIErrors()), {})

    async def ticks(self) -> None:
        """Wake every stream once a step."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._rate:
            due = max(due + 1 / self._rate, loop.time())
            await asyncio.sleep(due - loop.time())
            tick, self._tick = self._tick, asyncio.Event()
            tick.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        message = {"type": "http.response.body", "body": self._chunk, "more_body": True}
        for _ in range(self._tokens):
            if self._rate:
                await self._tick.wait()
            else:
                await asyncio.sleep(0)
            await send(message)
        await send({"type": "http.response.body", "body": DONE})


async def run_bare(rate: float, tokens: int) -> None:
    """The bare app on the same server."""
    settings = GatewaySettings(port=0)
    listener = listen(settings)
    print("PORT", listener.getsockname()[1], flush=True)
    app = Bare(rate, tokens)
    async with anyio.create_task_group() as group:
        group.start_soon(app.ticks)
        await serve(app, settings, shutdown=anyio.Event(), listener=listener)


# The client.


@dataclass
class Seen:
    """What the client saw of all its streams."""

    gaps: list[float] = field(default_factory=list)
    chunks: int = 0
    text_bytes: int = 0
    errors: list[str] = field(default_factory=list)


class StreamClient(asyncio.Protocol):
    """One stream: sends a request, then counts chunks and the time between arrivals."""

    def __init__(self, request: bytes, seen: Seen, ended: asyncio.Future[None]) -> None:
        self._request = request
        self._seen = seen
        self._ended = ended
        self._last = 0.0
        self._begun = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._last:
            self._seen.gaps.append(now - self._last)
        self._last = now
        if not self._begun:
            self._begun = True
            if b" 200 " not in data[:16]:
                self._seen.errors.append(data[:300].decode(errors="replace"))
        self._seen.chunks += data.count(b'"index"')
        self._tail = (self._tail + data)[-64:]
        if b'"error"' in data:
            self._seen.errors.append(data[:300].decode(errors="replace"))
        if b"data: [DONE]" in self._tail:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._seen.errors.append(f"the connection broke off: {error}")
            self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._transport.close()


async def load(port: int, streams: int, tokens: int) -> tuple[Seen, float]:
    """Open all streams at once and read them to their ends; also the seconds it took."""
    body = {"model": "scripted", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    )
    request = head.encode() + b"\r\n\r\n" + payload
    loop = asyncio.get_running_loop()
    seen = Seen()
    began = time.perf_counter()

    async def one() -> None:
        ended: asyncio.Future[None] = loop.create_future()
        try:
            await loop.create_connection(lambda: StreamClient(request, seen, ended), "127.0.0.1", port)
        except OSError as error:
            seen.errors.append(f"no connection: {error}")
            return
        await ended

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(one())
    return seen, time.perf_counter() - began


# The comparison.


class Server:
    """A server in a child process, and its CPU time."""

    def __init__(self, kind: str, streams: int, rate: float, tokens: int) -> None:
        argv = [sys.executable, __file__, "--child", kind, "--streams", str(streams), "--rate", str(rate)]
        argv += ["--tokens", str(tokens)]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        for line in self._process.stdout or ():
            if line.startswith("PORT "):
                self.port = int(line.split()[1])
                return
        raise RuntimeError(f"the {kind} did not start")

    def cpu_seconds(self) -> float:
        """CPU seconds of the process so far. 2 is CPUCLOCK_SCHED in Linux's encoding of a process's clock."""
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure(kind: str, streams: int, rate: float, tokens: int) -> dict[str, float]:
    """One run of one server."""
    server = Server(kind, streams, rate, tokens)
    try:
        asyncio.run(load(server.port, streams, 3))
        cpu = server.cpu_seconds()
        seen, wall = asyncio.run(load(server.port, streams, tokens))
        cpu = server.cpu_seconds() - cpu
    finally:
        server.stop()
    if seen.errors:
        raise RuntimeError(f"{kind}: {len(seen.errors)} errors, the first: {seen.errors[0]}")
    total = streams * tokens
    seen.gaps.sort()
    return {
        "tok_s": total / wall,
        "cpu_us_token": cpu / total * 1e6,
        "p99_ms": seen.gaps[min(len(seen.gaps) - 1, math.ceil(0.99 * len(seen.gaps)))] * 1e3,
        "tokens_chunk": total / max(1, seen.chunks),
    }


def compare(streams: int, rate: float, seconds: float, rounds: int) -> dict[str, Any]:
    """Alternate the two; medians."""
    tokens = min(4000, int(rate * seconds)) if rate else FLAT_OUT_TOKENS // max(1, streams // 16)
    runs: dict[str, list[dict[str, float]]] = {"gateway": [], "bare": []}
    for _ in range(rounds):
        for kind, found in runs.items():
            found.append(measure(kind, streams, rate, tokens))
    result: dict[str, Any] = {"streams": streams, "rate": rate or "flat out"}
    for kind, found in runs.items():
        result[kind] = {key: round(statistics.median(run[key] for run in found), 2) for key in found[0]}
    result["ratio"] = round(result["gateway"]["tok_s"] / result["bare"]["tok_s"], 3)
    result["cpu_ratio"] = round(result["bare"]["cpu_us_token"] / result["gateway"]["cpu_us_token"], 3)
    return result


def open_many(streams: int) -> dict[str, Any]:
    """All streams open at once on one gateway, each until its end."""
    rate, tokens = 5.0, 25
    server = Server("gateway", streams, rate, tokens)
    try:
        seen, wall = asyncio.run(load(server.port, streams, tokens))
    finally:
        server.stop()
    return {"open": streams, "errors": len(seen.errors), "first": seen.errors[:1], "seconds": round(wall, 2)}


def table(results: list[dict[str, Any]]) -> str:
    """The medians, one line a level."""
    heads = ("streams", "rate/s", "tokens/s", "bare", "CPU us/token", "bare", "p99 gap ms", "bare", "tokens/s", "CPU")
    lines = ["".join(f"{head:>13}" for head in heads)]
    for found in results:
        ours, bare = found["gateway"], found["bare"]
        cells = [str(found["streams"]), str(found["rate"])]
        cells += [f"{each[key]:,.1f}" for key in ("tok_s", "cpu_us_token", "p99_ms") for each in (ours, bare)]
        cells += [f"{found['ratio']:.2f}x", f"{found['cpu_ratio']:.2f}x"]
        lines.append("".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--streams", type=levels, default="1,64,256", help="streams at once, separated by commas")
    parser.add_argument("--rate", type=above_zero, default=50.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=above_zero, default=4.0, help="of a run at that rate")
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=3,
        help="runs of each figure, the two servers in turn; medians are printed",
    )
    parser.add_argument(
        "--open", type=at_least(0), default=1000, help="streams to hold open at once in the end; 0 leaves it out"
    )
    parser.add_argument("--tokens", type=at_least(0), default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=["gateway", "bare"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        children: dict[str, Callable[[], Awaitable[None]]] = {
            "gateway": lambda: run_gateway(arguments.streams[0], arguments.rate),
            "bare": lambda: run_bare(arguments.rate, arguments.tokens),
        }
        anyio.run(children[arguments.child])
        return
    raise_limit()
    results = []
    for streams in arguments.streams:
        for rate in (arguments.rate, 0.0):
            results.append(compare(streams, rate, arguments.seconds, arguments.rounds))
            print(json.dumps(results[-1]), flush=True)
    if arguments.open:
        print(json.dumps(open_many(arguments.open)), flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
