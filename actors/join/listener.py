"""Listener for remote workers: one TCP port, and a link of its own for each connection.

ZeroMQ's handshake runs from end to end, between the worker and its link. The listener passes bytes on, so it can bound
them, count failures, and close one connection alone. The link's socket is in a private folder, as for a local process.
"""

import asyncio
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import TaskGroup

from actors.actor import Ref
from actors.join.pending_peers import PendingLimits, PendingPeers, source_of
from actors.join.proxy import ProxyEnd
from actors.join.request import JoinRequest
from actors.transport.allow_list import MAX_ALLOWED, AllowList, Listed, WatchedList
from actors.transport.endpoint import EndpointError, LocalEndpoint
from actors.transport.join_tokens import JoinTokens
from actors.transport.keys import KeyFileError, KeyPair, to_z85
from actors.transport.link import CurveKeys, Link
from actors.transport.log_limit import LogLimit
from actors.transport.message import MAX_MESSAGE_BYTES
from actors.transport.rate_limit import PeerRate
from actors.transport.rejections import Rejection, Rejections
from protocol.codec import decode_event
from protocol.errors import ProtocolError
from protocol.events import Hello

MAX_CONNECTIONS = MAX_ALLOWED + PendingLimits().pending
"""All workers of the longest list, and as many pending peers as there may be."""


@dataclass(frozen=True, slots=True)
class JoinLimits(PendingLimits):
    """Limits of connections, authenticated or not."""

    connections: int = MAX_CONNECTIONS
    hello_s: float = 10.0
    """Time from the connection to its `Hello`."""
    opening_bytes: int = 16384
    """Bytes until then: a handshake and a `Hello` are below 2 KiB."""
    incomplete_bytes: int = 2 * MAX_MESSAGE_BYTES
    """Bytes after that without a complete message: libzmq bounds a frame, but not their number."""
    revoke_s: float = 5.0
    """Between two checks for keys that were removed from the allow-list, and for links that were closed while their
    peer takes nothing: such a connection is not read, and does not notice it by itself."""


