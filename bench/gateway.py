"""The gateway's cost on top of its HTTP server: streamed tokens beside a bare Hypercorn app that sends the same bytes.

    python bench/gateway.py [--streams 1,64,256] [--rate 50] [--gateways 1] [--fronts-of vllm mlx_lm] [--open 1000]

A scripted worker (a process of its own, behind the real link) emits for every stream at once, `--rate` tokens a second
each, then flat out (rate 0). The limit is an ASGI app on Hypercorn that wakes all its streams as often and sends each
a chunk of the very same bytes. `--gateways 1,2` also measures a gateway with two processes that serve HTTP, and
`--fronts-of` the HTTP front ends of other servers: their own code, over a stub that makes the text of a token for every
stream at once in place of their engine. Runs of all servers alternate, and medians over the rounds are printed, one
JSON object a line:

  tok_s         tokens per second of wall time, over all streams
  cpu_us_token  CPU microseconds per token of the server's processes (the worker's and the client's are others)
  main_us_token those of the server's own process: with `--gateways 2` the one that routes
  p99_ms        99th percentile of the time between two reads of one stream
  tokens_chunk  tokens per chunk: above 1 the gateway coalesces, being behind

Flat out, one stream is bound by the scripted worker's own step, and many coalesce: a chunk then carries many tokens.
The client takes CPU time as well: what several processes gain shows where there are cores for all of them.

`ratio` is tok_s against the limit's; `cpu_ratio` the limit's CPU per token against the server's, which is what counts
when a core is the bound. `--open` then opens that many streams at once on one gateway and counts what went wrong; any
error makes the exit status 1. Needs Linux, for the CPU clock of another process.
"""

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.descriptors import raise_limit
from bench.gateway_load import servers
from bench.gateway_load.client import stream_all
from bench.gateway_load.servers import Kind, ServerSpec
from bench.harness.command_line import above_zero, at_least, command_line, levels, parsed
from bench.peers.vllm_cpu import ENVIRONMENT

FLAT_OUT_TOKENS = 1500
OPEN_RATE = 5.0
"""Tokens a second of each stream that `--open` opens."""
FOLDER = Path(servers.__file__).parent
BUILTIN = FOLDER.parent.parent / "models" / "builtin"
"""A checkpoint for vLLM, which reads its configuration and its tokenizer."""
FRONTS: tuple[Kind, ...] = ("vllm", "mlx_lm")


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A server to measure."""

    kind: Kind
    gateways: int = 1
    workers: int = 1

    @property
    def name(self) -> str:
        """The name in the table."""
        return f"{self.kind} {self.gateways}" if self.kind == "gateway" else self.kind

    def command(self, spec: ServerSpec) -> list[str]:
        """The command of its process."""
        text = msgspec.json.encode(spec).decode()
        if self.kind == "vllm":
            return [str(ENVIRONMENT.python), str(FOLDER / "vllm_front.py"), text]
        program = FOLDER / "mlx_front.py" if self.kind == "mlx_lm" else servers.__file__
        return [sys.executable, str(program), text]


class ServerProcess:
    """A server in a child process, and its CPU time."""

    def __init__(self, server: MeasuredServer, streams: int, rate: float, tokens: int) -> None:
        """Returns when it accepts requests. Raises RuntimeError if it ends before."""
        spec = ServerSpec(server.kind, streams, rate, tokens, server.gateways, str(BUILTIN), server.workers)
        # The others log each request.
        log = subprocess.DEVNULL if server.kind in FRONTS else None
        self._process = subprocess.Popen(server.command(spec), stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self._process.stdout or ():
            if line.startswith("PORT "):
                self.port = int(line.split()[1])
                return
        raise RuntimeError(f"the server ended with status {self._process.wait()} before it served: {spec}")

    def cpu_seconds(self) -> tuple[float, float]:
        """CPU seconds so far, of the process itself and of its fronts. 2 is CPUCLOCK_SCHED in Linux's encoding of a
        process's clock."""
        children = psutil.Process(self._process.pid).children()
        fronts = [each.pid for each in children if "gateway.fronts" in each.cmdline()]
        own, *others = (time.clock_gettime((~pid << 3) | 2) for pid in (self._process.pid, *fronts))
        return own, sum(others)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def measure(server: MeasuredServer, streams: int, rate: float, tokens: int) -> dict[str, float]:
    """The figures of one run of one server. Raises RuntimeError if a stream failed."""
    process = ServerProcess(server, streams, rate, tokens)
    try:
        asyncio.run(stream_all(process.port, streams, 3))
        before = process.cpu_seconds()
        received, wall = asyncio.run(stream_all(process.port, streams, tokens))
        own, fronts = (now - then for now, then in zip(process.cpu_seconds(), before, strict=True))
    finally:
        process.stop()
    if received.errors:
        raise RuntimeError(f"{server.name}: {len(received.errors)} errors, the first: {received.errors[0]}")
    total = streams * tokens
    gaps = sorted(received.gaps) or [0.0]  # none if each stream came in one chunk, as short ones do on a busy machine
    return {
        "tok_s": total / wall,
        "cpu_us_token": (own + fronts) / total * 1e6,
        "main_us_token": own / total * 1e6,
        "p99_ms": gaps[min(len(gaps) - 1, math.ceil(0.99 * len(gaps)))] * 1e3,
        "tokens_chunk": total / max(1, received.chunks),
    }


