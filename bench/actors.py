"""What the actor system and its link cost, beside the limit and beside others, in one interleaved run.

    python bench/actors.py [--rounds 5] [--trips 2000] [--frames 4000]

Local: messages that one actor handles a second (`tell`), and answers one asker gets a second (`ask`).
Across processes (two, a fresh child for each figure, the same bytes for all):

  trip_us     microseconds for 32 bytes there and back, p50 of each round
  tokens_s    token events a second: the child encodes `Step` frames of 64 deltas, one message each; the parent decodes
              them. The clock runs from the first frame's arrival to the last's.

`pyzmq` blocks in PAIR sockets and is the limit; `pyzmq reader` is the least that an asyncio process can do with one;
`pyzmq asyncio` is pyzmq's own asyncio socket; `pipe` is multiprocessing's. `xoscar` (an actor framework) is measured
where it can be imported. Rounds of all alternate; medians over the rounds are printed.
"""

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import zmq
import zmq.asyncio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.actor import Actor, ReplyTo
from actors.system import ActorSystem
from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from bench.command_line import at_least, command_line
from protocol.codec import decode_event, encode
from protocol.events import Delta, Gauges, Step

SMALL = b"x" * 32
GO, BYE = b"go", b"bye"
DELTAS = 64
STEP = Step(
    deltas=tuple(Delta(stream=10_000 + row, tokens=(1_000 + row,), text=" token") for row in range(DELTAS)),
    gauges=Gauges(slots_active=DELTAS, kv_tokens=12_345, steps=54_321, decode_tokens=3_456_789),
)
WARM_UP = 200

Figures = dict[str, float]


def count(frame: bytes) -> int:
    """Decode a step and count its token events."""
    event = decode_event(frame)
    assert isinstance(event, Step)
    return len(event.deltas)


def report(times: list[float], tokens: int, seconds: float) -> Figures:
    return {"trip_us": statistics.median(times[WARM_UP:]) * 1e6, "tokens_s": tokens / seconds}


