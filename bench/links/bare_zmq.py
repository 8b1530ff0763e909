"""pyzmq alone: blocking, which is the limit, with its own asyncio socket, and read by a callback of the event loop."""

import asyncio
from collections.abc import Callable

import zmq
import zmq.asyncio

from actors.transport.endpoint import LocalEndpoint
from bench.harness.child_process import wait_for
from bench.links.meter import BYE, GO, SMALL, STEP, TIMEOUT_MS, ChildSpec, Figures, Meter
from protocol.codec import encode


def zmq_parent(trips: int, frames: int) -> Figures:
    meter = Meter(trips, frames)
    with LocalEndpoint() as endpoint, zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.rcvtimeo = TIMEOUT_MS
        sock.linger = 0
        sock.bind(endpoint.address)
        with ChildSpec("zmq", endpoint.address, frames).start() as process:
            while (answer := meter.receive(sock.recv())) is not None:
                if answer:
                    sock.send(answer)
            sock.send(BYE)
            process.wait()
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


async def zmq_asyncio_parent(trips: int, frames: int) -> Figures:
    meter = Meter(trips, frames)
    with LocalEndpoint() as endpoint, zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.rcvtimeo = TIMEOUT_MS
        sock.linger = 0
        sock.bind(endpoint.address)
        with ChildSpec("zmq_asyncio", endpoint.address, frames).start() as process:
            while (answer := meter.receive(await sock.recv())) is not None:
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


class SocketReader:
    """The minimum that reads a socket's edge-triggered descriptor on asyncio: no bounds, no batches, no monitoring."""

    def __init__(self, sock: "zmq.Socket[bytes]", receive: Callable[[bytes], bytes | None]) -> None:
        self._sock = sock
        self._receive = receive
        self.over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self.drain)
        self.drain()

    def drain(self) -> None:
        while not self.over.is_set() and int(self._sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            answer = self._receive(self._sock.recv(zmq.NOBLOCK))
            if answer:
                self._sock.send(answer, zmq.NOBLOCK)
            elif answer is None:
                self._loop.remove_reader(self._sock.fileno())
                self.over.set()


async def reader_parent(trips: int, frames: int) -> Figures:
    meter = Meter(trips, frames)
    with LocalEndpoint() as endpoint, zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.linger = 0
        sock.bind(endpoint.address)
        with ChildSpec("reader", endpoint.address, frames).start() as process:
            await wait_for(SocketReader(sock, meter.receive).over, process)
            sock.send(BYE)
            await asyncio.to_thread(process.wait)
    return meter.figures


async def reader_child(address: str, frames: int) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as sock:
        sock.connect(address)
        sock.send(SMALL)
        await SocketReader(sock, lambda frame: None if frame == GO else frame).over.wait()
        for _ in range(frames):
            sock.send(encode(STEP))
        sock.recv()
