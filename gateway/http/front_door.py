"""What every request passes first: bounds on its headers, its id, and the key. An ASGI middleware without buffering."""

import re
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.transport.endpoint import is_loopback
from gateway.errors import RefusalCode, RequestError
from gateway.http.conventions import ConventionsByPath
from gateway.http.credentials import presented_key
from gateway.http.exchange import Exchange
from gateway.settings import GatewaySettings

OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
"""The only paths that need no key."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"})
"""Headers of proxies: who asks is then elsewhere."""


class Gate:
    """Refuses what breaks a bound or lacks the key, and gives every request an id that its response carries.

    What `direct(method, path)` names goes straight to that app, which puts the id into its response itself: on the way
    of every token there is no wrapper. All else goes to `app`.
    """

    def __init__(
        self,
        app: ASGIApp,
        direct: Callable[[str, str], ASGIApp | None],
        settings: GatewaySettings,
        conventions: ConventionsByPath,
    ) -> None:
        self._app = app
        self.conventions = conventions
        self._direct = direct
        self._settings = settings
        self._key = settings.api_key.encode()
        self._admin_key = settings.admin_key.encode() or self._key
        # Without a key, those on this machine alone may change something: not a page that a browser shows them under
        # another name for this machine.
        self._local = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = name_request(scope)
        conventions = self.conventions.of(scope["path"])
        error = self._check(scope, conventions.key_header)
        direct = self._direct(scope["method"], scope["path"])
        if error is not None:
            await Exchange(scope, receive, send, self._settings, conventions).refuse(error)
        elif direct is not None:
            await direct(scope, receive, send)
        else:
            await self._app(scope, receive, _with_header(send, (b"x-request-id", request_id)))

    def _check(self, scope: Scope, key_header: bytes) -> RequestError | None:
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope.get("query_string", b""))
        bound = self._settings.max_header_bytes
        if size > bound:
            return RequestError(RefusalCode.HEADERS_TOO_LARGE, f"the headers are over the bound of {bound} bytes")
        # The path as the server parsed it, never one rebuilt from the Host header.
        if scope["path"].startswith("/admin/"):
            return self._check_admin(scope)
        if self._key and scope["path"] not in OPEN_PATHS and not _has_key(scope, self._key, key_header):
            return _no_key("API")
        return None

    def _check_admin(self, scope: Scope) -> RequestError | None:
        """Whoever may ask may look; to change something takes the admin's key, where there is one."""
        looks = scope["method"] in ("GET", "HEAD")
        if not self._admin_key:
            if looks or (self._local and _asks_this_machine(scope)):
                return None
            sentence = "to do this from another machine, set an admin key or an API key"
            return RequestError(RefusalCode.ADMIN_KEY_NEEDED, sentence)
        if _has_key(scope, self._admin_key) or (looks and (not self._key or _has_key(scope, self._key))):
            return None
        return _no_key("API" if self._admin_key == self._key else "admin")


def name_request(scope: Scope) -> bytes:
    """The id that the client gave its request, or a new one. It is in the scope from now on, for `Exchange`."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    request_id: bytes = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12).encode()
    scope["baton.request_id"] = request_id.decode("ascii")
    return request_id


def _no_key(kind: str) -> RequestError:
    headers = [(b"www-authenticate", b'Basic realm="baton", charset="UTF-8"')]
    return RequestError(RefusalCode.INVALID_API_KEY, f"a valid {kind} key is needed", headers=headers)


def _asks_this_machine(scope: Scope) -> bool:
    if any(name in FORWARDED for name, _ in scope["headers"]):
        return False  # somebody asks through a proxy
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    try:
        return is_loopback(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    except ValueError:  # not a host at all
        return False


def _has_key(scope: Scope, key: bytes, key_header: bytes = b"") -> bool:
    given = presented_key(scope, key_header)
    return given is not None and secrets.compare_digest(given, key)


def _with_header(send: Send, header: tuple[bytes, bytes]) -> Send:
    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_with_header
