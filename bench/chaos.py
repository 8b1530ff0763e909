"""Kills workers with SIGKILL while clients stream, and counts what the clients notice: nothing but a gap.

    python bench/chaos.py [--streams 8,64] [--workers 1,1+1,2] [--phases admitted,first,middle,last] [--plot FILE]

A set-up is `baton serve` with the built-in model and so many workers, `1+1` being one and a standby. Each request is
run undisturbed first; then all are run again for each phase, and a worker that has streams is killed when

  admitted   they have been sent: prompts are queued or computed
  first      the first token of any has come
  middle     one has --delivered tokens
  last       one has all of its tokens but two

Half of the requests are greedy, half are drawn with a seed; every second one is a chat. A line counts the streams that

  failed      ended with an error, or without their end
  duplicated  got more token ids than undisturbed
  altered     differ from the undisturbed in any id, character, finish reason or count

and gives the gap that a client saw: the time from the last chunk of a stream before its kill to the first one after
what was on its way then; p50 and p99 over the streams of the killed worker that had begun. Beside it stands the longest
time between two chunks of the undisturbed run.
"""

import argparse
import asyncio
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import anyio

from actors.logs import configure_logging
from actors.supervision import RestartPolicy
from bench.load import WORDS, percentile
from bench.plots import figure
from bench.shapes import default_cache
from cli.model import ChosenModel
from cli.serve import gateway_settings, worker_launches
from cli.settings import load
from gateway.daemon import run_daemon

PHASES = ("admitted", "first", "middle", "last")
READY_TIMEOUT_S = 300
POLICY = RestartPolicy(max_failures=64, max_delay_s=0.25)
"""Each failure is treated as a first one: what is killed again and again is started ever later, and then given up."""
HOST = "127.0.0.1"


@dataclass
class Stream:
    """What one client got."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)
    finish: str = ""
    usage: list[int] = field(default_factory=list)
    problem: str = "no end"
    done: bool = False

    def take(self, event: dict[str, Any]) -> None:
        """One `data:` object."""
        if "error" in event:
            self.problem = str(event["error"])
            return
        if event.get("usage"):
            self.usage = [event["usage"][name] for name in ("prompt_tokens", "completion_tokens")]
        for choice in event["choices"]:
            self.text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            self.ids += choice.get("token_ids") or ()
            self.finish = choice.get("finish_reason") or self.finish
            self.stamps.append(time.perf_counter())

    @property
    def good(self) -> bool:
        return self.done and bool(self.finish and self.usage)

    def same(self, other: "Stream") -> bool:
        return all(getattr(self, name) == getattr(other, name) for name in ("text", "ids", "finish", "usage"))

    def gap(self, since: float = 0.0) -> float:
        """Seconds between two chunks, the longest with its end after `since`; 0 where there are none."""
        pairs = itertools.pairwise(self.stamps)
        return max((after - before for before, after in pairs if after > since), default=0.0)


def bodies(count: int, prompt_words: int, tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """Path and body of each request; no two alike."""
    found = []
    for index in range(count):
        prompt = " ".join(WORDS[(index * 7 + word * (index % 5 + 1)) % len(WORDS)] for word in range(prompt_words))
        body: dict[str, Any] = {"model": "chaos", "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= {"temperature": 0.0} if index // 2 % 2 else {"temperature": 0.9, "seed": index}
        if index % 2:
            body["messages"] = [{"role": "user", "content": prompt}]
            found.append(("/v1/chat/completions", body))
        else:
            found.append(("/v1/completions", body | {"prompt": prompt}))
    return found


async def request(port: int, path: str, body: dict[str, Any], stream: Stream, sent: Callable[[], None]) -> None:
    """Send one request and read its events into `stream`; what goes wrong stays there as its problem."""
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 22)
    writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    await writer.drain()
    sent()
    stream.problem = (await reader.readline()).decode().strip()
    async for line in reader:
        stream.problem += line.decode() if line.startswith(b'{"error"') else ""
        if line.startswith(b"data: [DONE]"):
            stream.done = True
            break
        if line.startswith(b"data: "):
            stream.take(json.loads(line[6:]))
    writer.close()


async def run(
    port: int, requests: Sequence[tuple[str, dict[str, Any]]], when: "Trigger | None"
) -> tuple[list[Stream], float]:
    """All requests at once; a worker is killed at its moment, which is returned in the time of the stamps."""
    streams = [Stream() for _ in requests]
    sent = iter(range(1, len(requests) + 1))
    all_sent = asyncio.Event()

    def note() -> None:
        if next(sent) == len(requests):
            all_sent.set()

    killed_at = 0.0
    async with asyncio.TaskGroup() as group:
        for (path, body), stream in zip(requests, streams, strict=True):
            group.create_task(request(port, path, body, stream, note))
        if when is not None:
            await all_sent.wait()
            while not when.reached(streams):  # noqa: ASYNC110  what it waits for comes from sockets, in many tasks
                await asyncio.sleep(0.001)
            killed_at = time.perf_counter()
            os.kill(when.pid, signal.SIGKILL)
    return streams, killed_at


@dataclass(frozen=True)
class Trigger:
    """The moment of a kill."""

    phase: str
    delivered: int
    tokens: int
    pid: int

    def reached(self, streams: Sequence[Stream]) -> bool:
        wanted = {"admitted": 0, "first": 1, "middle": self.delivered, "last": self.tokens - 2}[self.phase]
        return max(len(stream.ids) for stream in streams) >= wanted


def workers(port: int) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{HOST}:{port}/admin/workers", timeout=30) as response:
        return list(json.load(response)["workers"])


def victim(port: int) -> int:
    """The process id of an active worker; each has as many streams as another."""
    return next(int(each["pid"]) for each in workers(port) if each["role"] == "active")


def wait_until_ready(port: int) -> None:
    """Every worker takes requests. Raises `TimeoutError`."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if all(each["state"] == "ready" for each in workers(port)):
            return
        time.sleep(0.05)
    raise TimeoutError("the workers did not become ready")


