"""Byte link: a TCP proxy with faults, for systems without network namespaces.

Neither side of TCP sees lost or reordered bytes: loss is a stall here, and a partition holds all bytes back, as well as
new connections and the ends of old ones, until it is healed.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Self

from bench.networks.impairment import Direction, Impairment

PIECE = 1448
"""Bytes that are delayed together: a TCP segment."""
WINDOW = 256
"""Pieces on their way in one direction; then the sender has to wait, as for a TCP window."""
RESEND_S = 0.2
"""The stall of a lost piece: the least time after which TCP sends it again."""


class ByteLink:
    """Passes the connections to one port on to another one of this machine."""

    def __init__(self, target_port: int, impairment: Impairment | None = None, seed: int = 1) -> None:
        self.port = 0
        self.to_worker = Direction(impairment or Impairment(), seed)
        self.to_gateway = Direction(impairment or Impairment(), seed + 1)
        self.said: list[bytearray] = []
        """The bytes that the worker's side sent in each connection."""
        self._target_port = target_port
        self._drips: dict[Direction, float] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    def set(self, impairment: Impairment) -> None:
        """Change the impairment of both directions."""
        self.to_worker.impairment = self.to_gateway.impairment = impairment

    def interrupt(self, *, to_worker: bool = True, to_gateway: bool = True) -> None:
        """Hold everything of these directions back from now on."""
        self.to_worker.up, self.to_gateway.up = not to_worker, not to_gateway
        self._changed.set()
        self._changed = asyncio.Event()

    def heal(self) -> None:
        """Let everything through again, and first what was held back."""
        self.interrupt(to_worker=False, to_gateway=False)

    def drip(self, pause_s: float, *, to_worker: bool = True, to_gateway: bool = True) -> None:
        """Send one byte at a time in these directions, with a pause after each; 0 ends that."""
        self._drips = {self.to_worker: pause_s * to_worker, self.to_gateway: pause_s * to_gateway}

    def reset(self) -> None:
        """Reset all connections, on both sides."""
        for writer in self._open:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        await _end(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        said = bytearray()
        self.said.append(said)
        other: asyncio.StreamWriter | None = None
        try:
            await self._until_up(self.to_gateway)
            answers, other = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._open.add(other)
            ways = (
                asyncio.ensure_future(self._carry(reader, other, self.to_gateway, said)),
                asyncio.ensure_future(self._carry(answers, writer, self.to_worker, None)),
            )
            try:
                await asyncio.gather(*ways)
            finally:
                await _end(ways)
        except OSError:
            pass  # one side has reset its connection; the other one is closed below
        finally:
            for each in filter(None, (writer, other)):
                self._open.discard(each)
                each.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction, said: bytearray | None
    ) -> None:
        """Pass on the bytes of one direction, and their end."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW)
        sender = asyncio.ensure_future(self._send(queue, writer, way))
        try:
            with contextlib.suppress(OSError):  # a reset is an end, too
                while piece := await reader.read(PIECE):
                    if said is not None:
                        said += piece
                    await queue.put((way.passes_at(len(piece), loop.time(), RESEND_S), piece))
            await queue.put((way.passes_at(0, loop.time(), RESEND_S), b""))
            await sender
        finally:
            await _end([sender])

    async def _send(
        self, queue: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter, way: Direction
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            at, piece = await queue.get()
            await asyncio.sleep(max(0.0, at - loop.time()))
            await self._until_up(way)
            if not piece:
                writer.transport.abort()
                return
            size = 1 if self._drips.get(way) else len(piece)
            for start in range(0, len(piece), size):
                writer.write(piece[start : start + size])
                await writer.drain()
                await asyncio.sleep(self._drips.get(way, 0.0))

    async def _until_up(self, way: Direction) -> None:
        while not way.up:
            await self._changed.wait()


async def _end(tasks: "Iterable[asyncio.Future[None]]") -> None:
    """Cancel tasks, and wait for their ends."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
