"""The way between a client and the gateway, which breaks when the test wants it to."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream


class Way:
    """Carries bytes to `port` and back, on a port of its own. The first `cuts` connections that carry `mark` to the
    client break right behind it."""

    def __init__(self, port: int, mark: bytes, cuts: int) -> None:
        self._target = port
        self._mark = mark
        self.cuts = cuts
        """The number of breaks to come."""
        self.port = 0

    async def run(self, listener: anyio.abc.Listener[SocketStream]) -> None:
        await listener.serve(self._carry)

    async def _carry(self, client: SocketStream) -> None:
        server = await anyio.connect_tcp("127.0.0.1", self._target)
        async with client, server, anyio.create_task_group() as group:
            group.start_soon(self._up, client, server, group.cancel_scope)
            await self._down(client, server)
            group.cancel_scope.cancel()

    async def _up(self, client: SocketStream, server: SocketStream, scope: anyio.CancelScope) -> None:
        try:
            async for data in client:
                await server.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        scope.cancel()

    async def _down(self, client: SocketStream, server: SocketStream) -> None:
        seen = b""
        try:
            async for data in server:
                seen += data
                at = seen.find(self._mark)
                if self.cuts and at >= 0:
                    self.cuts -= 1
                    rest = len(seen) - at - len(self._mark)
                    await client.send(data[: len(data) - rest])
                    for end in (client, server):
                        raw = end.extra(SocketAttribute.raw_socket)
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    return
                await client.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


@asynccontextmanager
async def breaking_way(port: int, mark: bytes, cuts: int = 1) -> AsyncIterator[Way]:
    way = Way(port, mark, cuts)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    way.port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(way.run, listener)
        yield way
        group.cancel_scope.cancel()