def serve(options: dict[str, Any], listening: Connection) -> None:
    """The server's process."""
    configure_logging("gateway", "error")
    settings = load(options)
    launches = worker_launches(settings, ChosenModel.choose(settings))
    tell = functools.partial(_tell, listening)
    anyio.run(functools.partial(run_daemon, gateway_settings(settings), launches, on_listening=tell, policy=POLICY))


def _tell(listening: Connection, host: str, port: int) -> None:
    listening.send(port)


@contextmanager
def server(name: str, slots: int, cache: Path) -> Iterator[int]:
    """A server with the workers that `name` says, all ready: its port."""
    active, _, standby = name.partition("+")
    options: dict[str, Any] = {"name": "chaos", "backend": "iree", "host": HOST, "port": 0, "max_batch_size": slots}
    options |= {"workers": int(active), "standby": int(standby or 0), "cache_dir": str(cache), "context": 1024}
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(options, theirs))
    process.start()
    try:
        port = ours.recv()
        wait_until_ready(port)
        yield port
    finally:
        process.terminate()
        process.join()


@dataclass(frozen=True)
class Line:
    """What the clients of one run noticed."""

    workers: str
    streams: int
    phase: str
    failed: int
    duplicated: int
    altered: int
    cut: int
    """Streams that had begun and then saw a gap."""
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    undisturbed_ms: float | None

    @property
    def bad(self) -> int:
        return self.failed + self.duplicated + self.altered


def compare(name: str, phase: str, streams: Sequence[Stream], killed_at: float, whole: Sequence[Stream]) -> Line:
    """Hold a run against the undisturbed one."""
    failed = [stream for stream in streams if not stream.good]
    pairs = [(stream, other) for stream, other in zip(streams, whole, strict=True) if stream.good]
    duplicated = sum(len(stream.ids) > len(other.ids) for stream, other in pairs)
    altered = sum(not stream.same(other) and len(stream.ids) <= len(other.ids) for stream, other in pairs)
    longest = max(stream.gap() for stream in whole)
    begun = [stream for stream in streams if stream.stamps and stream.stamps[0] <= killed_at]
    # The other worker's streams have none that is longer than without a kill.
    gaps = [1e3 * gap for stream in begun if (gap := stream.gap(killed_at)) > longest]
    for stream in failed[:1]:
        print(f"  {stream.problem}", flush=True)
    figures = percentile(gaps, 0.5), percentile(gaps, 0.99), percentile([1e3 * longest], 0.5)
    return Line(name, len(streams), phase, len(failed), duplicated, altered, len(gaps), *figures)


def plot(series: dict[str, Stream], file: Path) -> None:
    """The inter-token times of the stream with the longest gap, through a kill; one panel for each set-up."""
    drawn, axes = figure(1, len(series))
    for panel, (name, stream) in zip(axes[0], series.items(), strict=True):
        times = [1e3 * (after - before) for before, after in itertools.pairwise(stream.stamps)]
        panel.plot(range(1, len(times) + 1), times, ".-", markersize=3)
        panel.set_title(f"{name} worker(s): gap {max(times):.0f} ms")
        panel.set_xlabel("chunk")
        panel.set_ylabel("ms since the one before")
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    drawn.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="8,64")
    parser.add_argument("--workers", default="1,1+1,2")
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--prompt-words", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--delivered", type=int, default=100)
    parser.add_argument("--settle", type=float, default=3.0, help="seconds between a restart and the next run")
    parser.add_argument("--cache-dir", type=Path, default=default_cache(), help="keeps compiled graphs")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path, help="where the lines go as well")
    args = parser.parse_args()
    lines: list[Line] = []
    pictures: dict[str, Stream] = {}
    print("workers | streams | killed at | failed | duplicated | altered | gaps | p50 ms | p99 ms | undisturbed ms")
    for name in args.workers.split(","):
        with server(name, args.slots, args.cache_dir) as port:
            for count in map(int, args.streams.split(",")):
                time.sleep(args.settle)
                requests = bodies(count, args.prompt_words, args.tokens)
                whole, _ = asyncio.run(run(port, requests, None))
                for phase in args.phases.split(","):
                    # A worker that has just become ready may still load graphs beside its first requests.
                    time.sleep(args.settle)
                    trigger = Trigger(phase, args.delivered, args.tokens, victim(port))
                    streams, killed_at = asyncio.run(run(port, requests, trigger))
                    lines.append(compare(name, phase, streams, killed_at, whole))
                    print(" | ".join(map(str, dataclasses.astuple(lines[-1]))), flush=True)
                    if phase == "middle" and name not in pictures:
                        pictures[name] = max(streams, key=Stream.gap)
                    wait_until_ready(port)
    if args.plot and pictures:
        plot(pictures, args.plot)
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    sys.exit(1 if any(line.bad for line in lines) else 0)


if __name__ == "__main__":
    main()