class JoinListener:
    """Turns connections into join requests. Owns the connections, also of workers that have joined; closing a link
    closes its connection."""

    def __init__(
        self,
        keys: KeyPair,
        allowed: AllowList,
        recipient: Ref[JoinRequest],
        rejections: Rejections,
        limits: JoinLimits | None = None,
        rate: PeerRate | None = None,
        tokens: JoinTokens | None = None,
    ) -> None:
        """`recipient` gets the join requests. A worker with one of the `tokens` adds its key to `allowed`."""
        self._keys = keys
        self._list = allowed
        self._allowed = WatchedList(allowed)
        self._tokens = tokens
        self._problems: Mapping[str, str] = {}
        self._looked: tuple[Listed, Listed] | None = None
        self._recipient = recipient
        self._rejections = rejections
        self._limits = limits or JoinLimits()
        self._rate = rate or PeerRate()
        self._log = structlog.get_logger("join")
        self._lines = LogLimit(time.monotonic)
        self._pending = PendingPeers(self._limits)
        self._connections: set[_RemoteConnection] = set()
        self._group: TaskGroup | None = None
        self._server: asyncio.Server | None = None
        self._shut = False

    async def run(self, listener: socket.socket) -> None:
        """Accept connections until it is shut. Workers that have joined stay until this is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as self._group:
                server = await loop.create_server(lambda: _RemoteConnection(self), sock=listener, start_serving=False)
                self._server = server
                if self._shut:
                    server.close()
                else:
                    await server.start_serving()
                await self._revoke()
        finally:
            self.shut()
            listener.close()
            for each in list(self._connections):
                each.accounted = True
                each.abort()

    def shut(self) -> None:
        """Accept no more connections, now or later, and decline those that have not joined."""
        self._shut = True
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _revoke(self) -> None:
        """Close the connections of keys that were removed from the list or renamed, and of links that are closed."""
        while True:
            await anyio.sleep(self._limits.revoke_s)
            self._close_revoked()
            for each in list(self._connections):
                if each.introduced and each.unlinked:
                    each.close()

    def _close_revoked(self) -> None:
        allowed = self._look()[0].names
        for each in list(self._connections):
            if each.introduced and allowed.get(each.key) != each.name:
                self._log.warning("worker_revoked", worker=each.name, address=each.address)
                each.abort()

    def connected(self, connection: "_RemoteConnection") -> None:
        """Accept or close a new connection."""
        if self._group is None or len(self._connections) >= self._limits.connections:
            self.reject(connection, Rejection.FULL, "there is no room for more connections")
            return
        if not self._pending.admit(connection.source, asyncio.get_running_loop().time()):
            self.reject(connection, Rejection.RATE, "too many connections")
            return
        connection.pending = True
        allowed, tokens = (listed.names for listed in self._look())
        self._connections.add(connection)
        keys = CurveKeys(self._keys.public, self._keys.secret, allowed=frozenset(allowed) | frozenset(tokens))
        self._group.start_soon(connection.open, keys, dict(allowed), self._rate, self._limits)

    def _look(self) -> tuple[Listed, Listed]:
        """Return who may join, and the tokens that can be used. Both are read once in a turn of the event loop: a long
        list takes milliseconds, and many peers may connect in one turn. New problems are logged."""
        if self._looked is None:
            self._looked = self._read()
            asyncio.get_running_loop().call_soon(self._forget_look)
        return self._looked

    def _forget_look(self) -> None:
        self._looked = None

    def _read(self) -> tuple[Listed, Listed]:
        listed, tokens = self._allowed.look(), self._unused()
        refused = {**listed.refused, **tokens.refused}
        for file, problem in refused.items():
            if self._problems.get(file) != problem:
                self._log.error("allow_list_refused", file=file, problem=problem)
        self._problems = refused
        return listed, tokens

    def _unused(self) -> Listed:
        """Read the tokens that can be used. If the system does not let them be read, there are none."""
        if self._tokens is None:
            return Listed()
        try:
            return self._tokens.read()
        except KeyFileError as error:
            return Listed(refused={self._tokens.folder.name: str(error)})

    def enrol(self, connection: "_RemoteConnection", hello: Hello, link: Link) -> str | None:
        """Use up the join token with which a worker has connected: its own key may connect from now on, and the one
        that had the name may not. Returns the name; None if the worker was refused."""
        assert self._tokens is not None, "its key is that of a token"
        try:
            name = self._tokens.redeem(link.peer_key, hello.key, self._list)
        except KeyFileError as error:
            connection.accounted = True
            self._rejections.count(Rejection.KEY)
            self._log.warning("enrolment_refused", address=connection.address, reason=str(error))
            JoinRequest("", connection.address, hello, link).decline(str(error))
            return None
        self._log.info("worker_enrolled", worker=name, address=connection.address, key=hello.key)
        self._forget_look()
        self._close_revoked()
        return name

    def reject(self, connection: "_RemoteConnection", why: Rejection | None, text: str) -> None:
        """Close a connection. `why` is None if the fault is not the peer's."""
        connection.accounted = True
        if why is not None:
            self._rejections.count(why)
        left_out = self._lines.take("" if why is None else why.value)
        if left_out is not None:
            more = {"left_out": left_out} if left_out else {}
            self._log.info("connection_refused", address=connection.address, reason=text, **more)
        connection.abort()

    def failed(self, connection: "_RemoteConnection", why: Rejection) -> None:
        """Count the failure of a connection, once, or a rejection by its link."""
        if connection.accounted and not connection.introduced:
            return
        connection.accounted = True
        self._rejections.count(why)

    def introduce(self, connection: "_RemoteConnection", request: JoinRequest) -> None:
        """Pass on the join request of a worker whose `Hello` has come."""
        self._release(connection)
        if self._shut:
            self._rejections.count(Rejection.TAKEN)
            request.decline("the gateway is shutting down")
            return
        request.hand_to(self._recipient)

    def gone(self, connection: "_RemoteConnection") -> None:
        self._connections.discard(connection)
        self._release(connection)

    def _release(self, connection: "_RemoteConnection") -> None:
        if connection.pending:
            connection.pending = False
            self._pending.release(connection.source)


