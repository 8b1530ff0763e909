"""Fetches images by their URLs, from public addresses of allowed hosts alone.

Server-side request forgery (CVE-2025-6242 and CVE-2026-24779 in vLLM) is prevented by these rules: a host is resolved
once, all of its addresses must be public, and the connection goes to one of them, whatever the name resolves to then.
Redirects are not followed, and proxies of the environment are not used.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
import anyio.to_thread
import httpx

from gateway.body_budget import HeldBody
from gateway.errors import invalid
from gateway.images.addresses import is_public
from gateway.images.image_url import ImageUrl, parse_image_url
from gateway.images.sources import GivenImage, check_media_type, too_large

FETCH_S = 10.0
"""Time for an image, from its name to its last byte, and its turn."""
MAX_AT_ONCE = 4
"""Images that are fetched at once for one client."""
MAX_LOOKUPS = 8
"""Names that are resolved at once. A lookup cannot be ended, and counts until it ends by itself."""
_OPAQUE = frozenset({"application/octet-stream", "binary/octet-stream"})
"""Types of servers that do not know what a file is."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns all addresses of a host. Raises `OSError`."""


class ImageFetcher:
    """Fetches images. Used on one event loop."""

    def __init__(
        self,
        allowed: tuple[str, ...],
        *,
        resolve: Resolve | None = None,
        public: Callable[[str], bool] = is_public,
        deadline_s: float = FETCH_S,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        """`allowed` are patterns of hosts. The other arguments are for tests: `public` tells which addresses may be
        connected to, and `trusted` has the certificates of authorities."""
        self._allowed = allowed
        self._resolve = resolve or self._look_up
        self._public = public
        self._deadline_s = deadline_s
        self._trusted = trusted
        self._lookups = anyio.CapacityLimiter(MAX_LOOKUPS)
        self._turns: dict[str, tuple[anyio.Semaphore, int]] = {}
        """The turns of each client, and the fetches that have or await one."""

    def check(self, source: GivenImage) -> ImageUrl:
        """Parse the URL of an image. Raises `RequestError`."""
        return parse_image_url(source.text, source.field, self._allowed)

    async def fetch(self, source: GivenImage, client: str, most: int, held: HeldBody) -> bytes:
        """Return the file of an image, of `most` bytes, which `held` counts. Raises `RequestError`."""
        wanted, field = self.check(source), source.field
        try:
            with anyio.fail_after(self._deadline_s), self._turn(client) as turn:
                async with turn:
                    return await self._get(wanted, field, most, held)
        except TimeoutError as error:
            raise invalid(field, f"`{field}`: the image did not arrive within {self._deadline_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            # The client gets no error of the network: these would map it.
            raise invalid(field, f"`{field}`: the image could not be fetched") from error

    async def _get(self, wanted: ImageUrl, field: str, most: int, held: HeldBody) -> bytes:
        address = await self._address(wanted, field)
        if self._trusted is None and wanted.url.scheme == "https":
            self._trusted = await anyio.to_thread.run_sync(ssl_context)
        # No connection is kept: the next one to this address may be for another name.
        transport = httpx.AsyncHTTPTransport(verify=self._trusted or False, trust_env=False)
        async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=self._deadline_s) as client:
            request = client.build_request(
                "GET",
                wanted.url.copy_with(host=address, fragment=None),
                headers={
                    "host": wanted.url.netloc.decode("ascii"),
                    "accept": "image/png, image/jpeg, image/webp, image/gif",
                    "accept-encoding": "identity",
                    "user-agent": "baton",
                },
                extensions={"sni_hostname": wanted.host},
            )
            response = await client.send(request, stream=True, follow_redirects=False)
            try:
                return await _read(response, field, most, held)
            finally:
                await response.aclose()

    async def _address(self, wanted: ImageUrl, field: str) -> str:
        """Resolve a host, once. Raises `RequestError` unless all of its addresses are public."""
        try:
            found = await self._resolve(wanted.host, wanted.port)
        except (OSError, UnicodeError):
            found = []
        # One text for both: it does not tell which names of a private network exist.
        if not found or not all(map(self._public, found)):
            raise invalid(field, f"`{field}`: {wanted.host[:100]!r} has no public address")
        return found[0]

    async def _look_up(self, host: str, port: int) -> list[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return [str(each[4][0]) for each in found]

        return await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=self._lookups)

    @contextmanager
    def _turn(self, client: str) -> Iterator[anyio.Semaphore]:
        semaphore, users = self._turns.get(client) or (anyio.Semaphore(MAX_AT_ONCE), 0)
        self._turns[client] = (semaphore, users + 1)
        try:
            yield semaphore
        finally:
            users = self._turns[client][1] - 1
            if users:
                self._turns[client] = (semaphore, users)
            else:
                del self._turns[client]


def ssl_context() -> ssl.SSLContext:
    """Make a context with the authorities that httpx trusts, which takes some 20 ms."""
    return httpx.create_ssl_context(trust_env=False)


async def _read(response: httpx.Response, field: str, most: int, held: HeldBody) -> bytes:
    """Read the body of a response. Raises `RequestError`."""
    _check(response, field, most)
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > most:
            raise too_large(field)
        held.grow(len(part))
        parts.append(part)
    return b"".join(parts)


def _check(response: httpx.Response, field: str, most: int) -> None:
    if response.is_redirect:
        raise invalid(field, f"`{field}`: the URL redirects to another one, which is not followed")
    if response.status_code != 200:
        raise invalid(field, f"`{field}`: its server answered with the status {response.status_code}")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _OPAQUE:
        check_media_type(kind, field)
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise invalid(field, f"`{field}`: its server compresses the image, which is not read")
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large(field)