def child(kind: str, address: str, frames: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, __file__, "--child", kind, "--address", address, "--frames", str(frames)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


class Meter:
    """The parent's side as a machine: what to send after each message; None when it is over."""

    def __init__(self, trips: int, frames: int) -> None:
        self._trips = trips + WARM_UP
        self._left = frames
        self._times: list[float] = []
        self._sent = 0.0
        self._first = 0.0
        self._tokens = 0
        self.figures: Figures = {}

    def heard(self, frame: bytes) -> bytes | None:
        now = time.perf_counter()
        if self._sent and len(self._times) < self._trips:
            self._times.append(now - self._sent)
        if len(self._times) < self._trips:
            self._sent = time.perf_counter()
            return SMALL
        if self._sent:
            self._sent = 0.0
            return GO
        if self._first:
            self._tokens += count(frame)
        else:
            self._first = now
        self._left -= 1
        if self._left:
            return b""
        self.figures = report(self._times, self._tokens, time.perf_counter() - self._first)
        return None


# ---- the link ----


async def link_parent(trips: int, frames: int) -> Figures:
    meter, over = Meter(trips, frames), asyncio.Event()
    with LocalEndpoint() as endpoint:

        def heard(message: list[bytes]) -> None:
            for frame in message:
                answer = meter.heard(frame)
                if answer:
                    link.send_nowait([answer])
                elif answer is None:
                    over.set()

        link = Link.bind(endpoint.address, heard)
        with child("link", endpoint.address, frames) as process:
            await over.wait()
            link.send_nowait([BYE])
            await asyncio.to_thread(process.wait)
            link.close(0)
    return meter.figures


async def link_child(address: str, frames: int) -> None:
    over, go = asyncio.Event(), asyncio.Event()

    def heard(message: list[bytes]) -> None:
        for frame in message:
            if frame == GO:
                go.set()
            elif frame == BYE:
                over.set()
            else:
                link.send_nowait([frame])

    link = Link.connect(address, heard)
    link.send_nowait([SMALL])
    await go.wait()
    for _ in range(frames):
        await link.send([encode(STEP)])
    await over.wait()
    link.close()


# ---- bare pyzmq, blocking: the limit ----


def zmq_parent(trips: int, frames: int) -> Figures:
    meter = Meter(trips, frames)
    with LocalEndpoint() as endpoint, zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.bind(endpoint.address)
        with child("zmq", endpoint.address, frames):
            while (answer := meter.heard(sock.recv())) is not None:
                if answer:
                    sock.send(answer)
            sock.send(BYE)
    return meter.figures


def zmq_child(address: str, frames: int) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.connect(address)
        sock.send(SMALL)
        while (frame := sock.recv()) != GO:
            sock.send(frame)
        for _ in range(frames):
            sock.send(encode(STEP))
        sock.recv()


# ---- bare pyzmq on asyncio ----


async def zmq_asyncio_parent(trips: int, frames: int) -> Figures:
    meter = Meter(trips, frames)
    with LocalEndpoint() as endpoint, zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.bind(endpoint.address)
        with child("zmq_asyncio", endpoint.address, frames) as process:
            while (answer := meter.heard(await sock.recv())) is not None:
                if answer:
                    await sock.send(answer)
            await sock.send(BYE)
            await asyncio.to_thread(process.wait)
    return meter.figures


async def zmq_asyncio_child(address: str, frames: int) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.connect(address)
        await sock.send(SMALL)
        while (frame := await sock.recv()) != GO:
            await sock.send(frame)
        for _ in range(frames):
            await sock.send(encode(STEP))
        await sock.recv()


# ---- bare pyzmq read by a callback of the loop: what asyncio itself costs ----


class Reader:
    """The least that reads a socket's edge-triggered descriptor on asyncio: no bounds, no batches, no loss."""

    def __init__(self, sock: "zmq.Socket[bytes]", heard: Callable[[bytes], bytes | None]) -> None:
        self._sock = sock
        self._heard = heard
        self.over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self.drain)
        self.drain()

    def drain(self) -> None:
        while not self.over.is_set() and int(self._sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            answer = self._heard(self._sock.recv(zmq.NOBLOCK))
            if answer:
                self._sock.send(answer, zmq.NOBLOCK)
            elif answer is None:
                self._loop.remove_reader(self._sock.fileno())
                self.over.set()


async def reader_parent(trips: int, frames: int) -> Figures:
    meter = Meter(trips, frames)
    with LocalEndpoint() as endpoint, zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.bind(endpoint.address)
        with child("reader", endpoint.address, frames) as process:
            await Reader(sock, meter.heard).over.wait()
            sock.send(BYE)
            await asyncio.to_thread(process.wait)
    return meter.figures


async def reader_child(address: str, frames: int) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.connect(address)
        sock.send(SMALL)
        await Reader(sock, lambda frame: None if frame == GO else frame).over.wait()
        for _ in range(frames):
            sock.send(encode(STEP))
        sock.recv()


# ---- a multiprocessing pipe ----


def pipe_parent(trips: int, frames: int) -> Figures:
    meter = Meter(trips, frames)
    ours, theirs = socket.socketpair()  # what multiprocessing.Pipe() is made of
    command = [sys.executable, __file__, "--child", "pipe", "--address", str(theirs.fileno()), "--frames", str(frames)]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]), Connection(ours.detach()) as pipe:
        theirs.close()
        while (answer := meter.heard(pipe.recv_bytes())) is not None:
            if answer:
                pipe.send_bytes(answer)
        pipe.send_bytes(BYE)
    return meter.figures


def pipe_child(address: str, frames: int) -> None:
    with Connection(int(address)) as pipe:
        pipe.send_bytes(SMALL)
        while (frame := pipe.recv_bytes()) != GO:
            pipe.send_bytes(frame)
        for _ in range(frames):
            pipe.send_bytes(encode(STEP))
        pipe.recv_bytes()


# ---- actors ----


@dataclass(frozen=True, slots=True)
class Total:
    """Ask for the sum so far."""

    reply: ReplyTo[int]


class Adder(Actor[int | Total]):
    def __init__(self) -> None:
        self.total = 0

    def handle(self, message: int | Total) -> None:
        if isinstance(message, Total):
            message.reply.send(self.total)
        else:
            self.total += message


