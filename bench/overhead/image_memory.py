"""Growth of a worker that serves images: 10,000 requests to a scripted one, and its resident memory meanwhile.

    python bench/overhead/image_memory.py [--requests 10000] [--seed N]

One scripted worker process, as the gateway starts it, with a small cache of rows. Most requests have a new image of up
to 20 kB, the others one of eight; an eighth is cancelled as soon as it is sent. No more than --streams run at once.

The first quarter is warm-up. After it, resident memory may not grow by more than --tolerance bytes a request; and the
cache of rows may never be over its bound. The exit status is 1 if either did. With --smoke the memory does not count:
a run of a second is all warm-up.
"""

import argparse
import asyncio
import random
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from bench.harness.child_process import wait_for
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from cli.config.launch import worker_command
from protocol.codec import decode_event, encode
from protocol.commands import Cancel, Command, Stop, Submit, Welcome
from protocol.events import Bye, Event, Failed, Finished, Heartbeat, Hello, Ready, Step
from protocol.request import ChatInput, Image, ImagePlace, Limits, Message, Sampling
from workers.process.spec import ScriptedSpec, WorkerSpec

CACHE_BYTES = 16_384
"""Bound of the cache of rows: some of the images of a moment."""
MAX_FILE = 20_000
SAMPLES = 40


@dataclass
class ImageRequests:
    """Makes the requests, and reads what the worker sends."""

    count: int
    streams: int
    rng: random.Random
    sent: int = 0
    ended: int = 0
    cancelled: int = 0
    pid: int = 0
    encoded: int = 0
    hits: int = 0
    most_cached: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list)
    """Ended requests, and the resident bytes of the worker then."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def attach(self, link: Link) -> None:
        self._link = link

    def on_message(self, frames: list[bytes]) -> None:
        for frame in frames:
            self._read(decode_event(frame))

    def _read(self, event: Event) -> None:
        match event:
            case Hello():
                self.pid = event.pid
                self._send(Welcome(event.incarnation))
            case Ready():
                for _ in range(min(self.streams, self.count)):
                    self._next()
            case Step() | Heartbeat():
                gauges = event.gauges
                self.encoded, self.hits = gauges.images_encoded, gauges.image_cache_hits
                self.most_cached = max(self.most_cached, gauges.image_cache_bytes)
            case Finished():
                self.ended += 1
                if self.ended % max(1, self.count // SAMPLES) == 0:
                    self.memory.append((self.ended, psutil.Process(self.pid).memory_info().rss))
                if self.sent < self.count:
                    self._next()
                elif self.ended == self.count:
                    self._send(Stop())
            case Failed():
                raise RuntimeError(f"a request failed: {event}")
            case Bye():
                self.gone.set()

    def _next(self) -> None:
        """Send a request, and cancel some at once."""
        data = self.rng.randbytes(self.rng.randrange(100, MAX_FILE))
        width, height = self.rng.randrange(1, 300), self.rng.randrange(1, 300)
        if self.rng.random() < 1 / 3:
            data, width, height = bytes([self.rng.randrange(8)]) * MAX_FILE, 128, 64
        image = Image("png", width, height, b"\x89PNG" + data)
        message = Message(
            "user", f"Image {self.sent}: what is it?", images=(ImagePlace(0, len(f"Image {self.sent}:")),)
        )
        stream = self.sent
        asked = Submit(stream, f"r{stream}", ChatInput((message,), images=(image,)), Sampling(), Limits(max_tokens=4))
        self.sent += 1
        leaves = self.rng.random() < 1 / 8
        self.cancelled += leaves
        self._send(asked, *((Cancel(stream),) if leaves else ()))

    def _send(self, *commands: Command) -> None:
        self._link.send_nowait([encode(command) for command in commands])

    def growth(self) -> float:
        """Resident bytes per request, from the end of the warm-up to the last sample."""
        (first, before), (last, after) = self.memory[len(self.memory) // 4], self.memory[-1]
        return (after - before) / max(1, last - first)


async def serve(found: ImageRequests) -> None:
    """Send all requests to a worker. Raises RuntimeError if one fails, or the worker does."""
    spec = WorkerSpec(
        "w0",
        "scripted",
        "",
        backend="scripted",
        max_batch_size=8,
        context=1024,
        log_level="error",
        image_cache_bytes=CACHE_BYTES,
        scripted=ScriptedSpec(images=True),
    )
    with LocalEndpoint() as endpoint:
        link = Link.bind(endpoint.address, found.on_message, on_lost=lambda _: found.gone.set())
        found.attach(link)
        command = worker_command(spec)(endpoint.address, 1)
        process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220  before anything is measured
        await wait_for(found.gone, process)
        await asyncio.to_thread(process.wait)
        link.close(0.0)
    if found.ended < found.count:
        raise RuntimeError(f"the worker ended with status {process.returncode} before its requests did")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=at_least(4), default=10_000, help="in all")
    parser.add_argument("--streams", type=at_least(1), default=16, help="at once")
    parser.add_argument("--tolerance", type=above_zero, default=200.0, metavar="BYTES", help="growth per request")
    parser.add_argument("--seed", type=at_least(0), default=None, help="of the images; a new one if not given")
    args = parsed(parser, words, smoke={"requests": 50, "streams": 8, "seed": 1})
    args.seed = secrets.randbelow(1 << 31) if args.seed is None else args.seed
    return args


def main() -> int:
    args = arguments()
    found = ImageRequests(args.requests, args.streams, random.Random(args.seed))
    asyncio.run(serve(found))
    grew = found.growth()
    print(f"{found.ended} requests, {found.cancelled} cancelled, {found.encoded} images encoded, {found.hits} hits")
    print(f"resident memory {found.memory[-1][1] / 1e6:.1f} MB, {grew:+.0f} bytes a request (seed {args.seed})")
    # What prompts still need is kept beyond the bound: at most the images of all slots.
    bound = CACHE_BYTES + 8 * 64 * 32
    print(f"cache of rows: {found.most_cached} bytes at most, {bound} allowed")
    return int(found.most_cached > bound or (not args.smoke and grew > args.tolerance))


if __name__ == "__main__":
    sys.exit(main())
