"""The gateway's cost on top of its HTTP server: streamed tokens beside a bare Hypercorn app that sends the same bytes.

    python bench/gateway.py [--streams 1,64,256] [--rate 50] [--seconds 4] [--rounds 3] [--open 1000]

A scripted worker (a process of its own, behind the real link) emits for every stream at once, `--rate` tokens a second
each, then flat out (rate 0). The limit is an ASGI app on Hypercorn that wakes all its streams as often and sends each
a chunk of the very same bytes. Runs of the two alternate, and medians over the rounds are printed, one JSON object a
line:

  tok_s         tokens per second of wall time, over all streams
  cpu_us_token  CPU microseconds per token of the server's process (the worker's and the client's are others)
  p99_ms        99th percentile of the time between two reads of one stream
  tokens_chunk  tokens per chunk: above 1 the gateway coalesces, being behind

Flat out, one stream is bound by the scripted worker's own step, and many coalesce: a chunk then carries many tokens.

`ratio` is tok_s against the limit's; `cpu_ratio` the limit's CPU per token against the gateway's, which is what counts
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
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.descriptors import raise_limit
from bench.gateway_load import servers
from bench.gateway_load.client import stream_all
from bench.gateway_load.servers import Kind, ServerSpec
from bench.harness.command_line import above_zero, at_least, command_line, levels, parsed

FLAT_OUT_TOKENS = 1500
OPEN_RATE = 5.0
"""Tokens a second of each stream that `--open` opens."""


class ServerProcess:
    """A server in a child process, and its CPU time."""

    def __init__(self, spec: ServerSpec) -> None:
        """Returns when it accepts requests. Raises RuntimeError if it ends before."""
        command = [sys.executable, servers.__file__, msgspec.json.encode(spec).decode()]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in self._process.stdout or ():
            if line.startswith("PORT "):
                self.port = int(line.split()[1])
                return
        raise RuntimeError(f"the server ended with status {self._process.wait()} before it served: {spec}")

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


def measure(spec: ServerSpec) -> dict[str, float]:
    """The figures of one run of one server. Raises RuntimeError if a stream failed."""
    server = ServerProcess(spec)
    try:
        asyncio.run(stream_all(server.port, spec.streams, 3))
        cpu = server.cpu_seconds()
        received, wall = asyncio.run(stream_all(server.port, spec.streams, spec.tokens))
        cpu = server.cpu_seconds() - cpu
    finally:
        server.stop()
    if received.errors:
        raise RuntimeError(f"{spec.kind}: {len(received.errors)} errors, the first: {received.errors[0]}")
    total = spec.streams * spec.tokens
    gaps = sorted(received.gaps)
    return {
        "tok_s": total / wall,
        "cpu_us_token": cpu / total * 1e6,
        "p99_ms": gaps[min(len(gaps) - 1, math.ceil(0.99 * len(gaps)))] * 1e3,
        "tokens_chunk": total / max(1, received.chunks),
    }


def compare(streams: int, rate: float, seconds: float, rounds: int) -> dict[str, Any]:
    """Medians of both servers, which take turns; `rate` 0 is flat out."""
    tokens = min(4000, max(1, int(rate * seconds))) if rate else max(1, FLAT_OUT_TOKENS // max(1, streams // 16))
    runs: dict[Kind, list[dict[str, float]]] = {"gateway": [], "bare": []}
    for _ in range(rounds):
        for kind, found in runs.items():
            found.append(measure(ServerSpec(kind, streams, rate, tokens)))
    result: dict[str, Any] = {"streams": streams, "rate": rate or "flat out"}
    for kind, found in runs.items():
        result[kind] = {key: round(statistics.median(run[key] for run in found), 2) for key in found[0]}
    result["ratio"] = round(result["gateway"]["tok_s"] / result["bare"]["tok_s"], 3)
    result["cpu_ratio"] = round(result["bare"]["cpu_us_token"] / result["gateway"]["cpu_us_token"], 3)
    return result


def open_many(streams: int, seconds: float) -> dict[str, Any]:
    """Open all streams at once on one gateway, each for `seconds`."""
    tokens = max(1, int(OPEN_RATE * seconds))
    server = ServerProcess(ServerSpec("gateway", streams, OPEN_RATE, tokens))
    try:
        received, wall = asyncio.run(stream_all(server.port, streams, tokens))
    finally:
        server.stop()
    return {"open": streams, "errors": len(received.errors), "first": received.errors[:1], "seconds": round(wall, 2)}


def table(results: list[dict[str, Any]]) -> str:
    """The medians, one line for each number of streams and rate."""
    heads = ("streams", "rate/s", "tokens/s", "bare", "CPU us/token", "bare", "p99 gap ms", "bare", "tokens/s", "CPU")
    lines = ["".join(f"{head:>13}" for head in heads)]
    for found in results:
        ours, bare = found["gateway"], found["bare"]
        cells = [str(found["streams"]), str(found["rate"])]
        cells += [f"{each[key]:,.1f}" for key in ("tok_s", "cpu_us_token", "p99_ms") for each in (ours, bare)]
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
        help="runs of each figure, the two servers in turn; medians are printed",
    )
    parser.add_argument(
        "--open", type=at_least(0), default=1000, help="streams to hold open at once in the end; 0 leaves it out"
    )
    parser.add_argument("--open-seconds", type=above_zero, default=5.0, help="that each of them lasts")
    smoke = {"streams": "4", "seconds": 0.2, "rounds": 1, "open": 8, "open_seconds": 0.4}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    raise_limit()
    results = []
    for streams in args.streams:
        for rate in (args.rate, 0.0):
            results.append(compare(streams, rate, args.seconds, args.rounds))
            print(json.dumps(results[-1]), flush=True)
    opened = open_many(args.open, args.open_seconds) if args.open else {"errors": 0}
    if args.open:
        print(json.dumps(opened), flush=True)
    print(table(results))
    sys.exit(1 if opened["errors"] else 0)


if __name__ == "__main__":
    main()