async def local_figures(messages: int) -> Figures:
    async with ActorSystem() as system:
        ref = system.spawn("adder", Adder())
        await ref.ask(Total, timeout=60)
        began = time.perf_counter()
        for _ in range(messages // 1000):
            for _ in range(1000):
                ref.tell(1)
            await ref.ask(Total, timeout=60)
        told = time.perf_counter()
        for _ in range(messages // 10):
            await ref.ask(Total, timeout=60)
        asked = time.perf_counter()
        ref.stop()
    return {"tell_s": messages / (told - began), "ask_s": messages / 10 / (asked - told)}


def xoscar_parent(module: Any) -> Callable[[int, int], Awaitable[Figures]]:
    """The same work as calls of actors in two processes; the child pushes with 64 calls in flight."""

    class Sink(module.Actor):  # type: ignore[misc]
        def __init__(self, frames: int) -> None:
            self.left, self.first, self.tokens = frames, 0.0, 0

        async def push(self, frame: bytes) -> None:
            if self.first:
                self.tokens += count(frame)
            else:
                self.first = time.perf_counter()
            self.left -= 1

        async def seconds(self) -> tuple[int, float]:
            return self.tokens, time.perf_counter() - self.first

    class Source(module.Actor):  # type: ignore[misc]
        async def echo(self, frame: bytes) -> bytes:
            return frame

        async def send(self, sink: Any, frames: int) -> None:
            for _ in range(frames // 64):
                await asyncio.gather(*(sink.push(encode(STEP)) for _ in range(64)))

    async def measure(trips: int, frames: int) -> Figures:
        pool = await module.create_actor_pool("127.0.0.1", n_process=1)
        async with pool:
            inner = module.allocate_strategy.ProcessIndex(1)
            outer = module.allocate_strategy.ProcessIndex(0)
            source = await module.create_actor(Source, address=pool.external_address, allocate_strategy=inner)
            sink = await module.create_actor(Sink, frames, address=pool.external_address, allocate_strategy=outer)
            times = []
            for _ in range(trips + WARM_UP):
                began = time.perf_counter()
                await source.echo(SMALL)
                times.append(time.perf_counter() - began)
            await source.send(sink, frames)
            return report(times, *await sink.seconds())

    return measure


async def xoscar_local(module: Any, asks: int) -> Figures:
    class Counter(module.Actor):  # type: ignore[misc]
        total = 0

        async def add(self, number: int) -> int:
            self.total += number
            return self.total

    pool = await module.create_actor_pool("127.0.0.1", n_process=0)
    async with pool:
        ref = await module.create_actor(Counter, address=pool.external_address)
        began = time.perf_counter()
        for _ in range(asks):
            await ref.add(1)
        return {"ask_s": asks / (time.perf_counter() - began)}


# ---- the run ----


def contestants(trips: int, frames: int) -> dict[str, Callable[[], Figures]]:
    runs: dict[str, Callable[[], Figures]] = {
        "local actors": lambda: anyio.run(local_figures, 20_000),
        "baton link": lambda: anyio.run(link_parent, trips, frames),
        "pyzmq": lambda: zmq_parent(trips, frames),
        "pyzmq asyncio": lambda: asyncio.run(zmq_asyncio_parent(trips, frames)),
        "pyzmq reader": lambda: asyncio.run(reader_parent(trips, frames)),
        "pipe": lambda: pipe_parent(trips, frames),
    }
    try:
        import xoscar
    except ImportError as error:
        print(f"xoscar is left out: {error} (pip install xoscar into this environment)", file=sys.stderr)
    else:
        across = xoscar_parent(xoscar)
        runs["xoscar"] = lambda: asyncio.run(_await(across(trips, frames // 10)))
        runs["xoscar local"] = lambda: asyncio.run(xoscar_local(xoscar, 2000))
    return runs


async def _await(figures: Awaitable[Figures]) -> Figures:
    return await figures


def show(results: dict[str, list[Figures]]) -> None:
    columns = {"trip_us": "round trip, us", "tokens_s": "tokens/s", "tell_s": "tell/s", "ask_s": "ask/s"}
    medians = {
        name: {column: statistics.median(run[column] for run in runs) for column in runs[0]}
        for name, runs in results.items()
    }
    limits = ("pyzmq", "pyzmq reader", "pyzmq asyncio")
    titles = [*columns.values(), *(f": {name}" for name in limits)]
    print(f"{'':14}" + "".join(f"{title:>16}" for title in titles))
    for name, figures in medians.items():
        cells = "".join(f"{figures[column]:16,.0f}" if column in figures else " " * 16 for column in columns)
        if trip := figures.get("trip_us"):
            cells += "".join(f"{trip / medians[limit]['trip_us']:15.2f}x" for limit in limits)
        print(f"{name:14}{cells}")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each figure; medians are printed")
    parser.add_argument("--trips", type=at_least(1), default=2000, help="round trips of one run")
    parser.add_argument("--frames", type=at_least(1), default=4000, help="frames of one run")
    parser.add_argument("--child", choices=["link", "zmq", "zmq_asyncio", "reader", "pipe"], help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.child:
        case "link":
            asyncio.run(link_child(options.address, options.frames))
        case "zmq":
            zmq_child(options.address, options.frames)
        case "zmq_asyncio":
            asyncio.run(zmq_asyncio_child(options.address, options.frames))
        case "reader":
            asyncio.run(reader_child(options.address, options.frames))
        case "pipe":
            pipe_child(options.address, options.frames)
        case None:
            runs = contestants(options.trips, options.frames)
            results: dict[str, list[Figures]] = {name: [] for name in runs}
            for _ in range(options.rounds):
                for name, run in runs.items():
                    results[name].append(run())
            print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, pyzmq {zmq.__version__}", end=", ")
            print(f"libzmq {zmq.zmq_version()}, {len(encode(STEP))} bytes a step; medians of {options.rounds} rounds")
            show(results)


if __name__ == "__main__":
    main()
