"""Authentication, header bounds and request ids, for every request. An ASGI middleware without buffering."""

import re
import secrets
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.transport.endpoint import is_loopback
from gateway.errors import RefusalCode, RequestError
from gateway.http.conventions import ConventionsByPath
from gateway.http.credentials import presented_key
from gateway.http.exchange import HttpExchange
from gateway.http.request_record import RequestRecord, RequestRecords
from gateway.settings import GatewaySettings

OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
"""The only paths that need no API key."""
FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"})
"""Headers that proxies add: the client is then on another machine."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class AuthMiddleware:
    """Refuses requests with too large headers or without a valid key, and gives every request an id, which its response
    carries.

    A request for which `direct(method, path)` returns an app goes straight to it, and that app puts the id into its
    response: no wrapper is called for each token. Every other request goes to `app`.
    """

    def __init__(
        self,
        app: ASGIApp,
        direct: Callable[[str, str], ASGIApp | None],
        settings: GatewaySettings,
        conventions: ConventionsByPath,
        records: RequestRecords,
    ) -> None:
        self._app = app
        self.conventions = conventions
        self.records = records
        self._direct = direct
        self._settings = settings
        self._key = settings.api_key.encode()
        self._admin_key = settings.admin_key.encode() or self._key
        # Without a key, only clients on this machine may change something. A page that a browser loaded under another
        # name of this machine may not.
        self._local = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = name_request(scope)
        record = self.records.begin(scope)
        conventions = self.conventions.of(scope["path"])
        error = self._check(scope, conventions.key_headers)
        direct = self._direct(scope["method"], scope["path"])
        if error is not None:
            await HttpExchange(scope, receive, send, self._settings, conventions).refuse(error)
        elif direct is not None:
            await direct(scope, receive, send)
        else:
            await self._app(scope, receive, _recorded(send, record, (b"x-request-id", request_id)))

    def _check(self, scope: Scope, key_headers: Collection[bytes]) -> RequestError | None:
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope.get("query_string", b""))
        bound = self._settings.max_header_bytes
        if size > bound:
            return RequestError(RefusalCode.HEADERS_TOO_LARGE, f"the headers are over the bound of {bound} bytes")
        # This is the path as the server parsed it, never one rebuilt from the Host header.
        if scope["path"].startswith("/admin/"):
            return self._check_admin(scope)
        if self._key and scope["path"] not in OPEN_PATHS and not _has_key(scope, self._key, key_headers):
            return _no_key("API")
        return None

    def _check_admin(self, scope: Scope) -> RequestError | None:
        """Reading takes the API key or the admin key; a change takes the admin key, if there is one."""
        reads = scope["method"] in ("GET", "HEAD")
        if not self._admin_key:
            if reads or (self._local and _is_local(scope)):
                return None
            sentence = "to do this from another machine, set an admin key or an API key"
            return RequestError(RefusalCode.ADMIN_KEY_NEEDED, sentence)
        if _has_key(scope, self._admin_key) or (reads and (not self._key or _has_key(scope, self._key))):
            return None
        return _no_key("API" if self._admin_key == self._key else "admin")


def name_request(scope: Scope) -> bytes:
    """Set the request's id, the client's own or a new one, in the scope, where `HttpExchange` reads it. Returns it."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    request_id: bytes = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12).encode()
    scope["baton.request_id"] = request_id.decode("ascii")
    return request_id


def _no_key(kind: str) -> RequestError:
    headers = [(b"www-authenticate", b'Basic realm="baton", charset="UTF-8"')]
    return RequestError(RefusalCode.INVALID_API_KEY, f"a valid {kind} key is needed", headers=headers)


def _is_local(scope: Scope) -> bool:
    if any(name in FORWARDED for name, _ in scope["headers"]):
        return False  # a proxy is between
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    try:
        return is_loopback(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    except ValueError:  # no valid host
        return False


def _has_key(scope: Scope, key: bytes, key_headers: Collection[bytes] = ()) -> bool:
    given = presented_key(scope, key_headers)
    return given is not None and secrets.compare_digest(given, key)


def _recorded(send: Send, record: RequestRecord, header: tuple[bytes, bytes]) -> Send:
    async def send_recorded(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.started(message["status"])
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_recorded