def compare(
    measured: Sequence[MeasuredServer], streams: int, rate: float, seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """Medians of the bare app and of each server, which take turns; `rate` 0 is flat out."""
    tokens = min(4000, max(1, int(rate * seconds))) if rate else max(1, FLAT_OUT_TOKENS // max(1, streams // 16))
    bare = MeasuredServer("bare")
    runs: dict[MeasuredServer, list[dict[str, float]]] = {server: [] for server in (*measured, bare)}
    for _ in range(rounds):
        for server, found in runs.items():
            found.append(measure(server, streams, rate, tokens))
    medians = {
        server: {key: round(statistics.median(run[key] for run in found), 2) for key in found[0]}
        for server, found in runs.items()
    }
    limit = medians[bare]
    return [
        {
            "streams": streams,
            "rate": rate or "flat out",
            "server": server.name,
            **medians[server],
            "bare": limit,
            "ratio": round(medians[server]["tok_s"] / limit["tok_s"], 3),
            "cpu_ratio": round(limit["cpu_us_token"] / medians[server]["cpu_us_token"], 3),
        }
        for server in measured
    ]


def open_many(streams: int, seconds: float) -> dict[str, Any]:
    """Open all streams at once on one gateway, each for `seconds`."""
    tokens = max(1, int(OPEN_RATE * seconds))
    server = ServerProcess(MeasuredServer("gateway"), streams, OPEN_RATE, tokens)
    try:
        received, wall = asyncio.run(stream_all(server.port, streams, tokens))
    finally:
        server.stop()
    return {"open": streams, "errors": len(received.errors), "first": received.errors[:1], "seconds": round(wall, 2)}


def table(results: list[dict[str, Any]]) -> str:
    """The medians, one line for each number of streams, rate and server."""
    heads = ("streams", "rate/s", "server", "tokens/s", "bare", "CPU us/token", "main", "bare", "p99 gap ms", "bare")
    lines = ["".join(f"{head:>13}" for head in (*heads, "tokens/s", "CPU"))]
    for found in results:
        bare = found["bare"]
        cells = [str(found["streams"]), str(found["rate"]), found["server"]]
        figures = (found["tok_s"], bare["tok_s"], found["cpu_us_token"], found["main_us_token"], bare["cpu_us_token"])
        cells += [f"{each:,.1f}" for each in (*figures, found["p99_ms"], bare["p99_ms"])]
        cells += [f"{found['ratio']:.2f}x", f"{found['cpu_ratio']:.2f}x"]
        lines.append("".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--streams", type=levels, default="1,64,256", help="streams at once, separated by commas")
    parser.add_argument("--rate", type=above_zero, default=50.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=above_zero, default=4.0, help="of a run at that rate")
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=3,
        help="runs of each figure, the servers in turn; medians are printed",
    )
    parser.add_argument(
        "--gateways", type=levels, default="1", help="processes of the gateway that serve HTTP, separated by commas"
    )
    parser.add_argument("--fronts-of", nargs="+", choices=FRONTS, default=(), help="other servers to measure")
    parser.add_argument("--no-flat-out", action="store_true", help="leave out the runs without a rate")
    parser.add_argument(
        "--open", type=at_least(0), default=1000, help="streams to hold open at once in the end; 0 leaves it out"
    )
    parser.add_argument("--open-seconds", type=above_zero, default=5.0, help="that each of them lasts")
    smoke = {"streams": "4", "seconds": 0.2, "rounds": 1, "gateways": "1,2", "open": 8, "open_seconds": 0.4}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    if "vllm" in args.fronts_of and ENVIRONMENT.missing:
        sys.exit(f"vllm is {ENVIRONMENT.missing}")
    raise_limit()
    measured = [
        *(MeasuredServer("gateway", count) for count in args.gateways),
        *(MeasuredServer(kind) for kind in args.fronts_of),
    ]
    results = []
    for streams in args.streams:
        for rate in (args.rate,) if args.no_flat_out else (args.rate, 0.0):
            found = compare(measured, streams, rate, args.seconds, args.rounds)
            results += found
            for each in found:
                print(json.dumps(each), flush=True)
    opened = open_many(args.open, args.open_seconds) if args.open else {"errors": 0}
    if args.open:
        print(json.dumps(opened), flush=True)
    print(table(results))
    sys.exit(1 if opened["errors"] else 0)


if __name__ == "__main__":
    main()