class _RemoteConnection(ProxyEnd):
    """A connection from another machine, from its first byte to its last."""

    def __init__(self, listener: JoinListener) -> None:
        super().__init__(self._ended)
        self._listener = listener
        self._link: Link | None = None
        self._names: dict[str, str] = {}
        self._limits = JoinLimits()
        self._messages = 0
        self._incomplete = 0
        self._deadline: asyncio.TimerHandle | None = None
        self.address = ""
        self.source = ""
        self.pending = False
        """True while it counts as a pending peer."""
        self.introduced = False
        """True after its `Hello`: its link has another owner."""
        self.accounted = False
        """True once its end before joining is logged and counted."""
        self.key = ""

    @property
    def name(self) -> str:
        return self._names.get(self.key, "")

    @property
    def unlinked(self) -> bool:
        """True when its link was closed or lost."""
        return self._link is None or self._link.closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = transport.get_extra_info("peername", ("", 0))[:2]
        self.address, self.source = f"{host}:{port}", source_of(host)
        self._listener.connected(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.introduced:
            if self.received > (bound := self._limits.opening_bytes):
                self._listener.reject(self, Rejection.HANDSHAKE, f"more than {bound} bytes before its Hello")
            return
        assert self._link is not None
        if (messages := self._link.received + self._link.dropped) != self._messages:
            self._messages, self._incomplete = messages, 0
        self._incomplete += len(data)
        if self._incomplete > (bound := self._limits.incomplete_bytes):
            self._listener.reject(self, Rejection.MESSAGE, f"more than {bound} bytes, and no message among them")

    async def open(self, keys: CurveKeys, names: dict[str, str], rate: PeerRate, limits: JoinLimits) -> None:
        """Make its link, and connect the two."""
        loop = asyncio.get_running_loop()
        self._names, self._limits = names, limits
        self._deadline = loop.call_later(limits.hello_s, self._too_late)
        try:
            with LocalEndpoint() as endpoint:
                self._link = Link.bind(
                    endpoint.address,
                    self._on_message,
                    on_lost=self._lost,
                    keys=keys,
                    rate=rate,
                    on_rejected=lambda why: self._listener.failed(self, why),
                )
                _, inner = await loop.create_unix_connection(lambda: ProxyEnd(lambda: None), str(endpoint.path))
        except (EndpointError, OSError) as error:
            self._listener.reject(self, None, str(error))
            return
        if self.ended:
            inner.abort()
        else:
            self.join(inner)

    def _on_message(self, frames: list[bytes]) -> None:
        """Take the first message, a `Hello`. Later ones are for the link's next owner."""
        link = self._link
        assert link is not None
        if self.introduced:
            link.close(0.0)  # it did not wait for its Welcome
            self._listener.reject(self, Rejection.FRAME, "it sent more before its Welcome")
            return
        try:
            hello = decode_event(frames[0])
        except ProtocolError as error:
            self._listener.reject(self, Rejection.FRAME, str(error))
            return
        if len(frames) != 1 or not isinstance(hello, Hello):
            self._listener.reject(self, Rejection.FRAME, "its first message was not a Hello")
            return
        self.key = link.peer_key
        if self.key not in self._names:
            name = self._listener.enrol(self, hello, link)
            if name is None:
                return
            self.key = to_z85(hello.key)
            self._names = {self.key: name}
        elif hello.key:
            self._listener.reject(self, Rejection.FRAME, "its Hello has a key, and it has no join token")
            return
        self.introduced = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.introduce(self, JoinRequest(self.name, self.address, hello, link))

    def _lost(self, reason: str) -> None:
        """Close the connection of a link that ended before it was taken over."""
        self.close()

    def _too_late(self) -> None:
        self._listener.reject(self, Rejection.SILENT, "it did not say Hello in time")

    def _ended(self) -> None:
        if not self.introduced and not self.accounted:
            self._listener.failed(self, Rejection.HANDSHAKE)  # it closed first, or was reset before its bytes were read
        self._listener.gone(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._link is not None and not self.introduced:
            self._link.close(0.0)
