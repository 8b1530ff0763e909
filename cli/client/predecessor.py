"""The client of the gateway whose port this one takes over: its HTTP interface and its listening socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
import structlog

from actors.process.descriptors import NoDescriptors, check_free
from actors.transport.endpoint import find_endpoints
from cli.client.predecessor_connection import NoAnswer, PredecessorConnection, reachable_as
from cli.client.server_url import url_of
from cli.config.settings import Settings
from gateway.fleet.succession import purpose_of
from gateway.fleet.take_over import TakeOverFailed
from gateway.streaming.peer import PeerUnreachable

TIMEOUT_S = 10.0
POLL_S = 0.5
"""Between two checks whether the predecessor still runs."""
SPARE = 64
"""File descriptors that must be free for another connection to it, since the workers need some."""
_log = structlog.get_logger("cli.client.predecessor")


class HttpAnswer:
    """Implements `gateway.streaming.peer.PeerResponse`."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self._response = response

    @property
    def retry_after(self) -> str:
        """The `Retry-After` header, or an empty string."""
        return str(self._response.headers.get("retry-after", ""))

    @property
    def content_type(self) -> str:
        """The `Content-Type` header, or an empty string."""
        return str(self._response.headers.get("content-type", ""))

    @property
    def anywhere(self) -> bool:
        """The stream can be resumed at each gateway that shares it."""
        return bool(self._response.headers.get("x-stream-gateways") == "any")

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises `PeerUnreachable`."""
        try:
            async for part in self._response.aiter_raw():
                yield part
        except httpx.HTTPError as error:
            raise PeerUnreachable(str(error) or type(error).__name__) from error


class HttpPredecessor:
    """Implements `gateway.fleet.take_over.Predecessor` for a gateway of this user on the address of these settings.

    It is found by its private socket, not by its port, and gets no key: any process could listen on the port.
    """

    def __init__(self, settings: Settings, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._silence_s = timeout_s + settings.request_timeout_s
        self._unix = str(Path(settings.unix_socket).expanduser().absolute()) if settings.unix_socket else ""
        self._host, self._port = (settings.host, settings.port) if settings.tcp else ("", 0)
        self._url = url_of(settings)
        self._connection: PredecessorConnection | None = None
        self.pid = 0
        self._http = ""
        self._serves = ""
        """The path of its Unix socket."""
        self._client: httpx.AsyncClient | None = None
        """Connects to its private HTTP interface."""

    async def check(self) -> int:
        """Check that the predecessor would hand over. Changes nothing. Returns its process id; 0 if the port is free.
        Raises `TakeOverFailed`."""
        found = await self._find()
        if found is None:
            return 0
        await found.aclose()
        return found.pid

    async def meet(self) -> int | None:
        """Receive its listening socket, a descriptor that the caller owns; None if the port is free.

        Raises `TakeOverFailed`.
        """
        self._connection = connection = await self._find()
        if connection is None:
            return None
        try:
            reply, descriptor = await connection.take(self._timeout_s)
        except NoAnswer as error:
            await connection.aclose()
            self._connection = None
            raise self._failed(error) from error
        self.pid, self._http, self._serves = reply.pid, reply.http, reply.unix
        # One connection for each stream that it keeps, and their number is unknown.
        transport = httpx.AsyncHTTPTransport(uds=reply.http, limits=httpx.Limits(max_connections=None))
        timeout = httpx.Timeout(self._timeout_s, read=self._silence_s)
        self._client = httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=timeout, trust_env=False
        )
        return descriptor

    async def meet_unix(self) -> int | None:
        """Receive the Unix socket that it serves beside its port, if it is on the path of the settings. Raises
        `TakeOverFailed`."""
        if self._connection is None or not self._unix or self._serves != self._unix:
            return None
        try:
            return await self._connection.take_unix(self._unix, self._timeout_s)
        except NoAnswer as error:
            raise self._failed(error) from error

    async def _find(self) -> PredecessorConnection | None:
        """Connect to the gateway on the port, which would hand over; None if the port is free. Raises
        `TakeOverFailed`."""
        hosts = await reachable_as(self._host) if self._host else set()
        for path in find_endpoints(purpose_of(self._port)):
            connection = await PredecessorConnection.open(path)
            if connection is None:
                continue
            try:
                reply = await connection.ask("check", self._timeout_s)
            except NoAnswer:
                await connection.aclose()
                continue
            if reply.host in hosts and reply.port == self._port if hosts else reply.unix == self._unix:
                if not reply.problem:
                    connection.pid = reply.pid
                    return connection
                await connection.aclose()
                raise self._failed(reply.problem)
            await connection.aclose()
        if await (_is_taken(self._url, self._timeout_s) if hosts else _listens(self._unix)):
            raise self._failed(
                "it is not a Baton of this user that can be taken over; stop it, or choose another --port. (Both must "
                "have the same $XDG_RUNTIME_DIR, or else the same directory for temporary files)"
            )
        return None

    def _failed(self, problem: object) -> TakeOverFailed:
        return TakeOverFailed(f"the server on {self._url} does not hand over: {str(problem) or type(problem).__name__}")

    async def relieve(self) -> bool:
        """Tell the predecessor that this gateway accepts connections now. Return whether it leaves. Logs an error, and
        does not raise it."""
        if self._connection is None:
            return False
        try:
            reply = await self._connection.ask("leave", self._timeout_s)
            problem = reply.problem
        except NoAnswer as error:
            problem = str(error)
        await self._connection.aclose()
        if problem:
            _log.error("predecessor_stays", predecessor=self.pid, problem=problem)
        else:
            _log.info("took_over", predecessor=self.pid)
        return not problem

    async def gone(self) -> None:
        """Wait until the predecessor has ended; return at once if there is none."""
        while self._http and await _listens(self._http):  # noqa: ASYNC110  another process
            await anyio.sleep(POLL_S)

    @asynccontextmanager
    async def ask(self, method: str, target: str, headers: dict[str, str]) -> AsyncIterator[HttpAnswer]:
        """Send a request for a stream that the predecessor keeps. Raises `PeerUnreachable`."""
        if self._client is None:
            raise PeerUnreachable("there is no predecessor")
        try:
            check_free(SPARE)
        except NoDescriptors as error:
            raise PeerUnreachable(str(error)) from error
        # Headers are sent as bytes, since those of a client need not be ASCII.
        sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        request = self._client.build_request(method, target, headers=sent)
        try:
            with anyio.fail_after(self._timeout_s):
                response = await self._client.send(request, stream=True)
        except (httpx.HTTPError, TimeoutError) as error:
            raise PeerUnreachable(str(error) or type(error).__name__) from error
        try:
            yield HttpAnswer(response)
        finally:
            await response.aclose()


async def _listens(path: str) -> bool:
    """Return whether a process listens on the Unix socket."""
    try:
        async with await anyio.connect_unix(path):
            return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:  # such as no free descriptor, which says nothing about the predecessor
        return True


async def _is_taken(url: str, within_s: float) -> bool:
    """Return whether a process listens on the port. Nothing is sent to it."""
    parts = urlsplit(url)
    try:
        with anyio.fail_after(within_s):
            async with await anyio.connect_tcp(parts.hostname or "", parts.port or 0):
                return True
    except TimeoutError:
        return True
    except OSError:
        return False
