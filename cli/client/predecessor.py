"""The client of the gateway whose port this one takes over: its HTTP interface and its listening socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import structlog

from actors.process.descriptors import NoDescriptors, check_free
from cli.client.server_url import base_url
from cli.config.settings import Settings
from gateway.fleet.hand_over import Offer
from gateway.fleet.take_over import TakeOverFailed
from gateway.streaming.peer import PeerUnreachable

TIMEOUT_S = 10.0
POLL_S = 0.5
"""Between two checks whether the predecessor still runs."""
SPARE = 64
"""File descriptors that must be free for another connection to it, since the workers need some."""
_MEANING = {
    401: ", so its key is another one: set BATON_API_KEY or BATON_ADMIN_KEY to that",
    404: ", so it is not a Baton server with --take-over: stop it, or choose another --port",
    409: ", so another server is taking it over already",
}

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

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises `PeerUnreachable`."""
        try:
            async for part in self._response.aiter_raw():
                yield part
        except httpx.HTTPError as error:
            raise PeerUnreachable(str(error) or type(error).__name__) from error


class HttpPredecessor:
    """Implements `gateway.fleet.take_over.Predecessor` for a gateway on the address of these settings."""

    def __init__(self, settings: Settings, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._silence_s = timeout_s + settings.request_timeout_s
        key = settings.admin_key or settings.api_key
        self._url = base_url(settings.host, settings.port)
        self._headers = {b"authorization": b"Bearer " + key.encode()} if key else {}
        self._offer: Offer | None = None
        self._client: httpx.AsyncClient | None = None
        """Connects to its private socket."""

    async def check(self) -> None:
        """Check that the predecessor would hand over. Changes nothing. Raises `TakeOverFailed`."""
        await self._offered()

    async def meet(self) -> int | None:
        """Receive its listening socket, a descriptor that the caller owns; None if the port is free.

        Raises `TakeOverFailed`.
        """
        self._offer = offer = await self._offered()
        if offer is None:
            return None
        try:
            descriptor = await _receive(offer.listener, self._timeout_s)
        except anyio.EndOfStream as error:
            raise self._failed("another server took it over first") from error
        except (OSError, ValueError) as error:
            raise self._failed(error) from error
        # One connection for each stream that it keeps, and their number is unknown.
        transport = httpx.AsyncHTTPTransport(uds=offer.http, limits=httpx.Limits(max_connections=None))
        timeout = httpx.Timeout(self._timeout_s, read=self._silence_s)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=timeout)
        return descriptor

    async def _offered(self) -> Offer | None:
        """Return its offer; None if the port is free. Raises `TakeOverFailed`."""
        async with httpx.AsyncClient(headers=self._headers, timeout=self._timeout_s, trust_env=False) as client:
            try:
                answer = await client.post(f"{self._url}/admin/gateway/offer", json={})
                answer.raise_for_status()
                return Offer(**answer.json())
            except httpx.ConnectError:
                return None
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                raise self._failed(f"it answered {status}{_MEANING.get(status, '')}") from error
            except (httpx.HTTPError, ValueError, TypeError) as error:
                raise self._failed(error) from error

    def _failed(self, problem: object) -> TakeOverFailed:
        return TakeOverFailed(f"the server on {self._url} does not hand over: {str(problem) or type(problem).__name__}")

    async def relieve(self) -> None:
        """Tell the predecessor that this gateway accepts connections now. Logs an error, and does not raise it."""
        if self._client is None or self._offer is None:
            return
        body: dict[str, Any] = {"pid": self._offer.pid}
        try:
            answer = await self._client.post("/admin/gateway/leave", json=body, headers=self._headers)
            answer.raise_for_status()
            _log.info("took_over", predecessor=self._offer.pid)
        except httpx.HTTPError as error:
            _log.error("predecessor_stays", predecessor=self._offer.pid, problem=str(error) or type(error).__name__)

    async def gone(self) -> None:
        """Wait until the predecessor has ended; return at once if there is none."""
        while self._offer is not None and await _listens(self._offer.http):  # noqa: ASYNC110  another process
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


async def _receive(path: str, within_s: float) -> int:
    """Receive a descriptor over the Unix socket."""
    with anyio.fail_after(within_s):
        async with await anyio.connect_unix(path) as stream:
            _, descriptors = await stream.receive_fds(1, 1)
            if not descriptors:
                raise ValueError("it did not send a socket")
            return descriptors[0]
