"""The listening sockets of one gateway: a TCP port, a Unix socket, or both."""

import socket
from collections.abc import Callable

import anyio
from starlette.types import ASGIApp

from gateway.http.conventions import Application
from gateway.http.listener import BindError, Listener
from gateway.http.server import listen, serve
from gateway.http.tls import Tls
from gateway.http.unix_socket import listen_unix
from gateway.settings import GatewaySettings


class Listeners:
    """The sockets, which share one bound of connections."""

    def __init__(self, first: Listener, second: Listener | None = None) -> None:
        """`first`: the TCP port, or the Unix socket of a gateway without one. `second`: a Unix socket beside a port."""
        self.first = first
        self.every = [first] if second is None else [first, second]
        for each in self.every[1:]:
            each.count_with(first)

    @property
    def unix(self) -> Listener | None:
        """The Unix socket, if there is one."""
        return self.every[-1] if self.every[-1].family == socket.AF_UNIX else None

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of the first socket; of a Unix socket `unix:PATH` and 0."""
        if self.first.family == socket.AF_UNIX:
            return f"unix:{self.first.path}", 0
        host, port = self.first.getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        """Accepted ones that are open, of all sockets."""
        return self.first.connections

    def keep_from(self, number: int, on_refused: Callable[[], None]) -> None:
        """See `Acceptor.keep_from`."""
        for each in self.every:
            each.keep_from(number, on_refused)

    def own_files(self) -> None:
        """See `Listener.own_file`."""
        for each in self.every:
            each.own_file()

    def retire(self, within_s: float | None = None) -> None:
        """See `Listener.retire`."""
        for each in self.every:
            each.retire(within_s)

    def stop(self) -> None:
        """See `Listener.stop`."""
        for each in self.every:
            each.stop()

    def close(self) -> None:
        """Close the sockets that no server has closed, and remove the file of a Unix socket."""
        for each in self.every:
            each.close()
            each.remove_file()

    async def serve(
        self,
        app: Application,
        settings: GatewaySettings,
        *,
        shutdown: anyio.Event,
        grace_s: Callable[[], float],
        probes: ASGIApp | None = None,
    ) -> None:
        """Serve `app` on all sockets. See `gateway.http.server.serve`."""

        async def serve_one(listener: Listener) -> None:
            await serve(app, settings, shutdown=shutdown, listener=listener, grace_s=grace_s, probes=probes)

        try:
            async with anyio.create_task_group() as group:
                for each in self.every:
                    group.start_soon(serve_one, each)
        finally:
            self.close()


def listen_on_all(settings: GatewaySettings, tls: Tls | None) -> Listeners:
    """Listen on all sockets of the settings, or on none. Raises `BindError`."""
    if not settings.tcp:
        return Listeners(listen_unix(settings))
    first = listen(settings, tls)
    try:
        return Listeners(first, listen_unix(settings) if settings.unix_socket else None)
    except BindError:
        first.close()
        raise
